# What people type here. Needs Python 3.11 or later, make, and the network at the first run; everything else comes into .venv.
# Servers' jars go to the user's cache folder and are shared by all checkouts (SLA_EMBEDDED_CACHE names another one).

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
UV ?= uv
# what runs in the environment holds it: a changed lock is not installed under a running demo
RUN = $(PYTHON) tools/hold_venv.py use $(VENV)
# three test processes on two cores: much of a test is waiting for servers
PYTEST = $(RUN) $(BIN)/python -m pytest
PARALLEL = -n 3 --dist worksteal

# `--name value` when the variable is set: $(call option,CYCLES,--cycles)
option = $(if $($(1)),$(2) $($(1)))

.DEFAULT_GOAL = help
.PHONY: help demo test check bench chaos replay lock lock-kafka install clean

help: ## shows this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

demo: install ## the whole pipeline on this machine, with Dagster's UI; Ctrl-C stops it; CYCLES=2 stops after two cycles
	@exec $(RUN) $(BIN)/sla-pipeline demo $(call option,CYCLES,--cycles)

test: install ## all tests, on a real PostgreSQL and a real Kafka
	@$(RUN) $(BIN)/python -m sla_pipeline.embedded
	@$(PYTEST) $(PARALLEL)

check: install ## lint, format, types, direction of imports
	$(RUN) $(BIN)/python -m ruff check
	$(RUN) $(BIN)/python -m ruff format --check
	$(RUN) $(BIN)/python -m mypy
	$(RUN) $(BIN)/lint-imports

bench: install ## three speed ratios, each taken inside one run
	@$(RUN) $(BIN)/python -m sla_pipeline_tests.benchmarks

chaos: install ## kills and pauses everything while tickets are marked, then counts events; KILLS= TICKETS= SECONDS= SEED=
	@$(RUN) $(BIN)/python -m sla_pipeline_tests.chaos \
	    $(call option,KILLS,--kills) $(call option,TICKETS,--tickets) $(call option,SECONDS,--seconds) $(call option,SEED,--seed)

replay: install ## the replay of the whole incident log; `make test` replays a part of it
	@SLA_REPLAY_FULL=1 $(PYTEST) sla_pipeline_tests/integration/demo/test_replay.py

lock: ## for maintainers: writes requirements.lock anew, for all platforms, with hashes; LOCK_OPTIONS=--upgrade moves pins; needs uv
	$(UV) pip compile --universal --generate-hashes --no-header --no-emit-index-url --extra demo --extra test \
	    pyproject.toml -o requirements.lock $(LOCK_OPTIONS)

lock-kafka: install ## for maintainers: writes the list of the broker's jars anew
	$(BIN)/python -m sla_pipeline.embedded.lock_jars

install: $(VENV)/installed
	@:

# a changed lock installs again; a package that left the lock leaves with the old environment
ifndef HOLDS_VENV
# one make installs; others wait for it, and find the work done
$(VENV)/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) tools/hold_venv.py install $(VENV) $(MAKE) --no-print-directory HOLDS_VENV=1 install
else
# `installed` is written last: an installation that was killed begins anew
$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	@# the lock is complete; without --no-deps, pip takes a dependency with an extra, gql[requests], for one that the lock does not pin
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	@# without isolation the build takes setuptools from the lock, and no network
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
endif

clean: ## removes what was made here; the shared jars stay
	rm -rf $(VENV) $(VENV).lock .demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find sla_pipeline sla_pipeline_tests -name __pycache__ -type d -prune -exec rm -rf {} +
