"""A program: serves the view of a large fleet with so few descriptors as its argument says, until it is stopped."""

import resource
import sys
import time

from tests.dashboard.running_dashboard import run_dashboard
from tests.dashboard.sample_fleets import large_fleet, view_after

if __name__ == "__main__":
    descriptors = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    with run_dashboard(*view_after(large_fleet(3_000, 40), 1)) as dashboard:
        print(dashboard.url, flush=True)
        time.sleep(600)
