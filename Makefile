# make demo   measure the built-in encoders on the built-in images and name the report
# make test   everything that takes seconds;  make test-slow   the rest
# make check  lint, format, types;            make docs        build the documentation into site/
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One process for each core, each of one thread: more threads than cores cost most of the time.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt
# What was compiled, and the assertions that pytest rewrote, are kept for the next process: making them anew is a third of
# what collecting the tests takes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-slow check docs

demo: $(VENV)/.core
	$(BIN)/holdfast evaluate --out runs/demo

test: $(VENV)/.dev
	$(PYTEST)

test-slow: $(VENV)/.dev
	$(PYTEST) -m slow tests

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first: whatever depends on it then keeps the build that the constraints name.
$(VENV)/.core: pyproject.toml constraints-cpu.txt | $(VENV)/bin/python
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints-cpu.txt | $(VENV)/bin/python
	$(INSTALL) torch
	$(INSTALL) -e ".[dev]"
	touch $@
