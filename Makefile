# The whole developer interface. Targets make what they need; nothing outside this folder is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml constraints.txt cpp_cache/CMakeLists.txt $(filter-out cpp_cache/tests/% cpp_cache/dataplane_tests/%,$(wildcard cpp_cache/*/*.h cpp_cache/*/*.cpp))

SECONDS ?= 3600
REQUESTS ?= 10000
SAMPLE ?= 150
# Three for two cores: much of a test is waiting for its daemons.
WORKERS ?= $(shell echo $$((($$(nproc) * 3 + 1) / 2)))
TRACES ?= ../shared/traces

.PHONY: demo install test test-slow goldens load clients clients-ci docs ray-test soak soak-cache soak-tiers lost-links sweep bench-cache bench-traces bench-fleet bench-planner fleet-hardware fuzz-cache fuzz-cache-guided lint format types stubs screenshots kernels clean boards lint-proto mutate attack calls budgets schemas sanitize quiet-health chat-cost wheel wheel-use wheels image gpu suites benchmarks

demo: $(VENV)/installed
	@$(BIN)/tasuki demo

# All that `.venv/bin/tasuki` needs, and nothing else.
install: $(VENV)/installed

# A file in one of the processes: a file's tests may share daemons. Files come as they are listed, since those with
# the most tests are not the longest. Each torch keeps to its core. Sources are compiled once, whatever the caller's
# shell says, for the hundred interpreters that tests start.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
test test-slow: export OMP_NUM_THREADS ?= 1
test test-slow: export PYTHONDONTWRITEBYTECODE :=
# UCX's memory hooks keep its cache of registrations true, which TCP has none of. To place them takes each process that
# loads NIXL a third of a second of a core. `make test-slow` has them, as nodes do.
test: export UCX_MEM_MMAP_HOOK_MODE ?= none

test: $(VENV)/dev-installed
	$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

# Sweeps, soaks, loads and what is built for them: minutes each.
test-slow: $(VENV)/dev-installed
	$(PYTEST) -m slow $(PYTEST_ARGS)

# Peers live in environments of their own under build/peers/.
bench-cache: $(VENV)/installed
	$(BIN)/python bench/cache/main.py $(BENCH_ARGS)

# Replays TRACES under every policy: a table, JSON and a plot in docs/results. Needs the zstd program.
bench-traces: $(VENV)/installed
	$(BIN)/python -m tasuki.bench.replay.developer_traces --traces $(TRACES)

# Plays a trace through simulated fleets of 4 to 1,000 nodes: tables and JSON. BENCH_ARGS="--table 16" makes one of
# them; all take hours on one core, and that of 1,000 nodes 14 GiB.
bench-fleet: $(VENV)/installed
	$(BIN)/python -m tasuki.bench.fleet.tables $(TRACES)/claude_code_dev.jsonl.zst --out docs/results/fleet.jsonl $(BENCH_ARGS)

# Days of requests under the planner, and under an oracle that knows them: a table and JSON. Half an hour of a core.
bench-planner: $(VENV)/installed
	$(BIN)/python -m tasuki.bench.fleet.planner.main --out docs/results/planner.jsonl $(BENCH_ARGS)

