# Two commands do all the set-up: make demo, make test.
.DEFAULT_GOAL := help
# What pytest makes of a module is kept: made anew it costs each worker seconds.
export PYTHONDONTWRITEBYTECODE :=
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
TESTS ?= tests
# `make test` leaves tests marked `night` to `make test-all`, and of a test marked `sampled` most cases.
MARKS = not night
PYTEST = $(BIN)/python -m pytest -q -rs -m "$(MARKS)"
IN_THE_IMAGE := $(shell find Dockerfile.ubuntu .dockerignore LICENSE README.md pyproject.toml requirements.txt images installer tests/image tests/engines/payload.py tests/engines/stand_in.c -type f -not -name '*.pyc')
# Debian's Python has no ensurepip: pip's wheel comes into .venv by Python's own library, and nothing is installed on the machine.
VENV_OF_A_BARE_PYTHON := echo "fetching pip (2 MB), which this Python lacks"; $(PYTHON) -m venv --without-pip .venv && wheel=$$($(PYTHON) -m tests.support.pip_wheel .venv) && $(BIN)/python "$$wheel/pip" --quiet --disable-pip-version-check install --no-index "$$wheel" && rm "$$wheel"

.PHONY: demo test test-all night-of format lint types unit engines image test-node test-gpu gpu-bundle lock sbom pin torture mutants sample bench golden fresh first-hour help clean

demo: .venv/.runtime  ## the main job in a throw-away root: no root rights, no engine
	@$(BIN)/toolkit-installer demo

test: format lint types unit image engines  ## each law once, one version of an engine, one story of a node: 12 to 25 minutes

test-all: MARKS =
test-all: test  ## every case, every version, every story, but not the torture: about forty minutes

night-of: .venv/.dev  ## a sixteenth of the engine tests that make test leaves to the night: PART=0 to 15; without a word the one whose turn it is
	@.ci/night-of "$(PART)"

format: .venv/.dev  ## the code is formatted
	$(BIN)/ruff format --check .

lint: .venv/.dev  ## the linters are content
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/hadolint Dockerfile.*
	$(BIN)/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github

types: .venv/.dev  ## the types hold
	$(BIN)/mypy

unit: .venv/.dev  ## fast tests: no root rights, no engine
	$(PYTEST) --durations 20 --numprocesses 4 --dist worksteal --ignore=tests/engines $(TESTS)

# Nine at a time, for many of them wait; and handed out one by one, so that the long ones, which come first, end in time.
engines: build/.image  ## real containerd, dockerd and systemd, and the image as the DaemonSet's pod: needs root on Debian
	$(PYTEST) --durations 20 --numprocesses 9 --dist load --maxschedchunk 1 tests/engines

fresh: .venv/.dev  ## demo and unit tests on Debians that have only what the README asks for: needs root on Debian
	@$(BIN)/python -m tests.fresh

first-hour: .venv/.dev  ## as much of that as takes a few minutes: one Debian, the tests for which something is fetched
	@$(BIN)/python -m tests.fresh first-hour

torture: .venv/.dev mutants sample  ## ten minutes of spoilt input, every kill point, fault and power failure, every version of every engine, a thousand random lives for each: hours
	FUZZ_S=600 $(BIN)/python -m pytest -q tests/fuzz
	CRASH_STRIDE=1 SUPERVISOR_POINTS=1000 EXAMPLES=3000 SEQUENCES=1000 $(BIN)/python -m pytest -q --numprocesses 2 tests/crash tests/config_text
	EFFECTS=1000 $(BIN)/python -m pytest -q --numprocesses 2 tests/engines/test_effects.py
	VERSIONS=all $(BIN)/python -m pytest -q -rs --numprocesses 3 tests/engines
	DOCKER_STRIDE=1 $(BIN)/python -m pytest -q --numprocesses 2 tests/engines/test_docker_reload.py

mutants: .venv/.dev  ## each guard is taken away in turn, and a test has to turn red: needs root on Debian
	$(BIN)/python -m tests.mutants

sample: .venv/.mutation  ## sixty mutants at random: the fast tests see nine of ten; an hour or two
	$(BIN)/python -m tests.mutants.sample

image: .venv/.dev  ## builds the image of Dockerfile.ubuntu on a Debian base, without a registry: needs root on Debian
	@$(BIN)/python -m tests.image

test-node: build/.image  ## of the engines' tests only those of that image as the DaemonSet's pod: needs root on Debian
	$(PYTEST) --numprocesses 2 tests/engines/node

test-gpu: .venv/.dev  ## containers of runc, containerd and Docker reach the GPU: needs root on Debian, a GPU with its driver, runc, the toolkit in TOOLKIT_SOURCE
	@status=0; $(BIN)/python -m tests.gpu || status=1; $(BIN)/python -m tests.gpu.engines || status=1; exit $$status

gpu-bundle: .venv/.dev  ## the same engines for a bare machine with a GPU and no network, in parts that travel one by one: needs root on Debian
	@$(BIN)/python -m tests.gpu.pack

lock: .venv/.dev  ## write the sums of the image's Python packages, from pyproject.toml and constraints.txt
	@$(BIN)/python images/lock

sbom: .venv/.sbom  ## write the bill of materials of the image's Python packages, from requirements.txt
	@$(BIN)/cyclonedx-py requirements requirements.txt --pyproject pyproject.toml --output-reproducible --output-file images/sbom.cdx.json

pin:  ## write digests of the bases and sums of NVIDIA's packages, where a registry can be reached
	@images/pin

bench: .venv/.dev  ## every row of the numbers table, beside its limit; PARTS="node nri" for some: a quiet machine, half an hour
	$(BIN)/python -m benchmarks $(PARTS)

golden: .venv/.dev  ## rewrite all golden texts, the generated documents included; read the diff
	GOLDEN=1 $(BIN)/python -m pytest -q tests/change/test_golden.py $$(grep -rl --include='test_*.py' tests.support.golden tests)

help:  ## list targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

clean:  ## remove what the other targets made
	rm -rf .venv .cache build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

build/.image: .venv/.dev $(IN_THE_IMAGE)
	@$(BIN)/python -m tests.image

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@echo "making .venv"
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv .venv; else $(VENV_OF_A_BARE_PYTHON); fi
	@touch $@

.venv/.runtime: .venv/.made pyproject.toml constraints.txt
	@echo "installing the program with its packages and what builds them (6 MB) into .venv" && $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . && touch $@

.venv/.mutation: .venv/.dev
	@echo "installing the maker of mutants" && $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[mutation]' && touch $@

.venv/.sbom: .venv/.dev
	@echo "installing the maker of the bill" && $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[sbom]' && touch $@

.venv/.dev: .venv/.made pyproject.toml constraints.txt
	@echo "installing the program, its tests and linters (160 MB) into .venv" && $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' && touch $@ .venv/.runtime
