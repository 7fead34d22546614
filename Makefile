# Everything a fresh machine needs is done by `make setup`; every other target depends on it.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test test-fast lint format typecheck bench bench-check bench-peers clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not here; name another one (3.11 to 3.13): make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/radixserve pull smollm2-135m
	$(BIN)/python docs/examples/demo.py

test: setup
	$(BIN)/radixserve pull smollm2-135m
	$(BIN)/pytest

test-fast: setup
	$(BIN)/pytest -m "not model and not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: setup
	$(BIN)/mypy
	$(BIN)/pyright

bench: setup
	$(BIN)/radixserve pull smollm2-135m
	$(BIN)/python -m benchmarks.bars

# Counted work and CPU times against benchmarks/baseline.json.
bench-check: setup
	$(BIN)/python -m benchmarks.check

# The workloads that other engines were measured with, beside what this machine can do.
bench-peers: setup
	$(BIN)/radixserve pull smollm2-135m
	$(BIN)/python -m benchmarks.peers

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .hypothesis
