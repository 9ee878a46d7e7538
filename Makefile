# Everything a developer needs. Each target sets up .venv when needed; a second run reuses it at once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2

.PHONY: demo test test-cluster test-faults lint bench docs clean

demo: $(VENV)/.installed
	$(BIN)/dragoman demo

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-cluster: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/cluster tests/parallel -m "cluster or not cluster"

# About 12 minutes on two quiet cores; rows of a subset: make test-faults ONLY="link or host"
test-faults: $(VENV)/.installed-dev
	DRAGOMAN_FAULTS=$(CURDIR)/docs/reliability.json $(BIN)/python -m pytest tests/faults -m "faults or not faults" -k "$(ONLY)"
	$(BIN)/python bench/faults.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	$(BIN)/python bench/cpu.py

docs: $(VENV)/.installed-dev
	$(BIN)/dragoman config > docs/config.toml

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev,serve,export,onnx,ray,bench,langid]'
	touch $@

clean:
	rm -rf $(VENV) demo
