# Two commands do everything, set-up included: make run, make test.
.DEFAULT_GOAL := help
.PHONY: help setup run check test chaos kafka bench bench-kafka bench-golden bench-readings captures docs clean
SHELL := /bin/bash

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## Create .venv with everything in it (the other targets do this themselves)

$(READY): pyproject.toml .ci/setup
	@.ci/setup $(VENV)
	@touch $@

run: $(READY)  ## Judge recorded agents while they stream; ONCE=1 prints the final table and ends
	@exec $(BIN)/agenttrust dev $(if $(filter-out 0,$(ONCE)),--once)

check: $(READY)  ## Lint, format, types, imports, generated pages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy -p deploy.local
	$(BIN)/lint-imports
	$(BIN)/python -m streams.docs --check

test: $(READY)  ## The whole test suite, on real Kafka and Redis where java, mvn and redis-server are
	@[ "$$TEST_PARTS" = embedded ] || $(BIN)/python -m deploy.local --fetch || [ "$$TEST_PARTS" != real ]
	$(BIN)/pytest $(ARGS)

kafka: $(READY)  ## Apache Kafka and Redis on this machine until Ctrl-C; prints the settings to use
	@exec $(BIN)/python -m deploy.local $(ARGS)

chaos: $(READY)  ## The fault suite: kills, restarts, losses, on real Kafka and Redis
	@$(BIN)/python -m deploy.local --fetch
	TEST_PARTS=real $(BIN)/pytest tests/chaos $(ARGS)

bench: $(READY)  ## Ratios that tell whether the hot path is still fast
	$(BIN)/python -m tests.benchmarks

bench-kafka: $(READY)  ## Throughput, latency, memory and replay on real Kafka and Redis: takes minutes
	@$(BIN)/python -m deploy.local --fetch
	$(BIN)/python -m tests.benchmarks.kafka $(ARGS)

captures: $(READY)  ## What is read right of the recorded runs of agent frameworks
	@$(BIN)/python -m tests.captures_scoreboard $(ONLY)

bench-readings: $(READY)  ## What readings by an LLM cost those who do not wait for them
	@$(BIN)/python -m deploy.local --fetch
	$(BIN)/python -m tests.benchmarks.readings $(ARGS)

bench-golden: $(READY)  ## Golden cases timed by the paper's protocol
	$(BIN)/python -m tests.benchmarks.golden

docs: $(READY)  ## Write the generated pages under docs/
	$(BIN)/python -m streams.docs

clean:  ## Remove the environment and every cache
	rm -rf $(VENV) build dist *.egg-info .agenttrust .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
