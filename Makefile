# make demo   environment + the main job on documents that every Python carries
# make test   environment + linters, types, layers, tests
# make bench  CORPUS="a.jsonl.zst b.jsonl.zst" TOKENIZER=tokenizer.json   nextlong against bench/handwritten.py

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	$(BIN)/nextlong demo

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	@test -n "$(CORPUS)" -a -n "$(TOKENIZER)" || { echo 'say: make bench CORPUS="FILES" TOKENIZER=tokenizer.json'; exit 2; }
	$(BIN)/python bench/pipeline.py --corpus $(CORPUS) --tokenizer $(TOKENIZER) --out .bench $(BENCH)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "nextlong needs Python 3.11 or newer; say: make PYTHON=python3.12 …"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) .bench nextlong-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
