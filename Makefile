# Two commands are all that a new user needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BIN    := $(VENV)/bin

.PHONY: commits lock audit demo test test-all test-lab test-gentl test-modulators test-cameras test-bridges test-long test-lowest test-newest check lint types imports scripts docs gentl install clean

# Without the tools of developers, which take 2 GB, unless they are installed already.
demo: $(if $(wildcard $(VENV)/.installed),install,$(VENV)/.demo)  ## Run the whole instrument on the simulated camera until Ctrl-C (ARGS="--snapshots 20 --no-browser")
	PYTHONDONTWRITEBYTECODE= $(BIN)/sci-stream demo $(ARGS)

# One thread for each process: threads of several processes that wait for each other make solves many times slower.
# Hundreds of processes import this package: its bytecode is kept, whatever the environment says.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

# Tests marked `rig` wait as much as they compute: four at a time keep two cores busy.
test: install  ## Every test of the instrument but the long ones
	$(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder tests $(ARGS)

test-all: test test-lab test-gentl test-modulators test-cameras test-bridges  ## And those of the other distributions in this repository

test-lab: install  ## Tests of the laboratory
	$(PYTEST) -n 3 --dist worksteal lab/tests $(ARGS)

test-gentl: install  ## The simulated GenTL camera, and the instrument on it; needs g++
	$(PYTEST) -n 5 --dist loadfile --no-loadscope-reorder drivers/gentl_sim/tests $(ARGS)

# In one process: a GigE camera listens at one UDP port.
test-cameras: install  ## Aravis' fake GigE camera and pylon's emulator; the latter skipped where its wheel of 88 MB cannot be had
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable './drivers/cameras[pylon]' \
		|| echo "pylon's emulator is skipped: pypylon cannot be installed here, for the reason above"
	$(PYTEST) -n 0 drivers/cameras/tests $(ARGS)

test-modulators: install  ## Makers' mask modulators against fakes; needs gcc
	$(PYTEST) -n 2 --dist loadfile drivers/modulators/tests $(ARGS)

test-bridges: $(VENV)/.bridges  ## napari, EPICS, Bluesky, deepinv and Dask, against the real libraries
	$(PYTEST) -n 2 --dist loadfile bridges/tests $(ARGS)

test-long: install  ## The long tests: about an hour
	$(BIN)/python -m pytest -m slow tests lab/tests drivers/gentl_sim/tests bridges/tests $(ARGS)

# Newer releases of other packages deprecate what the oldest use: their warnings are not ours.
test-lowest:  ## Files, configuration and commands with the oldest versions that pyproject.toml allows (PYTHON=python3.11)
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-lowest.txt \
		--editable '.[reconstruct,compression,video,export,genicam]' --editable './bridges[batch,epics]' pytest pytest-timeout hypothesis httpx scipy pyyaml psutil packaging
	.venv-lowest/bin/python -m pytest -W ignore::DeprecationWarning tests/files tests/recording tests/wire tests/test_config.py tests/cli tests/imaging tests/web \
		tests/tools/test_replay_jobs.py bridges/tests/test_batch.py bridges/tests/test_epics.py

# CI runs it with the newest Python that it has; `make test` runs with the oldest, 3.11.
test-newest:  ## Files, messages, configuration and solves with another Python (PYTHON=python3.13)
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[reconstruct,compression,video,export,genicam]' pytest pytest-timeout pytest-xdist hypothesis httpx scipy pyyaml psutil packaging
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -n 2 tests/files tests/wire tests/test_config.py tests/imaging tests/recon/test_engine.py

# Files of every package with their hashes, for the images; the versions are those of constraints.txt.
LOCK := $(BIN)/uv pip compile --quiet --no-annotate --generate-hashes --python-version 3.12 --no-header \
	--python-platform x86_64-manylinux_2_28 --constraint constraints.txt
EXTRAS := --extra compression --extra genicam --extra export

lock: install  ## Renew the hashed requirements of the images after a change of constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOCK) $(EXTRAS) pyproject.toml --output-file deploy/container/requirements.txt
	$(LOCK) $(EXTRAS) --extra reconstruct pyproject.toml --output-file deploy/container/requirements-cuda.txt
	echo 'hatchling>=1.26' | $(LOCK) - --output-file deploy/container/requirements-build.txt

# Strict: where the database cannot be reached, nothing is audited, and that must not pass.
audit: install  ## Look up known vulnerabilities of every package that the images contain
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement deploy/container/requirements-cuda.txt

check: lint types imports scripts  ## Everything that reads the code without running it

commits: install  ## Each of the last ten commits is green by itself
	.ci/commits

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config lab/pyproject.toml

scripts: node_modules/.installed  ## Types and mistakes in the scripts of the pages; needs npm
	node_modules/.bin/tsc
	node_modules/.bin/eslint sci_stream/web/static

docs: install  ## Build the documentation site into build/site
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict

gentl: install  ## Build the simulated camera that any GenICam program opens, and render what it films
	$(BIN)/python -m sci_stream_gentl_sim build
	$(BIN)/python -m sci_stream_gentl_sim render --rig deploy/rigs/simulated-live.toml

install: $(VENV)/.installed

node_modules/.installed: package.json
	npm install --no-package-lock --no-audit --no-fund --silent
	@touch $@

# The constraints pin every version, so that the install is the same tomorrow; pyproject.toml states the honest ranges.
$(VENV)/.installed: pyproject.toml lab/pyproject.toml drivers/gentl_sim/pyproject.toml drivers/modulators/pyproject.toml drivers/cameras/pyproject.toml bridges/pyproject.toml testing/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[dev]' --editable './lab[onnx]' --editable drivers/gentl_sim --editable './drivers/modulators[test]' --editable './drivers/cameras[aravis]' --editable ./bridges --editable ./testing
	@touch $@

# On Linux, PyPI's torch brings libraries of CUDA, 2 to 3 GB: without an NVIDIA driver the build for processors is taken, from
# its own index if that can be reached. Only modules that are imported are compiled to bytecode: all of them would take 160 MB
# and 20 s. The tests of torch itself, another 120 MB, are of no use here.
TORCH_CPU := https://download.pytorch.org/whl/cpu

$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	@command -v nvidia-smi >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --retries 0 --timeout 10 \
		--constraint constraints.txt --index-url $(TORCH_CPU) torch 2>/dev/null || true
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[reconstruct,video]'
	@rm -rf $(VENV)/lib/python*/site-packages/torch/test $(VENV)/lib/python*/site-packages/torch/bin/test_*
	@touch $@

$(VENV)/.bridges: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable './bridges[batch,napari,epics,ophyd,deepinv,nwb,micromanager]' mm-test-adapters
	@touch $@

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest build/gentl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache node_modules
