# Every target installs what it needs: in a virtual environment inside the checkout, never globally.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Exists if leasehold-native is built and installed in the virtual environment.
NATIVE := $(VENV)/.native
# pip installs uv, and uv installs everything else; both check the hashes in the lock files.
UV_LOCK := requirements/uv.lock
PIP_UV  := -m pip install --quiet --require-hashes --no-deps --requirement $(UV_LOCK)
LOCK    = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
              --no-emit-index-url --no-emit-package leasehold-native
# The oldest supported pyspark has a separate environment.
OLDEST       := .venv-oldest
OLDEST_READY := $(OLDEST)/.ready
# The tool that reads advisories has a separate environment, because it is no part of what is checked.
AUDIT        := .venv-audit
AUDIT_READY  := $(AUDIT)/.ready
# The tools of the documentation site, likewise.
SITE         := .venv-site
SITE_READY   := $(SITE)/.ready
# So has the pyspark that Delta supports, with readers of tables and a driver for PostgreSQL.
TABLES       := .venv-tables
TABLES_READY := $(TABLES)/.ready
# So have the consumers that the benchmarks compare us with.
PEERS        := .venv-bench
PEERS_READY  := $(PEERS)/.ready
# leasehold-native in it, for comparisons that need both sides in one process.
PEERS_NATIVE := $(PEERS)/.native

.DEFAULT_GOAL := help
.PHONY: help demo setup setup-servers test test-slow test-native test-oldest cluster-test chaos bench bench-java check format reference docs lock lock-servers clean
.PHONY: sbom audit setup-browser tables-test
.PHONY: mutants setup-interop interop interop-core bench-failover bench-leaders bench-large-fleet

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

$(READY): requirements/dev.lock $(UV_LOCK) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_UV)
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

