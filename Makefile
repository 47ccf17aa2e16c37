# `make run` and `make test` need only Python 3.11 or newer (tested up to 3.13) and make: they create
# the virtual environment .venv, install into it and do the job. What is installed is not installed
# again.

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= python3
EXPERIMENT ?= nmr-relax
# Two workers; the tests of one file stay in one worker and share its fixtures.
PYTEST_ARGS ?= -n 2 --dist loadfile

# Parallelism is over processes. More threads than cores only slow each other down.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

SOURCES := pyproject.toml setup.py constraints.txt

.PHONY: run test slow lint format types docs wheel clean help
.DEFAULT_GOAL := help

help:
	@echo "make run     train, evaluate and report the experiment $(EXPERIMENT) (about 4 minutes)"
	@echo "make test    the test suite (about 12 minutes on two cores)"
	@echo "make slow    the tests that take minutes"
	@echo "make lint    ruff: rules and layout       make format  repairs both"
	@echo "make types   mypy, strict"
	@echo "make docs    the documentation, into site/"
	@echo "make wheel   the wheel, into dist/"
	@echo "make clean   removes what was built; keeps .venv and runs"

run: $(VENV)/.installed-run
	$(BIN)/palestra run $(EXPERIMENT) --set runs=1

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow -x

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# An editable installation maps palestra onto folders of other names, which mypy does not follow.
types: $(VENV)/.installed-dev
	rm -rf build/types build/lib build/bdist.*
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/types .
	$(BIN)/mypy -p palestra

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(VENV)/.installed-dev
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(VENV)/.installed-run: $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[train,report]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "palestra needs Python 3.11 or newer, and '$(PYTHON)' was not found." >&2; \
	  echo "Install it, or name one: make run PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "palestra needs Python 3.11 or newer; '$(PYTHON)' is `$(PYTHON) --version 2>&1`." >&2; \
	  echo "Install a newer one, or name it: make run PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating the virtual environment $(VENV). The first installation takes a few minutes."
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Python could not create a virtual environment." >&2; \
	  echo "On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@touch $@
