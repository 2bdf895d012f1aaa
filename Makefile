.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Tests start hundreds of processes. Let Python keep what it compiles, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | awk -F'\t' '{printf "  make %-18s %s\n", $$1, $$2}'

# Two runs of make at once take turns, so that they do not install into the same folder.
LOCKED := $(PYTHON) -c 'import fcntl, subprocess, sys; lock = open(".setup.lock", "w"); fcntl.flock(lock, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))'

.PHONY: setup
setup: ## Create the virtual environment .venv with every extra
	@MAKEFLAGS= $(LOCKED) $(MAKE) --silent --no-print-directory .venv/.done

.venv/.done: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer." if sys.version_info < (3, 11) else 0)'
	@echo "Installing Holdfast and its tools into .venv"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# Only from the command line: many environments have a PORT that means something else.
PORT_OPTION := $(if $(filter command,$(firstword $(origin PORT))),--port $(PORT))

.PHONY: run
run: setup ## Serve demo data on http://127.0.0.1:8000, or on another port with PORT=8001
	$(BIN)/holdfast demo
	HOLDFAST_DEMO=true HOLDFAST_SANDBOX_WEBHOOK_SECRET="$${HOLDFAST_SANDBOX_WEBHOOK_SECRET:-whsec_$$(head -c 24 /dev/urandom | base64)}" $(BIN)/holdfast serve $(PORT_OPTION)

.PHONY: bot-demo
bot-demo: setup ## Play the staff and the workers of a Telegram bot on http://127.0.0.1:8090, without a token
	$(BIN)/python -m scripts.bot_demo

.PHONY: test
test: setup ## Run all tests, and lint and check types beside them
	@$(MAKE) --no-print-directory --jobs 2 check pytest pytest-redis

PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

.PHONY: pytest
pytest: setup
	$(PYTEST) -n 4

# `make test` starts this once `check` is done, beside the other tests.
.PHONY: pytest-redis
pytest-redis: setup
	HOLDFAST_TEST_REDIS=server $(PYTEST) -n 2 -q $(WITH_REDIS)

# What runs a second time in `make test`, with a Redis in front of every server.
WITH_REDIS := tests/races/test_no_double_sale.py tests/api/test_bookings.py tests/api/test_business_rules.py \
	tests/live/test_feed.py::test_no_watcher_misses_a_change_while_every_process_sells \
	tests/faults/test_process_crashes.py::test_a_killed_api_process_loses_no_booking

.PHONY: test-redis
test-redis: setup ## Run the API, race, live and fault tests with Redis, Redis Cluster and Sentinel
	for kind in server cluster sentinel; do \
		HOLDFAST_TEST_REDIS=$$kind $(PYTEST) -n 4 -q tests/api tests/races tests/live tests/faults || exit 1; done

.PHONY: test-long
test-long: setup ## Run all tests, with load and crash tests at full length
	HOLDFAST_LONG_TESTS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: test-wheel
test-wheel: setup ## Install the wheel into an empty environment and serve the demo from it (needs PyPI)
	HOLDFAST_LONG_TESTS=1 $(BIN)/python -m pytest tests/runtime/test_wheel.py

.PHONY: attack
attack: setup ## Attack a server for half a minute while honest buyers buy
	HOLDFAST_LONG_TESTS=1 $(BIN)/python -m pytest tests/attacks

.PHONY: audit-dependencies
audit-dependencies: setup ## Check all dependencies for known vulnerabilities (needs network access)
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip freeze --exclude-editable > .venv-audit/installed.txt
	.venv-audit/bin/pip-audit --disable-pip --no-deps --requirement .venv-audit/installed.txt

.PHONY: check
check: setup ## Lint and check types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: bench
bench: setup ## Compare Holdfast with two baselines in one run (needs wrk; installs it if it can)
	$(BIN)/python -m bench

.PHONY: bench-live
bench-live: setup ## Measure the live feed with 5,000 sockets on one event
	$(BIN)/python -m bench.live

.PHONY: bench-telemetry
bench-telemetry: setup ## Measure what logs and metrics cost: one server with and without them in turns (needs wrk)
	$(BIN)/python -m bench.telemetry

.PHONY: stampede
stampede: setup ## Send 5,000 simulated buyers to the concert of a running `make run`
	$(BIN)/holdfast stampede --event $$($(BIN)/holdfast demo | awk '/ show /{print $$1}')

.PHONY: screenshots
screenshots: setup ## Retake the pictures in docs/screenshots (needs Chromium)
	$(BIN)/python -m scripts.screenshots

.PHONY: bot-pictures
bot-pictures: setup ## Retake the pictures of the Telegram bot in docs/screenshots (needs Chromium)
	$(BIN)/python -m scripts.bot_pictures