$(NATIVE): $(READY) native/Cargo.toml native/Cargo.lock native/pyproject.toml native/leasehold_native.pyi $(wildcard native/src/*.rs)
	$(BIN)/python -m tools.build_native

$(OLDEST_READY): requirements/oldest.lock $(UV_LOCK) pyproject.toml
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python $(PIP_UV)
	$(OLDEST)/bin/uv pip sync --quiet --python $(OLDEST)/bin/python --require-hashes requirements/oldest.lock
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --no-deps --no-build-isolation --editable .
	touch $@

$(TABLES_READY): requirements/tables.lock $(UV_LOCK) pyproject.toml
	test -x $(TABLES)/bin/python || $(PYTHON) -m venv $(TABLES)
	$(TABLES)/bin/python $(PIP_UV)
	$(TABLES)/bin/uv pip sync --quiet --python $(TABLES)/bin/python --require-hashes requirements/tables.lock
	$(TABLES)/bin/uv pip install --quiet --python $(TABLES)/bin/python --no-deps --no-build-isolation --editable .
	touch $@

$(AUDIT_READY): requirements/audit.lock $(UV_LOCK)
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python $(PIP_UV)
	$(AUDIT)/bin/uv pip sync --quiet --python $(AUDIT)/bin/python --require-hashes requirements/audit.lock
	touch $@

$(SITE_READY): requirements/docs.lock $(UV_LOCK)
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python $(PIP_UV)
	$(SITE)/bin/uv pip sync --quiet --python $(SITE)/bin/python --require-hashes requirements/docs.lock
	touch $@

$(PEERS_READY): requirements/bench.lock $(UV_LOCK)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP_UV)
	$(PEERS)/bin/uv pip sync --quiet --python $(PEERS)/bin/python --require-hashes requirements/bench.lock
	touch $@

$(PEERS_NATIVE): $(PEERS_READY) $(NATIVE)
	$(BIN)/python -m tools.build_native $(PEERS)

demo: setup ## run Kinesis to an archive with Spark on this machine: a reshard, a kill -9, every record counted
	$(BIN)/leasehold demo

setup: $(READY) $(NATIVE) ## create the virtual environment, with locked versions; build leasehold-native if there is a Rust toolchain

setup-servers: setup ## install the servers that the tests use, in .servers/
	$(BIN)/python -m tests.servers.install

setup-browser: ## install Debian's Chromium, in which the tests of the dashboard run; without it they are skipped
	tools/install_browser.sh

test: setup setup-servers ## run the tests, with real servers and processes
	$(BIN)/python -m pytest -m "not slow" -n 3 --dist worksteal --durations 15

test-slow: setup setup-servers ## run the long tests: kills at every point, paused members, chaos
	$(BIN)/python -m pytest -m slow -n 3 --dist worksteal --durations 15

test-oldest: $(OLDEST_READY) ## run a few tests on the oldest supported pyspark and pyarrow
	$(OLDEST)/bin/python -m pytest tests/spark/test_smoke.py tests/spark/test_archive_sink.py tests/unit/archive

test-native: setup ## run the tests of leasehold-native that need no Python, and its lint
	cd native && cargo fmt --check
	cd native && PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --release --all-targets -- --deny warnings
	cd native && PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo test --release

mutants: setup ## change the code in small ways, and report the changes that no quick test notices (an hour)
	$(BIN)/python -m tools.mutation $(ARGS)

cluster-test: setup setup-servers ## run the pipeline on a Spark standalone cluster, and kill one of its workers
	$(BIN)/python -m pytest tests/cluster

tables-test: $(TABLES_READY) ## write a Delta table, an Iceberg table and PostgreSQL through kills with -9, and count every record (ten minutes)
	$(TABLES)/bin/python -m pytest tests/tables

chaos: setup setup-servers ## kill, pause, reshard and cut connections for ten minutes, and account for every record
	$(BIN)/python -m tests.chaos $(ARGS)

bench: setup $(PEERS_READY) $(PEERS_NATIVE) ## measure processor time, latency and idle cost beside other consumers; ARGS=--help lists more (a quarter of an hour)
	$(BIN)/python -m benchmarks $(ARGS)

bench-java: setup setup-servers setup-interop $(PEERS_READY) $(PEERS_NATIVE) ## the same for workers, with the Java KCL and kclpy in the same run
	$(BIN)/python -m benchmarks --java $(ARGS)

setup-interop: setup setup-servers ## build the Java member for tests with the real KCL (from Maven Central or PyPI), in .servers/
	$(BIN)/python -m tests.interop.build

interop: setup setup-servers setup-interop ## run all tests with the Java KCL (a quarter of an hour)
	$(BIN)/python -m pytest tests/interop -n 3

interop-core: setup setup-servers setup-interop ## run the tests with the Java KCL that every change must pass
	$(BIN)/python -m pytest tests/interop -m core -n 3

bench-failover: setup setup-servers setup-interop ## measure how long shards are unread after a member stops, compared with the Java KCL
	$(BIN)/python -m benchmarks.failover

bench-memory: setup ## show that the memory of a worker is limited by buffer_bytes, on a backlog of 2 GB (some minutes)
	$(BIN)/python -m benchmarks.memory_limit $(ARGS)

bench-leaders: setup ## compare our assignment strategy with the Java KCL's in simulated fleets (five minutes)
	$(BIN)/python -m benchmarks.leaders $(ARGS)

bench-large-fleet: setup ## simulate 1,000 members and 10,000 shards: time to balance and recover, calls per shard-hour
	$(BIN)/python -m benchmarks.large_fleet $(ARGS)

check: setup ## check format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## format the code, and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: setup ## write the reference pages of the documentation from the code: settings, options, events, metrics, commands, ...
	$(BIN)/python -m tools.reference

docs: setup $(SITE_READY) ## check that the reference pages are up to date, and build the site, build/site/index.html
	$(BIN)/python -m tools.reference --check
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs --quiet build --strict

sbom: setup ## write the software bill of materials, build/sbom.cdx.json (CycloneDX): every package that leasehold can install
	$(BIN)/python -m tools.sbom build/sbom.cdx.json

audit: $(AUDIT_READY) ## look for known vulnerabilities of the locked packages; fails if no source of advisories answers
	$(AUDIT)/bin/python -m tools.audit

lock: ## resolve requirements/*.in again
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_UV)
	$(LOCK) requirements/uv.in -o $(UV_LOCK)
	$(LOCK) requirements/audit.in -o requirements/audit.lock
	$(LOCK) requirements/docs.in -o requirements/docs.lock
	$(LOCK) --all-extras pyproject.toml requirements/dev.in -o requirements/dev.lock
	$(LOCK) --extra archive pyproject.toml requirements/bench.in -o requirements/bench.lock
	$(LOCK) --extra spark --extra java --extra local --extra avro pyproject.toml requirements/oldest.in -o requirements/oldest.lock
	$(LOCK) --extra spark --extra java --extra local pyproject.toml requirements/tables.in -o requirements/tables.lock

lock-servers: setup ## resolve the packages of the test servers again
	$(BIN)/python tools/lock_servers.py

clean: ## remove everything that the targets created
	rm -rf $(VENV) $(OLDEST) $(AUDIT) $(TABLES) $(PEERS) $(SITE) build native/target .servers .hypothesis .mypy_cache .pytest_cache .ruff_cache
