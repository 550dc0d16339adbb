# make demo and make test each do all their own set-up; both are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

WARM = echo "== compiling the hot loops, once" && $(BIN)/meshmend plan 4x4 -chip@1,1 --json $(VENV)/warm.json > /dev/null \
	&& $(BIN)/meshmend verify $(VENV)/warm.json > /dev/null

.PHONY: help demo test test-gpu test-jobs test-busy explore coverage lint bench peers tpu paper pictures docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      train on 4 workers, kill some of them, and compare the weights bit for bit"
	@echo "make test      style, types, and all tests but those of test-jobs and explore"
	@echo "make coverage  the same tests, and what of the code they run, in all processes (half an hour)"
	@echo "make test-busy make test five times in a row beside four busy loops (an hour)"
	@echo "make test-jobs more whole jobs of real processes, several hosts, the demo (ten minutes; hosts need root)"
	@echo "make test-gpu  sums in device memory, on a machine with an NVIDIA card (a minute)"
	@echo "make explore   every single failure, every pair and 20,000 random schedules in the simulator (an hour)"
	@echo "make bench     the figures of docs/ on this machine (long)"
	@echo "make peers     compare with DDP, torchft, torchrun and bare mpi4py on the same work (20 minutes)"
	@echo "make tpu       compile the all-reduce for real TPUs with Google's compiler, and read the programs (some minutes)"
	@echo "make paper     compute the simulated tables and charts of docs/results again (some minutes)"
	@echo "make pictures  draw the pictures of README and docs again"
	@echo "make docs      the documentation as a site in site/, with all links checked (a minute)"
	@echo "make clean     remove the virtual environment and caches"

$(BIN)/python:
	@echo "== making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: pyproject.toml | $(BIN)/python
	@echo "== installing meshmend and what the demo needs (a minute the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@$(WARM)
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	@echo "== installing meshmend and what its tests need (some minutes the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(WARM)
	@touch $@ $(VENV)/run.stamp

demo: $(VENV)/run.stamp
	$(BIN)/meshmend demo

lint: $(VENV)/dev.stamp
	@echo "== style and types"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	@echo "== tests"
	$(BIN)/python -m pytest -n auto

coverage: $(VENV)/dev.stamp
	@rm -rf .coverage && mkdir .coverage
	$(BIN)/python -m coverage run -m pytest -n auto
	@echo "== what the tests ran (python -m tests.covered --holes names what they did not)"
	@$(BIN)/python -m tests.covered

test-busy: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/busy.py

test-jobs: $(VENV)/dev.stamp
	@echo "== more whole jobs of real processes, killed for real"
	$(BIN)/python -m pytest -m jobs -n 2

test-gpu: $(VENV)/dev.stamp
	@echo "== on the card"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gpu]'
	$(BIN)/python -m pytest -m gpu -n 0 -v

explore: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m explore -n auto -v

bench: $(VENV)/run.stamp
	$(BIN)/python benchmarks/plans.py
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/fleet.py
	$(BIN)/python benchmarks/meshsums.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/starts.py
	$(BIN)/python benchmarks/rejoin.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/chaos
	$(BIN)/python benchmarks/xla.py

peers:
	$(PYTHON) benchmarks/peers/run.py

# Google's compiler is large and under terms of its own: it gets an environment of its own, and nothing depends on it.
$(VENV)-tpu/stamp: pyproject.toml
	@echo "== installing meshmend and libtpu in $(VENV)-tpu (some minutes the first time)"
	$(PYTHON) -m venv $(VENV)-tpu
	$(VENV)-tpu/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[jax]' libtpu
	@touch $@

tpu: $(VENV)-tpu/stamp
	$(VENV)-tpu/bin/python benchmarks/tpu.py --into docs/results/tpu.md

paper: $(VENV)/run.stamp
	$(BIN)/python benchmarks/paper.py

pictures: $(VENV)/run.stamp
	$(BIN)/python docs/pictures.py

docs: $(VENV)/run.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) $(VENV)-tpu site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis demo.png runs benchmarks/peers/.envs
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
