# The commands of this repository. Each sets up what it needs; a second run sets up nothing and needs no network.

PYTHON ?= python3
PORT ?= 8000
MODEL ?= smollm2
PYTEST_ARGS ?= -n 2 --dist worksteal
ORACLE_PIP_ARGS ?=
FUZZ_SECONDS ?= 60
PEERS ?= llama-cpp
PEERS_ARGS ?=

VENV := .venv
ORACLE := .venv-oracle
STAMPS := .stamps
PY := $(VENV)/bin/python
ORACLE_PY := $(ORACLE)/bin/python
PIP_FLAGS := --retries 10 --timeout 60 --disable-pip-version-check --quiet
NATIVE_SOURCES := CMakeLists.txt $(shell find csrc -path csrc/tests -prune -o -path csrc/bench -prune -o -type f -print)
# An editable install knows the modules that were there when it was made: another list of files asks for another install.
MODULES := $(STAMPS)/modules-$(shell find src/trivium -name '*.py' | sort | cksum | cut -d' ' -f1)
CXX_SOURCES := CMakeLists.txt $(shell find csrc -type f)
DEFAULT_TIER := not oracle and not extras and not slow and not soak and not gpu

export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup serve test test-oracle full fuzz sanitize lint format types floors bench bench-peers docs snapshots test-cxx clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

# ---------------------------------------------------------------------------------------------------- environments

# install_in PYTHON PARTS: the requirements of these parts of pyproject.toml
define install_in
	$(1) tools/requirements.py $(2) | $(1) -m pip install $(PIP_FLAGS) $(3) -r /dev/stdin
endef

# build_in PYTHON FOLDER: trivium itself, editable; cmake comes as a package where the machine has none
define build_in
	command -v cmake >/dev/null || $(1) -m pip install $(PIP_FLAGS) cmake ninja
	$(1) -m pip install $(PIP_FLAGS) --no-build-isolation --no-deps -C build-dir=build/$(2) -C cmake.define.TRIVIUM_LEVELS=machine -e .
	@$(1) -c "from trivium.kernels import native; print('Trivium is set up:', native.describe())"
endef

$(MODULES):
	@mkdir -p $(STAMPS)
	@rm -f $(STAMPS)/modules-*
	@touch $@

$(STAMPS)/venv: tools/make_venv.sh
	@mkdir -p $(STAMPS)
	tools/make_venv.sh "$(PYTHON)" $(VENV)
	@touch $@

$(STAMPS)/core: $(STAMPS)/venv pyproject.toml
	$(call install_in,$(PY),build core)
	@touch $@

$(STAMPS)/app: $(STAMPS)/core $(NATIVE_SOURCES) $(MODULES)
	$(call build_in,$(PY),app)
	@touch $@

$(STAMPS)/dev: $(STAMPS)/app
	$(call install_in,$(PY),test dev)
	@touch $@

$(STAMPS)/fuzz: $(STAMPS)/dev
	$(call install_in,$(PY),fuzz)
	@touch $@

$(STAMPS)/docs: $(STAMPS)/app
	$(call install_in,$(PY),docs)
	@touch $@

$(STAMPS)/oracle: pyproject.toml tools/make_venv.sh $(NATIVE_SOURCES) $(MODULES)
	@mkdir -p $(STAMPS)
	tools/make_venv.sh "$(PYTHON)" $(ORACLE)
	$(call install_in,$(ORACLE_PY),build core test oracle clients bench,$(ORACLE_PIP_ARGS))
	$(call build_in,$(ORACLE_PY),oracle)
	@touch $@

# The default model, which the tests use too: fetched once, kept in the user's cache.
$(STAMPS)/model: $(STAMPS)/app
	$(VENV)/bin/trivium pull $(MODEL)
	@touch $@

setup: $(STAMPS)/app  ## make the environment and build the native kernels

# --------------------------------------------------------------------------------------------------------- running

serve: $(STAMPS)/app  ## serve the default model on 127.0.0.1, fetching it first (MODEL=, PORT=)
	$(VENV)/bin/trivium serve $(MODEL) --port $(PORT)

# --------------------------------------------------------------------------------------------------------- testing

test: $(STAMPS)/dev $(STAMPS)/model  ## the default tier: no torch, under 5 minutes
	$(PY) -m pytest -m "$(DEFAULT_TIER)" $(PYTEST_ARGS)

test-oracle: $(STAMPS)/oracle $(STAMPS)/model  ## with torch, LangChain, LiteLLM…: live comparison, goldens remade
	$(ORACLE_PY) -m pytest -m "(oracle or extras) and not soak" $(PYTEST_ARGS)

