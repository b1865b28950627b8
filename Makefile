# Every target sets itself up from nothing: a virtual environment inside the checkout, no global installs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
UV_PIN := uv==0.13.7

.DEFAULT_GOAL := help
.PHONY: help demo setup setup-servers test check format lock lock-servers clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(READY): requirements/dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(UV_PIN)
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

demo: setup ## a small fleet on embedded servers: records, a reshard, a killed worker
	$(BIN)/python examples/demo.py

setup: $(READY) ## the virtual environment, with locked versions

setup-servers: setup ## the servers that the tests talk to, in .servers/
	$(BIN)/python -m tests.servers.install

test: setup setup-servers ## every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

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
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	    --no-emit-index-url --all-extras pyproject.toml requirements/dev.in -o requirements/dev.lock

lock-servers: setup ## resolve what the servers of the tests are installed from anew
	$(BIN)/python tools/lock_servers.py

clean: ## remove what the targets made
	rm -rf $(VENV) .servers .hypothesis .mypy_cache .pytest_cache .ruff_cache
