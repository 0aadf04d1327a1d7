# One virtual environment, pinned by constraints.txt; `make pong` and `make test` are all that a fresh machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# A worker is given a whole file, so that what its tests share is made once; tests/conftest.py says which files are first.
# One more than there are processors: tests wait an eighth of their time, for processes and timeouts.
WORKERS := -n $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1))) --dist loadfile --no-loadscope-reorder
# Tests start hundreds of processes. Each would compile the package anew, half a second and more, where this is set.
unexport PYTHONDONTWRITEBYTECODE

CHECKS := style types tidy
.PHONY: pong cartpole test check style types one_definition tidy analyzed tests slow fuzz fuzz-core sanitized races torture coverage docs bench tiers soak ladder sequences clean

# Settings of a run: make pong OPTIONS="--steps 3000"
pong cartpole: $(VENV)/.train,view
	$(BIN)/sharpwave train $@ $(OPTIONS)

# The checks and the tests share the processors; the tests, which take the longest, begin first.
test: $(VENV)/.test
	@$(MAKE) --no-print-directory --jobs=2 tests $(CHECKS)

check: $(VENV)/.test
	@$(MAKE) --no-print-directory --jobs=2 $(CHECKS)

style: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror src/core/*.[ch]pp fuzz/*.[ch]pp

types: $(VENV)/.test
	$(BIN)/mypy

# Two types or functions of one name in the core, of which the linker would keep either: nightly, as it compiles all of it anew.
one_definition: $(VENV)/.test
	PATH="$(BIN):$$PATH" cmake --build build/core-*/ --target one_definition

# A source is looked at again when it has changed, or any header.
tidy: $(patsubst src/core/%.cpp,build/tidy/%,$(wildcard src/core/*.cpp))

build/tidy/%: src/core/%.cpp $(wildcard src/core/*.hpp) .clang-tidy | $(VENV)/.test
	$(BIN)/clang-tidy --quiet --checks='-clang-analyzer-*' -p build/core-*/ $<
	@mkdir -p $(@D) && touch $@

# With the checks that follow paths through the core, which take two thirds of all processor time of clang-tidy.
analyzed: $(VENV)/.test
	printf '%s\n' src/core/*.cpp | xargs -P 2 -n 1 $(BIN)/clang-tidy --quiet -p build/core-*/

tests: $(VENV)/.test $(VENV)/.imported
	$(BIN)/pytest $(WORKERS) $(SELECT)

# What a new environment's packages and the tests import is compiled here: 20 s, which each worker would take.
$(VENV)/.imported: | $(VENV)/.test
	-$(BIN)/pytest --collect-only -qq > /dev/null
	@touch $@

slow: $(VENV)/.test $(VENV)/.imported
	$(BIN)/pytest $(WORKERS) -m slow

fuzz: $(VENV)/.test
	PYTHONPATH=src:. $(BIN)/python -m tests.format.fuzzing --seed $$(date +%Y%m%d)
	PYTHONPATH=src:. $(BIN)/python -W ignore -m tests.data_sets.fuzzing --seed $$(date +%Y%m%d)

# Any bytes into the decoders of the core, beside plain readers; of the inputs, those that reach new code are changed on.
fuzz-core:
	mkdir -p build/fuzz
	g++ -std=c++20 -O2 -Isrc/core -c fuzz/driver.cpp -o build/fuzz/driver.o
	printf '%s\n' patches cut_rows predict packed flags | xargs -P 2 -I TARGET sh -c "g++ -std=c++20 -O1 -g -Isrc/core \
		-DSHARPWAVE_CHECKED -D_GLIBCXX_ASSERTIONS -fsanitize=address,undefined -fno-sanitize-recover=all \
		-fsanitize-coverage=trace-pc fuzz/TARGET.cpp build/fuzz/driver.o -o build/fuzz/TARGET && \
		cd build/fuzz && ./TARGET $(or $(INPUTS),1000000) $$(date +%Y%m%d)"

# The core with bounds and memory watched: each failure ends the process with a report.
sanitized: $(VENV)/.test
	$(BIN)/python build_backend/sharpwave_build.py -DSHARPWAVE_CHECKED=ON -DSHARPWAVE_SANITIZE=address,undefined
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/pytest tests/native tests/log tests/codecs tests/views tests/sampling tests/memory; code=$$?; \
		$(BIN)/python build_backend/sharpwave_build.py -DSHARPWAVE_CHECKED=OFF -DSHARPWAVE_SANITIZE=; exit $$code

# The core with what threads read and write watched: races end a run of the tests with 66, and are listed after it.
races: $(VENV)/.test
	$(BIN)/python build_backend/sharpwave_build.py -DSHARPWAVE_SANITIZE=thread
	rm -f build/races.*
	LD_PRELOAD="$$(g++ -print-file-name=libtsan.so)" \
		TSAN_OPTIONS="die_after_fork=0 suppressions=$(CURDIR)/tests/native/races.txt log_path=$(CURDIR)/build/races" \
		$(BIN)/pytest tests/native $(addprefix tests/views/test_,prefetch.py gather.py decode_threads.py blend.py \
		blend_stream.py) $(addprefix tests/disk/test_,segment_cache.py forks.py region_files.py) \
		tests/memory/test_batch_memory.py tests/store/test_threads.py tests/persistence/test_checkpoint.py; code=$$?; \
		cat build/races.* 2> /dev/null; $(BIN)/python build_backend/sharpwave_build.py -DSHARPWAVE_SANITIZE=; exit $$code

# Random programs on stores that are killed and whose disks fail: an hour of each night.
torture: $(VENV)/.test
	$(BIN)/sharpwave torture --seconds $(or $(SECONDS),3600) --seed $$(date +%Y%m%d)0000 --out torture.json

coverage: $(VENV)/.test
	$(BIN)/pytest -m '' $(WORKERS) --cov --cov-report=term:skip-covered --cov-report=xml

docs: $(VENV)/.docs
	$(BIN)/zensical build --clean --strict

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/store.py

tiers soak ladder sequences: $(VENV)/.bench
	$(BIN)/python benchmarks/$@.py

clean:
	rm -rf $(VENV)

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

# The native core is built here too, beside the installation, and anew by the first import after a change of its sources.
$(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/python build_backend/sharpwave_build.py requirements > $(VENV)/build.txt
	$(PIP) -r $(VENV)/build.txt
	$(BIN)/python build_backend/sharpwave_build.py requirements $* > $(VENV)/$*.txt
	$(BIN)/python build_backend/sharpwave_build.py & core=$$!; \
		$(PIP) -r $(VENV)/$*.txt; installed=$$?; wait $$core && exit $$installed
	$(PIP) --no-build-isolation --no-deps -e .
	touch $@
