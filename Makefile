# `make` lists what there is. Each target sets up the environment it needs in .venv, from the pinned
# versions in constraints.txt; pip's own settings (mirrors, local wheels) are honoured.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN = "$(VENV)"/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

FLOWER_VENV ?= .venv-flower

.PHONY: help train federation test test-slow test-kernels test-device reliability lint docs clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "ARGS='...' is passed on: make train ARGS='--set privacy.epsilon=2'"

train: $(VENV)/.run-ready  ## the default run: digits over 500 clients at epsilon 4
	$(BIN)/python -m privfed train $(ARGS)

federation: $(FLOWER_VENV)/.ready  ## three hospitals on this machine, carried by Flower
	"$(FLOWER_VENV)"/bin/python -m experiments.federation $(ARGS)

test: $(VENV)/.test-ready  ## the tests
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-slow: $(VENV)/.test-ready  ## long statistical tests, studies, every page's code
	$(BIN)/python -m pytest -n 2 -m slow $(ARGS)

test-kernels: $(VENV)/.test-ready  ## what is computed, by the kernels of a processor without AVX
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(BIN)/python -m pytest -n 2 tests/defenses \
		tests/attacks tests/privfed/client tests/privfed/models tests/privfed/server \
		tests/privfed/test_benchmarks.py $(ARGS)

test-device: $(VENV)/.test-ready  ## on a GPU: rules, training, noise, rounds, kill and resume, processes
	PRIVFED_TEST_DEVICE=cuda $(BIN)/python -m pytest -n 0 -m "slow or not slow" tests/defenses \
		tests/privfed/client tests/privfed/round tests/privfed/run/test_on_devices.py \
		tests/privfed/run/test_ranks.py tests/privfed/run/test_resume.py $(ARGS)

reliability: $(VENV)/.test-ready  ## crashes and spoiled files at length, into docs/reliability.md
	PYTHONPATH=.:tests:tests/privfed $(BIN)/python -m trials $(ARGS)

lint: $(VENV)/.test-ready  ## style, types, the contract of layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

docs: $(VENV)/.test-ready  ## this documentation, into docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet \
		--fresh-env docs docs/_build/html $(ARGS)

clean:  ## remove the environment and what was built
	rm -rf "$(VENV)" "$(FLOWER_VENV)" docs/_build

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

# Flower asks for older versions of three packages: an environment of its own.
$(FLOWER_VENV)/.ready: constraints.flower.txt pyproject.toml
	$(PYTHON) -m venv "$(FLOWER_VENV)"
	"$(FLOWER_VENV)"/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.flower.txt torch
	"$(FLOWER_VENV)"/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.flower.txt --editable '.[flower]'
	touch "$@"
