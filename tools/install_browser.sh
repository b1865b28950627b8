#!/bin/sh
# Installs Chromium from the distribution's packages, if this machine has apt and this user may use it. A machine
# without it is no error: the tests that need a browser are skipped, and say so.
set -eu

if command -v chromium >/dev/null; then
    echo "chromium is installed: $(command -v chromium)"
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "chromium is missing, and only root on a Debian system can install it here: tests in a browser are skipped"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }; then
    echo "chromium could not be installed: tests in a browser are skipped"
fi
