PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One process for each core, each of one thread: more threads than cores cost most of the time.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt
# What was compiled, and the assertions that pytest rewrote, are kept for the next process: making them anew is a third of
# what collecting the tests takes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo picture test test-slow check format reference docs

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.core  ## measure the built-in encoders on the built-in images and name the report
	$(BIN)/holdfast evaluate --out runs/demo

picture: demo  ## remake the picture of the report in the documentation (needs chromium)
	$(BIN)/python scripts/picture_of_page.py runs/demo/report.html docs/images/report.png

test: $(VENV)/.dev  ## everything that takes seconds
	$(PYTEST)

test-slow: $(VENV)/.dev  ## the tests that take minutes
	$(PYTEST) -m slow --durations=40 tests

check: $(VENV)/.dev  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev  ## format the code and sort its imports
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

reference: $(VENV)/.dev  ## rewrite the generated parts of the documentation
	$(BIN)/python scripts/site_reference.py

docs: $(VENV)/.dev  ## build the documentation into site/
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
