# make demo and make test each do all their own set-up; both are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

WARM = echo "== compiling the hot loops, once" && $(BIN)/meshmend plan 4x4 -chip@1,1 --json $(VENV)/warm.json > /dev/null \
	&& $(BIN)/meshmend verify $(VENV)/warm.json > /dev/null

.PHONY: help demo test test-jobs lint bench pictures clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      plan an all-reduce round a hole: a map, the figures, a picture"
	@echo "make test      style, types and all tests"
	@echo "make test-jobs whole jobs of real processes, killed for real (a few minutes)"
	@echo "make bench     the figures of docs/planning.md on this machine"
	@echo "make pictures  the pictures of README and docs anew"
	@echo "make clean     remove the virtual environment and caches"

$(BIN)/python:
	@echo "== making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: pyproject.toml | $(BIN)/python
	@echo "== installing meshmend (a minute the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@$(WARM)
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	@echo "== installing meshmend and what its tests need (a minute the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(WARM)
	@touch $@ $(VENV)/run.stamp

demo: $(VENV)/run.stamp
	@echo "== a TPU-v3 half pod that lost a host: planning the gradient all-reduce round it"
	$(BIN)/meshmend plan tpu-v3-512 -4x2@6,12 --nbytes 102MB --draw demo.svg --json demo.json
	@echo "== proving the plan file, and the schedule made from it"
	$(BIN)/meshmend verify demo.json
	@echo "== open demo.svg to see it"

lint: $(VENV)/dev.stamp
	@echo "== style and types"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	@echo "== tests"
	$(BIN)/python -m pytest -n auto

test-jobs: $(VENV)/dev.stamp
	@echo "== whole jobs of real processes, killed for real"
	$(BIN)/python -m pytest -m jobs -n 2 tests/launch

bench: $(VENV)/run.stamp
	$(BIN)/python benchmarks/plans.py

pictures: $(VENV)/run.stamp
	$(BIN)/python docs/pictures.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo.svg demo.json
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
