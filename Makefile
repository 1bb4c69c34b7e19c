# Everything runs inside .venv, made from pyproject.toml and constraints.txt on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-gpu check clean
.DEFAULT_GOAL := test

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nsm needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/installed  ## an NSM learns MNIST and shows what it is sure of
	@$(BIN)/python -m nsm.demo

test: .venv/installed  ## the test suite, without the slow and the GPU tests
	$(BIN)/pytest -q --numprocesses auto --maxprocesses 4 --dist worksteal

test-slow: .venv/installed  ## only the slow tests
	$(BIN)/pytest -q -m slow

test-gpu: .venv/installed  ## only the tests that need a CUDA device
	$(BIN)/pytest -q -m gpu

check: .venv/installed  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis dist