full: $(STAMPS)/dev $(STAMPS)/model sanitize  ## soaks, long state machines, fuzz, sanitizers: up to 90 minutes
	$(PY) -m pytest -m "not oracle and not extras and not gpu" $(PYTEST_ARGS)

fuzz: $(STAMPS)/fuzz  ## fuzz text, streams and grammars by coverage, a while each (FUZZ_SECONDS=60)
	@for name in $$($(PY) tests/fuzz/run.py list); do \
		echo "==== $$name"; $(PY) tests/fuzz/run.py $$name --seconds $(FUZZ_SECONDS) || exit 1; \
	done

sanitize: build/asan/trivium_tests build/tsan/trivium_tests  ## the C++ tests under ASan+UBSan, and TSan
	build/asan/trivium_tests
	build/tsan/trivium_tests

build/asan/trivium_tests: $(CXX_SOURCES)
	cmake -S . -B build/asan -DTRIVIUM_BUILD_PYTHON=OFF -DTRIVIUM_BUILD_TESTS=ON -DTRIVIUM_REQUIRE_NATIVE=ON -DTRIVIUM_SANITIZE=address,undefined
	cmake --build build/asan --parallel 2 --target trivium_tests
	@touch $@

build/tsan/trivium_tests: $(CXX_SOURCES)
	cmake -S . -B build/tsan -DTRIVIUM_BUILD_PYTHON=OFF -DTRIVIUM_BUILD_TESTS=ON -DTRIVIUM_REQUIRE_NATIVE=ON -DTRIVIUM_SANITIZE=thread
	cmake --build build/tsan --parallel 2 --target trivium_tests
	@touch $@

$(STAMPS)/cxx: $(CXX_SOURCES)
	@mkdir -p $(STAMPS)
	cmake -S . -B build/cxx -DTRIVIUM_BUILD_PYTHON=OFF -DTRIVIUM_BUILD_TESTS=ON -DTRIVIUM_REQUIRE_NATIVE=ON
	cmake --build build/cxx --parallel 2
	@touch $@

test-cxx: $(STAMPS)/cxx  ## the C++ tests alone
	build/cxx/trivium_tests

# --------------------------------------------------------------------------------------------------------- judging

lint: $(STAMPS)/dev  ## ruff, clang-format, import floors, file sizes
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	find csrc -name '*.h' -o -name '*.cpp' | xargs $(VENV)/bin/clang-format --dry-run --Werror
	$(VENV)/bin/lint-imports
	$(PY) tools/check_sizes.py

format: $(STAMPS)/dev  ## rewrite Python and C++ in the house format
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .
	find csrc -name '*.h' -o -name '*.cpp' | xargs $(VENV)/bin/clang-format -i

types: $(STAMPS)/dev  ## mypy, strict
	$(PY) -m mypy

floors: $(STAMPS)/dev  ## import floors alone
	$(VENV)/bin/lint-imports

docs: $(STAMPS)/docs  ## the documentation, warnings as errors
	$(VENV)/bin/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: $(STAMPS)/dev $(STAMPS)/model $(STAMPS)/cxx  ## kernels, scheduler, the whole engine offline; fails where a promise is missed
	@missed=; \
	for bench in build/cxx/trivium_bench_* "$(PY) -m benchmarks.scheduler_step" "$(PY) -m benchmarks.prefix_reuse" \
		"$(PY) benchmarks/cache_cost.py" "$(PY) benchmarks/native_step.py $(MODEL)" \
		"$(VENV)/bin/trivium bench offline $(MODEL)"; do \
		echo "==== $$bench"; $$bench || missed="$$missed\n  $$bench"; \
	done; \
	if [ -n "$$missed" ]; then printf "promises missed, see above and docs/performance.md:$$missed\n"; exit 1; fi

bench-peers: $(STAMPS)/dev $(STAMPS)/model  ## Trivium beside other engines, which are installed first (PEERS=, MODEL=)
	$(PY) -m benchmarks.peers install $(PEERS)
	$(PY) -m benchmarks.peers run --peers 'trivium $(PEERS)' --model $(MODEL) $(PEERS_ARGS)

snapshots: $(STAMPS)/dev  ## write the public surface, the references and the native stub anew
	$(PY) tools/make_snapshots.py
	$(PY) tools/options_reference.py
	$(PY) tools/http_reference.py
	$(PY) tools/grafana_dashboard.py
	$(PY) -m nanobind.stubgen -q -m trivium._C -o src/trivium/_C.pyi

clean:  ## remove environments, builds and caches of this folder (downloaded models stay)
	rm -rf $(VENV) $(ORACLE) $(STAMPS) build dist docs/_build .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
