# Each target sets itself up from a bare clone: Python 3.11 or newer, and make.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	&& echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest

.PHONY: setup run test check bench demo readme soak lock clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Relay needs Python 3.11 or newer; set PYTHON=/path/to/python3." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
		|| { echo "Python's venv module is missing; install it (python3-venv on Debian)." >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

run: setup
	@exec $(BIN)/relay up

# The browser's driver keeps an event loop of its own in the main thread: a process for itself.
# The others mostly wait, for sockets and for disks: two at a time take half as long.
test: setup
	$(PYTEST) -m "browser and not soak"
	$(PYTEST) -n 2 --dist loadfile -m "not browser and not soak"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m tests.bench

demo: setup
	$(BIN)/relay demo

readme: setup
	$(BIN)/python -m tests.readme

soak: setup
	$(PYTEST) -m soak --timeout=3600

# The locks hold every platform and Python from 3.11 on, with hashes; uv is needed for this alone.
# The second is the part of the first that runs, without what tests and measures it (Dockerfile).
LOCK := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --python-version 3.11
lock:
	$(LOCK) --all-extras pyproject.toml -o requirements.lock
	$(LOCK) --extra mcp --constraints requirements.lock pyproject.toml -o requirements.run.lock

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
