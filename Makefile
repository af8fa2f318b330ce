# Commands for people. They need Python 3.11 or later, make, and the network at the first run; everything else is
# installed into .venv. The jars of the servers are in the user's cache folder, shared by all checkouts
# (SLA_EMBEDDED_CACHE names another one).

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
UV ?= uv
# Every command holds a lock on the environment, so that a changed lock file is not installed under a running demo.
RUN = $(PYTHON) tools/hold_venv.py use $(VENV)
# Three test processes on two cores: a test spends much of its time waiting for servers.
PYTEST = $(RUN) $(BIN)/python -m pytest
PARALLEL = -n 3 --dist worksteal

# Prints `--name value` when the variable is set: $(call option,CYCLES,--cycles)
option = $(if $($(1)),$(2) $($(1)))

.DEFAULT_GOAL = help
.PHONY: help demo test check bench chaos replay alerts-test lock lock-kafka install clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

demo: install ## run the whole pipeline on this machine, with Dagster's UI; Ctrl-C stops it; CYCLES=2 stops after two cycles
	@exec $(RUN) $(BIN)/sla-pipeline demo $(call option,CYCLES,--cycles)

test: install ## run all tests, on a real PostgreSQL and a real Kafka
	@$(RUN) $(BIN)/python -m sla_pipeline.embedded
	@$(PYTEST) $(PARALLEL)

check: install ## check lint, format, types and the direction of imports
	$(RUN) $(BIN)/python -m ruff check
	$(RUN) $(BIN)/python -m ruff format --check
	$(RUN) $(BIN)/python -m mypy
	$(RUN) $(BIN)/lint-imports

bench: install ## measure three speed ratios, each inside one run
	@$(RUN) $(BIN)/python -m sla_pipeline_tests.benchmarks

chaos: install ## kill and pause everything while tickets are marked, then compare events; KILLS= TICKETS= SECONDS= SEED=
	@$(RUN) $(BIN)/python -m sla_pipeline_tests.chaos \
	    $(call option,KILLS,--kills) $(call option,TICKETS,--tickets) $(call option,SECONDS,--seconds) $(call option,SEED,--seed)

replay: install ## replay the whole incident log; `make test` replays a part of it
	@SLA_REPLAY_FULL=1 $(PYTEST) sla_pipeline_tests/integration/demo/test_replay.py

alerts-test: install ## test the Prometheus alert rules; needs promtool
	@$(PYTEST) sla_pipeline_tests/integration/alerting/test_prometheus_rules.py

lock: ## for maintainers: compile requirements.lock, all platforms, with hashes; LOCK_OPTIONS=--upgrade moves pins; needs uv
	$(UV) pip compile --universal --generate-hashes --no-header --no-emit-index-url --extra demo --extra test \
	    pyproject.toml -o requirements.lock $(LOCK_OPTIONS)

lock-kafka: install ## for maintainers: write the list of the broker's jars again
	$(BIN)/python -m sla_pipeline.embedded.lock_jars

install: $(VENV)/installed
	@:

# A changed lock file makes a new environment, so a package that left the lock file is gone too.
ifndef HOLDS_VENV
# One make installs; others wait for it, and find everything installed.
$(VENV)/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Run: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) tools/hold_venv.py install $(VENV) $(MAKE) --no-print-directory HOLDS_VENV=1 install
else
# `installed` is written last, so a killed installation is repeated.
$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	@# The lock file is complete. Without --no-deps, pip regards a dependency with an extra, gql[requests], as not pinned.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	@# Without isolation the build uses setuptools of the lock file, and no network.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
endif

clean: ## remove what was made here; the shared jars stay
	rm -rf $(VENV) $(VENV).lock .demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find sla_pipeline sla_pipeline_tests -name __pycache__ -type d -prune -exec rm -rf {} +
