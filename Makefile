# Two commands are all that a new user needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BIN    := $(VENV)/bin

.PHONY: demo test check lint types imports gentl install clean

demo: install  ## Run the whole instrument on the simulated camera until Ctrl-C (ARGS="--snapshots 20 --no-browser")
	$(BIN)/sci-stream demo $(ARGS)

test: install  ## Install what is needed and run the tests (ARGS="-m slow" for the long ones)
	$(BIN)/python -m pytest $(ARGS)

check: lint types imports  ## Everything that reads the code without running it

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

gentl: install  ## Build the simulated camera that any GenICam program opens, and render what it films
	$(BIN)/python -m sci_stream_drivers.gentl_sim build
	$(BIN)/python -m sci_stream_drivers.gentl_sim render --rig deploy/rigs/simulated-live.toml

install: $(VENV)/.installed

# The constraints pin every version, so that the install is the same tomorrow; pyproject.toml states the honest ranges.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build/gentl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
