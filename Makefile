# The most used commands; docs/testing.md has the others. A target makes its needs first. Nothing outside this folder
# changes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml constraints.txt cpp_cache/CMakeLists.txt $(filter-out cpp_cache/tests/% cpp_cache/dataplane_tests/%,$(wildcard cpp_cache/*/*.h cpp_cache/*/*.cpp))

# Three workers for two cores, because tests mostly wait for their daemons.
WORKERS ?= $(shell echo $$((($$(nproc) * 3 + 1) / 2)))
# The distribution of tests to workers, in pytest-xdist's words.
DIST ?= loadfile

.PHONY: demo install dev test test-slow lint types format stubs docs wheel wheel-use clean

demo: $(VENV)/installed
	@$(BIN)/tasuki demo

# The needs of `.venv/bin/tasuki` alone.
install: $(VENV)/installed

# With the development tools of tests, linters, `scripts` and `bench`.
dev: $(VENV)/dev-installed

# All tests of a file run in one process, because they may share daemons. Files run in listed order, because files
# with the most tests are not the longest. Each torch uses one core. Sources are compiled once, for the hundred
# interpreters of the tests.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist $(DIST) --no-loadscope-reorder
test test-slow: export OMP_NUM_THREADS ?= 1
test test-slow: export PYTHONDONTWRITEBYTECODE :=
# UCX's memory hooks keep its cache of registrations true. TCP has no registrations. Placing the hooks costs each
# process with NIXL a third of a second of a core. `make test-slow` has them, as nodes do.
test: export UCX_MEM_MMAP_HOOK_MODE ?= none

test: $(VENV)/dev-installed
	$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

# Sweeps, soaks and loads: minutes each.
test-slow: $(VENV)/dev-installed
	$(PYTEST) -m slow $(PYTEST_ARGS)

lint: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find cpp_cache -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format --dry-run --Werror

types: $(VENV)/dev-installed
	$(BIN)/mypy

format: $(VENV)/dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find cpp_cache -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format -i

# The generator needs an older protobuf than the daemons, so it has its own environment.
stubs: .venv-stubs/installed
	.venv-stubs/bin/python proto/generate.py

.venv-stubs/installed: proto/generate.py
	$(PYTHON) -m venv .venv-stubs
	.venv-stubs/bin/pip install --progress-bar off -q "grpcio-tools==$$(sed -n 's/^TOOLS = "\(.*\)"/\1/p' proto/generate.py)" 'setuptools<81'
	@touch $@

# The documentation as a site in build/site. A broken link or page fails.
docs: $(VENV)/dev-installed
	$(BIN)/python -m scripts.clients.install docs
	NO_MKDOCS_2_WARNING=1 build/clients/docs/bin/python -m mkdocs build -q

# A wheel in dist/, for this machine's Python and for Linux machines with its C library or a newer one. It uses the
# finished build: seconds. `auditwheel show` lists its libraries and their versions.
wheel: $(VENV)/installed
	$(BIN)/pip install --progress-bar off -q -c constraints.txt auditwheel
	rm -f dist/tasuki-*-linux_*.whl
	$(BIN)/pip wheel --progress-bar off -q --no-deps --no-build-isolation -w dist .
	$(BIN)/auditwheel show dist/tasuki-*-linux_*.whl

# The wheel, installed into an empty environment. A node of the embedded model answers from there.
wheel-use: wheel
	$(BIN)/python -m scripts.first_build.wheel_use dist/tasuki-*-linux_*.whl

clean:
	rm -rf $(VENV) .venv-stubs build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# pip's output goes to a file, and to the screen if pip fails.
INSTALL_LOG := build/install.log
STEP = @$(PYTHON) -m scripts.first_build.logged_step $(INSTALL_LOG)
NEEDS = @command -v $(PYTHON) >/dev/null || { echo "tasuki: $(PYTHON) is not there: install Python 3.11 or newer" >&2; exit 1; }; \
	$(PYTHON) -m scripts.first_build.needs $(VENV)
PIP = $(BIN)/pip --disable-pip-version-check

# torch is installed first and pinned, so no other package installs another build.
$(VENV)/torch:
	$(NEEDS)
	@mkdir -p build && rm -f $(INSTALL_LOG)
	$(STEP) "making $(VENV)" -- $(PYTHON) -m venv $(VENV)
	@torch='$(TORCH_ARGS)'; [ -n "$$torch" ] || torch=$$($(PYTHON) -m scripts.first_build.torch_choice); \
	$(PYTHON) -m scripts.first_build.logged_step $(INSTALL_LOG) "downloading and installing torch, the largest part" -- \
	  $(PIP) install --progress-bar off -c constraints.txt torch $$torch
	@touch $@

$(VENV)/installed: $(VENV)/torch $(SOURCES)
	$(NEEDS)
	@$(BIN)/python -m scripts.first_build.requirements pyproject.toml > build/requirements.txt
	$(STEP) "downloading and installing what tasuki needs" -- $(PIP) install --progress-bar off -c constraints.txt \
	  ninja cmake -r build/requirements.txt
	$(STEP) "compiling the C++ part, a minute or two of two cores" -- $(PIP) install -v --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/dev-installed: $(VENV)/installed
	@echo "tasuki: installing the development tools"
	$(BIN)/pip install --progress-bar off -q --upgrade 'pip>=25.1'
	$(BIN)/pip install --progress-bar off -q -c constraints.txt --group dev
	@touch $@