# Recorded runs of agents on GPUs, and the simulator at the same workload. Needs no GPU; seconds.
fleet-hardware: $(VENV)/dev-installed
	$(BIN)/tasuki bench page docs/results/serving_gpu.jsonl --split build/serving_gpu
	$(BIN)/python -m scripts.fleet_hardware build/serving_gpu/*agents*.json --out docs/results/fleet_hardware.json

fuzz-cache: $(VENV)/dev-installed
	$(BIN)/python bench/cache/fuzz.py $(FUZZ_ARGS)

# The same calls, drawn from bytes that atheris (libFuzzer) chooses.
fuzz-cache-guided: $(VENV)/dev-installed
	$(BIN)/pip install -q 'atheris>=3'
	$(BIN)/python bench/cache/fuzz_guided.py -max_total_time=60 $(FUZZ_ARGS)

# What only a GPU can show: tests, then figures, each bounded; logs and a table in build/gpu. GPU_ARGS="--only
# tests,speculation" runs a part; what needs more GPUs than are here is left out.
gpu: $(VENV)/dev-installed
	$(BIN)/python -m scripts.gpu $(GPU_ARGS)

# Random requests and faults against real daemons; SEED=... asks and breaks the same things again.
soak: $(VENV)/dev-installed
	$(BIN)/python -m scripts.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# A stream of new requests while links are cut, half-open and silent: each is answered, and right.
lost-links: $(VENV)/dev-installed
	$(BIN)/python -m scripts.lost_links --requests $(REQUESTS) $(if $(SEED),--seed $(SEED))

# SIGKILL at every place and every window of a hand-over, on both sides, with real daemons.
sweep: $(VENV)/dev-installed
	$(BIN)/python -m scripts.sweep

# Random lives of the cache's tree against its oracle, with every invariant checked at every step.
soak-cache: $(VENV)/dev-installed
	$(BIN)/python -m scripts.soak_cache --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Loads from host memory below the arena while copies fail: a million in ids and bytes, ten thousand with forwards;
# exit status 1 on a wrong byte or token. TIERS_ARGS="--copies 100000 --loads 1000" is minutes.
soak-tiers: $(VENV)/dev-installed
	$(BIN)/python -m scripts.tiers $(TIERS_ARGS) $(if $(SEED),--seed $(SEED))

# Checkpoints of random weights and transformers' answers to them, equal byte by byte to those kept.
goldens: $(VENV)/dev-installed
	$(BIN)/python -m scripts.clients.install goldens
	build/clients/goldens/bin/python -m scripts.goldens $(GOLDENS_ARGS)

# What strangers, tenants and rogue peers do to a pair of real daemons: a table of attacks, exit status 1
# on a finding; SEED=... draws the same again. 600 seconds unless SECONDS says otherwise.
attack: $(VENV)/dev-installed
	$(BIN)/python -m scripts.attack --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS)) $(if $(SEED),--seed $(SEED))

# Random tool calls over random schemas, cut at every letter and damaged: minutes, where `make test`
# has some of them.
calls: $(VENV)/dev-installed
	TASUKI_CALLS=200 $(PYTEST) tests/server/test_call_properties.py

# Random requests with thinking budgets: minutes, where `make test` has some of them.
budgets: $(VENV)/dev-installed
	TASUKI_BUDGETS=1000 $(PYTEST) tests/engine/test_random_budgets.py

# Answers under 5,000 random schemas, each judged by jsonschema: five minutes.
schemas: $(VENV)/dev-installed
	TASUKI_SCHEMAS=5000 $(PYTEST) -m slow tests/engine/test_random_schemas.py

# The C++ part under ASan and UBSan: its unit tests, then random lives of the tree. Needs doctest-dev.
sanitize: $(VENV)/dev-installed
	$(BIN)/python -m scripts.sanitize --seconds $(if $(filter file,$(origin SECONDS)),600,$(SECONDS)) $(if $(SEED),--seed $(SEED))

# Small wrong changes, one at a time, in a copy of the tree: do the tests next to each notice? A seeded
# sample, which goes on where it was stopped; needs doctest-dev.
mutate: $(VENV)/dev-installed
	$(BIN)/python -m scripts.mutate --seconds $(SECONDS) --sample $(SAMPLE) $(if $(SEED),--seed $(SEED)) \
	  $(if $(RESULTS),--results $(RESULTS))

# Many conversations at once on a pair: no turn may be lost and memory stays flat.
load: $(VENV)/dev-installed
	$(BIN)/python -m scripts.load $(LOAD_ARGS)

# Clients that others wrote, each in an environment of its own under build/clients.
clients: $(VENV)/dev-installed
	$(BIN)/python -m scripts.clients $(CLIENTS_ARGS)

# Benchmark tools that others wrote, against answers of known timing: each one's figures beside the truth.
benchmarks: $(VENV)/dev-installed
	$(BIN)/python -m scripts.clients.benchmarks $(BENCH_ARGS)

# Test suites of other projects, which SUITES holds, against real nodes: a table with the class of each failure; exit
# status 1 on one that is ours or has none. ONLY=openresponses runs one of them, FILE=... a file of it, unrecorded.
SUITES ?= ../suites
suites: $(VENV)/dev-installed
	$(BIN)/python -m scripts.suites $(SUITES) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(FILE),--file $(FILE),--out docs/results/suites.json)

# Those that the tests run: a client, and axe, which judges the pages. Needs npm.
clients-ci: $(VENV)/dev-installed
	$(BIN)/python -m scripts.clients.install trie axe

# The documentation as a site in build/site; what is broken in it fails.
docs: $(VENV)/dev-installed
	$(BIN)/python -m scripts.clients.install docs
	NO_MKDOCS_2_WARNING=1 build/clients/docs/bin/python -m mkdocs build -q

# Nodes on a Ray cluster of several machines, all of them this one.
ray-test: $(VENV)/dev-installed
	$(BIN)/python -m scripts.clients.install ray
	build/clients/ray/bin/python -m pytest tests/cli/test_ray.py

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

# The generator wants an older protobuf than the daemons run on, so it has an environment of its own.
stubs: .venv-stubs/installed
	.venv-stubs/bin/python proto/generate.py

.venv-stubs/installed: proto/generate.py
	$(PYTHON) -m venv .venv-stubs
	.venv-stubs/bin/pip install --progress-bar off -q "grpcio-tools==$$(sed -n 's/^TOOLS = "\(.*\)"/\1/p' proto/generate.py)" 'setuptools<81'
	@touch $@

# Needs npm; buf is no Python package.
lint-proto:
	mkdir -p build/protos/tasuki/proto && cp proto/*.proto build/protos/tasuki/proto && cp buf.yaml build/protos
	npx --yes @bufbuild/buf@1.75.0 lint build/protos

# The pictures that the documents show: real nodes under load, in a real browser. Seven minutes.
screenshots: $(VENV)/dev-installed
	$(BIN)/python -m scripts.pictures docs/images

# Boards for Grafana and the reference of metrics, from the code.
boards: $(VENV)/dev-installed
	$(BIN)/python -m scripts.grafana
	$(BIN)/python -m tasuki.dashboard.metrics.metrics_reference > docs/metrics.md

# /health of a real node while the worst bodies are posted; exit status 1 over 50 ms. For a quiet machine.
quiet-health: $(VENV)/dev-installed
	$(BIN)/python -m scripts.quiet_health

# CPU time of a 402-message chat's first turn and of the next one; exit status 1 over 150 and 20 ms.
chat-cost: $(VENV)/dev-installed
	$(BIN)/python -m scripts.chat_cost $(CHAT_ARGS)

# Compiles every Triton kernel for sm_90 and sm_100, which needs no GPU; `make test` compares.
kernels: $(VENV)/dev-installed
	$(BIN)/python -m scripts.compile_kernels

# A wheel in dist/ for this machine's Python and for Linux machines with its C library or a newer one, from what is
# built already: seconds. `auditwheel show` says which libraries it needs, and of which age.
wheel: $(VENV)/installed
	$(BIN)/pip install --progress-bar off -q -c constraints.txt auditwheel
	rm -f dist/tasuki-*-linux_*.whl
	$(BIN)/pip wheel --progress-bar off -q --no-deps --no-build-isolation -w dist .
	$(BIN)/auditwheel show dist/tasuki-*-linux_*.whl

# The same, installed into an empty environment and used from there: a node of the embedded model answers.
wheel-use: wheel
	$(BIN)/python -m scripts.first_build.wheel_use dist/tasuki-*-linux_*.whl

# Wheels in dist/ that install without a compiler: manylinux, of each Python and of this machine's architecture, or of
# those in ARCHS (x86_64 aarch64; a foreign one needs qemu). Needs docker; pyproject.toml has the settings.
ARCHS ?= native
wheels: $(VENV)/dev-installed
	$(BIN)/pip install --progress-bar off -q 'cibuildwheel>=3,<4'
	$(BIN)/python -m cibuildwheel --platform linux --archs "$(ARCHS)" --output-dir dist

# The image that deploy/ names. Needs docker. TORCH_INDEX: where torch comes from; empty: PyPI, a CUDA build.
IMAGE ?= tasuki:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image:
	docker build -t $(IMAGE) --build-arg TORCH_INDEX="$(TORCH_INDEX)" -f deploy/Dockerfile .

clean:
	rm -rf $(VENV) .venv-stubs build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What pip says goes into a file, and to the screen where it fails.
INSTALL_LOG := build/install.log
STEP = @$(PYTHON) -m scripts.first_build.logged_step $(INSTALL_LOG)
NEEDS = @command -v $(PYTHON) >/dev/null || { echo "tasuki: $(PYTHON) is not there: install Python 3.11 or newer" >&2; exit 1; }; \
	$(PYTHON) -m scripts.first_build.needs $(VENV)
PIP = $(BIN)/pip --disable-pip-version-check

# torch comes first and pinned, so that nothing else pulls another build of it.
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
