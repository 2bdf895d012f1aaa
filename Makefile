.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: setup
setup: .venv/.done ## Make the virtual environment .venv with everything

.venv/.done: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: run
run: setup ## Run the product with demo data on http://127.0.0.1:8000
	$(BIN)/holdfast demo
	HOLDFAST_DEMO=true HOLDFAST_SANDBOX_WEBHOOK_SECRET="$${HOLDFAST_SANDBOX_WEBHOOK_SECRET:-whsec_$$(head -c 24 /dev/urandom | base64)}" $(BIN)/holdfast serve

.PHONY: test
test: setup check ## Run all tests
	$(BIN)/python -m pytest -n 3 --dist loadfile

.PHONY: test-long
test-long: setup ## Run all tests, those of crowds and crashes in full
	HOLDFAST_LONG_TESTS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: check
check: setup ## Lint and check types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: bench
bench: setup ## Measure, as ratios in one run (needs wrk; installs it where it can)
	$(BIN)/python -m bench

.PHONY: bench-live
bench-live: setup ## Measure the live feed with 5,000 sockets on one event
	$(BIN)/python -m bench.live

.PHONY: stampede
stampede: setup ## Let 5,000 buyers rush the demo hall of a running `make run`
	$(BIN)/holdfast stampede --event $$($(BIN)/holdfast demo | awk '/ show /{print $$1}')

.PHONY: screenshots
screenshots: setup ## Take the pictures of docs/screenshots anew (needs Chromium)
	$(BIN)/python -m scripts.screenshots
