# Everything starts from a clone with Python 3.11 or newer, pip, make and git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help setup compiled with-bubblewrap demo test tests test-long test-hosts conformance check format bench lock clean

help:  ## What can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup: .venv/ready  ## Make .venv with the locked dependencies

.venv/locked: requirements.lock
	@echo "setting up .venv (once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Parley needs Python 3.11 or newer, this is " + sys.version)'
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

.venv/ready: .venv/locked pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Commands are confined by bubblewrap where the system has it. Installing it is tried once, without a
# question, and nothing fails for want of it: Landlock takes its place, and tests that need it are skipped.
BUBBLEWRAP := [ "$$(uname)" != Linux ] || [ -x /usr/bin/bwrap ] || [ -x /bin/bwrap ] || [ -x /usr/local/bin/bwrap ]
WITHOUT_BUBBLEWRAP := commands are confined by Landlock, where the kernel has it
test test-long: WITHOUT_BUBBLEWRAP := tests that need it are skipped

.venv/bubblewrap: .venv/locked
	@$(BUBBLEWRAP) || echo "installing bubblewrap (once) ..."
	@$(BUBBLEWRAP) || { \
	    [ "$$(id -u)" = 0 ] && as= || as="sudo -n"; \
	    if command -v apt-get; then \
	        apt="env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -y -q -o DPkg::Lock::Timeout=30"; \
	        $$as $$apt install bubblewrap || { $$as $$apt update && $$as $$apt install bubblewrap; }; \
	    elif command -v dnf; then $$as timeout 300 dnf -y -q install bubblewrap; \
	    elif command -v apk; then $$as timeout 300 apk add -q bubblewrap; \
	    else echo "there is no apt-get, dnf or apk here to install it with"; \
	    fi; } >.venv/bubblewrap.log 2>&1 </dev/null || true
	@touch $@

with-bubblewrap: .venv/bubblewrap
	@$(BUBBLEWRAP) || echo "bubblewrap is not installed: $(WITHOUT_BUBBLEWRAP) (why: .venv/bubblewrap.log)"

demo: setup  ## A whole conversation on the terminal; no key, no network
	@$(BIN)/parley demo

check: setup  ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Tests start hundreds of servers, each of which would compile all of it where Python is told to write no bytecode.
compiled: setup
	@[ -e .venv/compiled ] && [ -z "$$(find src tests -name '*.py' -newer .venv/compiled | head -n 1)" ] || { \
	    touch .venv/compiled; \
	    $(BIN)/python -m compileall -q src tests; }

# Collecting writes the tests with rewritten assertions to files, for the next run.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

# Types keep one core busy while the tests begin.
test: setup with-bubblewrap  ## All that CI runs, in less than three minutes on two cores
	@$(MAKE) --no-print-directory -j 2 check tests

# Many tests wait for other processes or for time to pass: four workers keep two cores busy.
tests: compiled
	$(PYTEST) --workers 4 -m "not long" $(PYTEST_ARGS)

test-long: compiled with-bubblewrap  ## The sweeps and soaks that do not fit, and all scenarios with child processes
	@PIECES="$(PIECES)" $(BIN)/python tests/long_runs.py $(PYTEST_ARGS)

test-hosts: compiled with-bubblewrap  ## Parley inside Claude Code, Codex, opencode and Gemini CLI (fetched from npm)
	@$(BIN)/python tests/hosts/checks_table.py begin
	$(BIN)/pytest --workers 2 -m long --timeout 3600 tests/hosts $(PYTEST_ARGS); \
	    failed=$$?; $(BIN)/python tests/hosts/checks_table.py write; exit $$failed

conformance: compiled  ## The official conformance suite of MCP, for both eras (fetched from npm)
	$(BIN)/pytest -q -rs tests/scenario/test_conformance.py $(PYTEST_ARGS)

bench: setup with-bubblewrap  ## Measure, side by side in one run
	$(BIN)/python -m bench $(BENCH_ARGS)

format: setup  ## Format the code and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## Resolve the dependencies anew (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --generate-hashes --no-emit-index-url --no-header \
	    --python-version 3.11 -o requirements.lock

clean:  ## Forget everything that was made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
