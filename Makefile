# `make` or `make help` lists the targets. Everything runs from the environments that setup makes.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PYTHON

BIN := .venv/bin
CODE := services connector tests deploy
SCRIPTS := .ci/run $(wildcard deploy/*.sh deploy/ec2/*.sh proto/*.sh requirements/*.sh)
ENGINE ?= vllm
QUICK_TESTS := tests/unit tests/property tests/contract/*.py

.PHONY: help setup env-services env-engine env-proto env-next demo test test-full check lint fix proto lock bench bench-engines bench-idle clean

help: ## list the targets
	@sed -n -E 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

setup: env-services env-engine ## make .venv (services) and .venv-engine (vLLM for CPU, NIXL)

env-services:
	@deploy/setup.sh services
env-engine:
	@deploy/setup.sh engine
env-proto:
	@deploy/setup.sh proto
env-next: env-engine
	@deploy/setup.sh vllm-next

demo: $(if $(filter sim,$(ENGINE)),env-services,setup) ## five turns, the table, the comparison with one engine; ENGINE=sim: in seconds
	@$(BIN)/contraflow demo --engine $(ENGINE)

test: setup env-next lint ## everything that CI runs, the real-engine tests included
	$(BIN)/python -m pytest -m "not slow"

test-full: setup env-next lint ## the same, slow tests, the ring of faults and more generated examples included
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest

check: lint ## the same as lint, and the quick tests
	$(BIN)/python -m pytest -q $(wildcard $(QUICK_TESTS))

lint: env-services env-proto ## style, types, imports, scripts, protos, generated code
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck $(SCRIPTS)
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	proto/generate.sh --check

fix: env-services ## let the tools mend what check complains about
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/buf format --write

proto: env-services env-proto ## generate services/contraflow/**/*_pb2* from proto/
	$(BIN)/buf lint
	proto/generate.sh

lock: env-services ## resolve the lock files anew (fetches uv)
	requirements/relock.sh

bench: env-services ## what the proof costs per 1,000 tokens, and how long a claim takes
	@$(BIN)/python -m contraflow.bench.chain
	@$(BIN)/python -m contraflow.bench.acquire

bench-engines: setup ## TTFT with and without transfer back, on real engines: the ratios must hold; 20 minutes
	@mkdir -p var
	@$(BIN)/python -m contraflow.bench.legs --json var/bench-engines.json --markdown var/bench-engines.md

bench-idle: setup ## what a request waits for on engines full of idle conversations; minutes
	@$(BIN)/python -m contraflow.bench.idle

clean: ## remove environments, caches and what the demo left
	rm -rf .venv .venv-engine .venv-proto .venv-vllm-next .venv-lock .venv.lock .cache .mypy_cache .ruff_cache \
	  .pytest_cache .hypothesis .import_linter_cache dist build var
