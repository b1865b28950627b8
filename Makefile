# Every target sets itself up from nothing: a virtual environment inside the checkout, no global installs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
UV_PIN := uv==0.13.7
LOCK    = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
              --no-emit-index-url
# The oldest pyspark that we support lives in an environment of its own.
OLDEST       := .venv-oldest
OLDEST_READY := $(OLDEST)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo setup setup-servers test test-oldest cluster-test chaos bench check format lock lock-servers clean
.PHONY: setup-interop interop interop-core bench-failover

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(READY): requirements/dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(UV_PIN)
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

$(OLDEST_READY): requirements/oldest.lock pyproject.toml
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet $(UV_PIN)
	$(OLDEST)/bin/uv pip sync --quiet --python $(OLDEST)/bin/python --require-hashes requirements/oldest.lock
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --no-deps --no-build-isolation --editable .
	touch $@

demo: setup ## Kinesis to an archive by Spark on this machine: a reshard, a kill -9, every record counted
	$(BIN)/leasehold demo

setup: $(READY) ## the virtual environment, with locked versions

setup-servers: setup ## the servers that the tests talk to, in .servers/
	$(BIN)/python -m tests.servers.install

test: setup setup-servers ## every test
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 15

test-oldest: $(OLDEST_READY) ## a few tests on the oldest pyspark and pyarrow that are supported
	$(OLDEST)/bin/python -m pytest tests/spark/test_smoke.py tests/spark/test_archive_sink.py tests/unit/archive/test_columns.py tests/unit/archive

cluster-test: setup setup-servers ## the pipeline on a Spark standalone cluster of processes, one of which is killed
	$(BIN)/python -m pytest tests/cluster

chaos: setup setup-servers ## ten minutes of kills, pauses, reshards and cut connections, and every record accounted for
	$(BIN)/python -m tests.chaos $(ARGS)

bench: setup ## rows and megabytes a second through Spark, and how long a record is on its way
	$(BIN)/python benchmarks/spark_throughput.py

setup-interop: setup setup-servers ## the Java member for tests beside the real KCL, by Maven or with what PyPI has, in .servers/
	$(BIN)/python -m tests.interop.build

interop: setup setup-servers setup-interop ## one fleet with the Java KCL: every story (a quarter of an hour)
	$(BIN)/python -m pytest tests/interop -n 3

interop-core: setup setup-servers setup-interop ## the stories beside the Java KCL that every change has to pass
	$(BIN)/python -m pytest tests/interop -m core -n 3

bench-failover: setup setup-servers setup-interop ## how long shards are unread when a member goes, beside the Java KCL
	$(BIN)/python -m benchmarks.failover

check: setup ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## resolve requirements/*.in anew
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(UV_PIN)
	$(LOCK) --all-extras pyproject.toml requirements/dev.in -o requirements/dev.lock
	$(LOCK) --extra spark --extra java --extra local pyproject.toml requirements/oldest.in -o requirements/oldest.lock

lock-servers: setup ## resolve what the servers of the tests are installed from anew
	$(BIN)/python tools/lock_servers.py

clean: ## remove what the targets made
	rm -rf $(VENV) $(OLDEST) .servers .hypothesis .mypy_cache .pytest_cache .ruff_cache
