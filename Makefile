# The targets work in a clone of the repository. They need Python 3.11 or newer, pip, make and git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help setup compiled with-bubblewrap with-chromium with-tmux with-shells demo test tests test-long test-hosts conformance check docs recording format bench lock clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup: .venv/ready  ## Create .venv with Parley and its pinned dependencies

.venv/locked: requirements.lock
	@echo "setting up .venv (once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Parley needs Python 3.11 or newer, this is " + sys.version)'
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

.venv/ready: .venv/locked pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# On Linux, Parley confines commands with bubblewrap if bubblewrap is installed, otherwise with Landlock. Make tries once
# to install bubblewrap, without asking for a password. If the installation fails, the targets continue without
# bubblewrap and skip the tests that need it.
BUBBLEWRAP := [ "$$(uname)" != Linux ] || [ -x /usr/bin/bwrap ] || [ -x /bin/bwrap ] || [ -x /usr/local/bin/bwrap ]
WITHOUT_BUBBLEWRAP := commands are confined by Landlock if the kernel supports it
test test-long: WITHOUT_BUBBLEWRAP := the tests that need it are skipped

# The command that installs a package of the system: $(call INSTALL,PACKAGE).
define INSTALL
{ \
    [ "$$(id -u)" = 0 ] && as= || as="sudo -n"; \
    if command -v apt-get; then \
        apt="env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -y -q --no-install-recommends -o DPkg::Lock::Timeout=30"; \
        $$as $$apt install $(1) || { $$as $$apt update && $$as $$apt install $(1); }; \
    elif command -v dnf; then $$as timeout 300 dnf -y -q install $(1); \
    elif command -v apk; then $$as timeout 300 apk add -q $(1); \
    else echo "none of apt-get, dnf and apk is installed"; \
    fi; } >.venv/$(1).log 2>&1 </dev/null || true
endef

.venv/bubblewrap: .venv/locked
	@$(BUBBLEWRAP) || echo "installing bubblewrap (once) ..."
	@$(BUBBLEWRAP) || $(call INSTALL,bubblewrap)
	@touch $@

with-bubblewrap: .venv/bubblewrap
	@$(BUBBLEWRAP) || echo "bubblewrap is not installed: $(WITHOUT_BUBBLEWRAP) (reason: .venv/bubblewrap.log)"

# The tests of the page need Chromium. Make tries once to install it in the same way.
CHROMIUM := command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null

.venv/chromium: .venv/locked
	@$(CHROMIUM) || echo "installing Chromium (once) ..."
	@$(CHROMIUM) || $(call INSTALL,chromium)
	@touch $@

with-chromium: .venv/chromium
	@$(CHROMIUM) || echo "Chromium is not installed: the tests of the page are skipped (reason: .venv/chromium.log)"

# The tests of the chat need tmux. Make tries once to install it in the same way.
TMUX_INSTALLED := command -v tmux >/dev/null

.venv/tmux: .venv/locked
	@$(TMUX_INSTALLED) || echo "installing tmux (once) ..."
	@$(TMUX_INSTALLED) || $(call INSTALL,tmux)
	@touch $@

with-tmux: .venv/tmux
	@$(TMUX_INSTALLED) || echo "tmux is not installed: the tests of the chat are skipped (reason: .venv/tmux.log)"

# The tests of completion need zsh and fish. Make tries once to install them in the same way.
MISSING_SHELLS := for one in zsh fish; do command -v $$one >/dev/null || echo $$one; done

.venv/shells: .venv/locked
	@[ -z "$$($(MISSING_SHELLS))" ] || echo "installing zsh and fish (once) ..."
	@command -v zsh >/dev/null || $(call INSTALL,zsh)
	@command -v fish >/dev/null || $(call INSTALL,fish)
	@touch $@

with-shells: .venv/shells
	@for one in $$($(MISSING_SHELLS)); do echo "$$one is not installed: its tests are skipped (reason: .venv/$$one.log)"; done

demo: setup  ## Show a complete conversation on the terminal, without an API key and network access
	@$(BIN)/parley demo

check: setup  ## Check formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The tests start hundreds of servers. If the environment tells Python not to write bytecode, each server would compile
# all modules. So this target compiles the modules before the tests.
compiled: setup
	@[ -e .venv/compiled ] && [ -z "$$(find src tests -name '*.py' -newer .venv/compiled | head -n 1)" ] || { \
	    touch .venv/compiled; \
	    $(BIN)/python -m compileall -q src tests; }

# Pytest rewrites the assertions of the tests. With an empty PYTHONDONTWRITEBYTECODE it stores the result for the next run.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

# The checks run on one core while the tests start.
test: setup with-bubblewrap with-chromium with-tmux with-shells  ## Run everything that CI runs, in less than three minutes on two cores
	@$(MAKE) --no-print-directory -j 2 check tests

# Many tests wait for other processes or for time to pass, so six workers are needed to keep two cores busy.
tests: compiled
	$(PYTEST) --workers 6 -m "not long" $(PYTEST_ARGS)

test-long: compiled with-bubblewrap with-chromium with-tmux with-shells  ## Run the long tests, and the other tests with every server as a child process
	@PIECES="$(PIECES)" $(BIN)/python tests/long_runs.py $(PYTEST_ARGS)

test-hosts: compiled with-bubblewrap  ## Test Parley in Claude Code, Codex, opencode and Gemini CLI (downloaded from npm)
	@$(BIN)/python tests/hosts/checks_table.py begin
	$(BIN)/pytest --workers 2 -m long --timeout 3600 tests/hosts $(PYTEST_ARGS); \
	    failed=$$?; $(BIN)/python tests/hosts/checks_table.py write; exit $$failed

conformance: compiled  ## Run the official conformance suite of MCP for 2025-11-25 and 2026-07-28 (downloaded from npm)
	$(BIN)/pytest -q -rs tests/scenario/test_conformance.py $(PYTEST_ARGS)

bench: compiled with-bubblewrap with-chromium  ## Measure Parley and two versions of Codex CLI in one run
	$(BIN)/python -m bench $(BENCH_ARGS)

docs: setup  ## Build the documentation as a website in build/site
	@$(BIN)/python -m docs.site

recording: setup  ## Record parley chat for the README (needs tmux)
	@$(BIN)/python -m docs.recording

format: setup  ## Format the code, and apply the automatic fixes of the linter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## Update requirements.lock (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --generate-hashes --no-emit-index-url --no-header \
	    --python-version 3.11 -o requirements.lock

clean:  ## Remove .venv and all caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
