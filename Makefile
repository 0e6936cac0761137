# Two commands: `make train` and `make test`. Each sets up the environment it needs in .venv, from
# the pinned versions in constraints.txt; pip's own settings (mirrors, local wheels) are honoured.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN = "$(VENV)"/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: train test test-slow reliability lint clean

train: $(VENV)/.run-ready
	$(BIN)/python -m privfed train $(ARGS)

test: $(VENV)/.test-ready
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-slow: $(VENV)/.test-ready
	$(BIN)/python -m pytest -n 2 -m slow $(ARGS)

reliability: $(VENV)/.test-ready
	PYTHONPATH=.:tests:tests/privfed $(BIN)/python -m trials $(ARGS)

lint: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

clean:
	rm -rf "$(VENV)"

$(VENV)/.made: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("privfed needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv "$(VENV)"
	$(PIP) torch
	touch "$@"

$(VENV)/.run-ready: $(VENV)/.made pyproject.toml
	$(PIP) --editable .
	touch "$@"

$(VENV)/.test-ready: $(VENV)/.run-ready
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps byzfl==0.0.11  # rules are compared with it; it asks for more than they need
	touch "$@"
