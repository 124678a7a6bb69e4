# Each target sets itself up from a bare clone: Linux, Python 3.11 or newer, and make.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	&& echo $$p && break; done)
BIN := .venv/bin
RUNNABLE := .venv/.runnable
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip --disable-pip-version-check
COMPILE := $(BIN)/python -m compileall -q relay actors simulation supervisor.py

# Installs what a lock file names and is not there yet, with a line that moves on a terminal.
# pip's own output would be two hundred lines; quiet, it is half a minute of nothing.
define install
@echo "Installing $(1)."
@if [ -t 1 ]; then live=1; fi; \
{ PYTHONUNBUFFERED=1 $(PIP) install --progress-bar off --require-hashes -r $(2) || echo FAILED; } | awk \
	-v most="$$(grep -c '^[a-zA-Z0-9].*==' $(2))" -v live="$$live" ' \
	/^(Collecting|Requirement already)/ { n++; if (live) printf "\r\033[K  %d of %d at most", n, most; fflush() } \
	/^Installing collected/ { if (live) printf "\r\033[K"; print "  unpacking " NF - 3 " packages"; fflush() } \
	/^FAILED/ { failed = 1 } \
	END { if (live) printf "\r\033[K"; exit failed }'
endef

# Whatever else may write no bytecode, what is started from here may: pytest rewrites every file of
# tests for its assertions, which takes a process longer than all the rest of reading them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test test-clients check bench demo docs simulate soak dist lock clean

setup: $(READY)

# Running needs a third of what testing does: `run` and `demo` install that alone.
$(RUNNABLE): requirements.run.lock pyproject.toml
	@test "$$(uname -s)" = Linux || { echo "Relay runs on Linux only; use a Linux machine, a virtual one or a container." >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "Relay needs Python 3.11 or newer; set PYTHON=/path/to/python3." >&2; exit 1; }
	@test -x $(BIN)/python || echo "Making .venv with $$($(PYTHON) --version)."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
		|| { echo "Python's venv module is missing; install it (python3-venv on Debian)." >&2; exit 1; }
	$(call install,what running needs (about 200 MB with PostgreSQL),requirements.run.lock)
	@# The build tool comes from the same place as everything else: the full lock, by its hash.
	@awk '/^setuptools==/ { take = 1 } take { print } take && !/\\$$/ { exit }' requirements.lock >.venv/build.lock
	@$(PIP) install --quiet --require-hashes -r .venv/build.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@# Or the first start would, half a second late.
	@$(COMPILE)
	@touch $@

# What is there already is left alone, so that after `run` only the rest is fetched.
$(READY): requirements.lock $(RUNNABLE)
	$(call install,what tests and checks need too (about 350 MB),requirements.lock)
	@touch $@

run: $(RUNNABLE)
	@exec $(BIN)/relay up

# Two runs side by side: tests/side_by_side.py.
test: setup
	@$(COMPILE)
	@exec $(BIN)/python -m tests.side_by_side

# The clients' own tests, against a relay of theirs.
test-clients: setup
	cd clients/python && ../../$(PYTEST)
	cd clients/typescript && ../../$(PYTEST)

# The linter set to each Python that a wheel names, without what it then says could be written in a
# newer way: an older one reads it, too.
define lint_each
@for version in $$(sed -n 's/.*Python :: 3\.\([0-9]*\)",*$$/py3\1/p' $(1)/pyproject.toml); do \
	$(BIN)/ruff check --quiet --target-version $$version --ignore UP,B905,B912,ASYNC109,RUF100 $(1) \
	|| { echo "ruff, set to $$version"; exit 1; }; done
endef

check: setup
	$(BIN)/ruff check .
	$(call lint_each,.)
	$(call lint_each,clients/python)
	$(BIN)/ruff format --check .
	$(BIN)/mypy && $(BIN)/mypy --python-version 3.14
	cd clients/python && ../../$(BIN)/mypy && ../../$(BIN)/mypy --python-version 3.14
	cd clients/typescript && ../../$(BIN)/mypy
	$(BIN)/python -m tests.npm clients/typescript tsc --project tsconfig.check.json
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m tests.bench

# A hundred seeds of a virtual hour, two at a time.
simulate: $(RUNNABLE)
	@$(COMPILE)
	@$(BIN)/python -m simulation.many

demo: $(RUNNABLE)
	$(BIN)/relay demo

docs: setup
	$(BIN)/python -m tests.docs

soak: setup
	@$(COMPILE)
	$(PYTEST) -m soak --timeout=3600
	$(BIN)/python -m simulation.many --seeds 500

# All packages, into dist/: the same bytes from the same commit.
dist: setup
	$(BIN)/python -m tests.dist

# The locks hold every platform and Python from 3.11 on, with hashes; uv is needed for this alone.
# The second is the part of the first that runs, without what tests and measures it (Dockerfile).
LOCK := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --python-version 3.11
lock:
	$(LOCK) --all-extras pyproject.toml -o requirements.lock
	$(LOCK) --extra mcp --constraints requirements.lock pyproject.toml -o requirements.run.lock
	for folder in tests/bench/sendria tests/clients/frameworks tests/clients/pytest_mailpit; do \
		$(LOCK) $$folder/requirements.in -o $$folder/requirements.lock || exit 1; done

clean:
	rm -rf clients/typescript/dist clients/typescript/node_modules
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
