# make demo   environment + the main job on documents that every Python carries
# make test   environment + linters, types, layers, tests
# make train-demo      a tiny Llama from scratch on the demo's data
# make evaluate-demo   a tiny model through the benchmarks
# make docs   the site, in docs/_build; any broken link ends it
# make bench  CORPUS="a.jsonl.zst b.jsonl.zst" TOKENIZER=tokenizer.json   nextlong against bench/handwritten.py

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := .ci/install $(VENV)

.PHONY: demo train-demo evaluate-demo test lint docs bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	$(BIN)/nextlong demo

# The short recipe's sequences of 4,096 tokens train in a minute or two on two cores.
train-demo: demo $(VENV)/.models
	$(BIN)/nextlong run nextlong-demo/demo.yaml --set name=rows --set run_dir=nextlong-demo/short --set compose.target_tokens=4096 --set compose.sequences=all --set chunk.max_chars=512
	test -e nextlong-demo/train.yaml || $(BIN)/nextlong train init nextlong-demo/train.yaml --data nextlong-demo/short@rows --preset tiny
	$(BIN)/nextlong train nextlong-demo/train.yaml

evaluate-demo: $(VENV)/.models
	$(BIN)/python examples/evaluate_demo.py

# Two processes, on two cores. Bytecode is kept, whatever the environment says: tests start a hundred interpreters.
test: lint
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	$(BIN)/sphinx-build --fail-on-warning --nitpicky --keep-going --quiet docs docs/_build
	@echo 'open docs/_build/index.html'

bench: $(VENV)/.bench
	@test -n "$(CORPUS)" -a -n "$(TOKENIZER)" || { echo 'say: make bench CORPUS="FILES" TOKENIZER=tokenizer.json'; exit 2; }
	PYTHONDONTWRITEBYTECODE= $(BIN)/python bench/pipeline.py --corpus $(CORPUS) --tokenizer $(TOKENIZER) --out .bench $(BENCH)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "nextlong needs Python 3.11 or newer; say: make PYTHON=python3.12 …"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.core

# Torch first and by exact version: anything else would bring another build along.
$(VENV)/.models: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable '.[evaluate,train]'
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) .bench dist docs/_build nextlong-demo nextlong-evaluate-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
