# Daily commands: `make help` lists them. Each one sets up `.venv` first, from the lock, if necessary.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := check

PYTHON ?= python3
# Number of parallel test processes. Each may run its own Spark, which is idle for a quarter of the
# time: on two cores a third process uses that.
WORKERS ?= 3
# The commit from which `make quick` takes the changes.
SINCE ?= HEAD
# The parts of `make nightly`, all by default, and the seed of its simulations, a new one.
PARTS ?=
SEED ?=
BIN := $(CURDIR)/.venv/bin
READY := .venv/.ready
LOCKS := requirements/bootstrap.txt requirements/dev.txt

# Spark starts its Python workers with this interpreter; only it has the project installed.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
# Spark starts Python processes often: compiling every import each time would cost seconds per process.
unexport PYTHONDONTWRITEBYTECODE
# uv uses the package index that pip is configured with.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.PHONY: help demo pipeline test check quick long soak interop defects nightly bench release-check site lock wheel clean lint compiled machine node

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## run the demo: real flight data through a stream that reshards while it is read
	$(BIN)/python -m examples.flights

pipeline: $(READY) ## run the example of a pipeline of two stages, from Kinesis through Kafka
	$(BIN)/python -m examples.two_stage_pipeline

test: node $(READY) ## run the checks and the tests, as CI does
	@# Fetches the servers in the background: a test that needs one waits for it, or fetches it again
	@# and reports the error. The background job ends by itself, also if a later command fails.
	$(BIN)/python -m tests.support.servers.fetch & \
	$(MAKE) --no-print-directory --jobs 2 lint compiled; \
	SSP_EFFORT=$${SSP_EFFORT:-ci} $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --durations 15 tests

quick: $(READY) ## check format, lint and types, and run the unit tests that your changes can break: seconds
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy & types=$$!; \
	SSP_EFFORT=$${SSP_EFFORT:-quick} $(BIN)/python -m tests.architecture.affected --since $(SINCE); \
	wait $$types

check: lint ## check format, lint, types, documentation and architecture: under a minute
	$(BIN)/python -m pytest -q tests/architecture

long: node $(READY) ## run whole scenarios on Spark and with other services, the core ones on four versions of PySpark: an hour
	SSP_EFFORT=$${SSP_EFFORT:-ci} $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "long and not soak" tests/contract tests/spark
	@# Every batch pushed: a test whose query has read without a subscription fails. Left out are a
	@# test that breaks GetRecords, and one of the whole progress.
	SSP_CONSUMER_MODE=efo $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "not soak" \
		-k "not kinesis_mock and not fails_once and not lag_of_each_shard" tests/spark/kinesis tests/spark/kinesis_batch \
		tests/spark/system/test_killed_driver.py tests/spark/system/test_leases.py \
		tests/spark/system/test_metrics.py tests/spark/system/test_credentials_provider.py
	$(BIN)/python -m tests.support.environments.run --processes $(WORKERS)
	$(BIN)/python -m tests.support.environments.clients

soak: node $(READY) ## run the long simulations and kills: twenty times the histories, a day of reshards, twenty kills
	SSP_EFFORT=soak $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "soak or not soak" --timeout=14400 tests/simulation
	@# What depends on the effort and is no simulation; `make test` and `make long` run all others.
	SSP_EFFORT=soak $(BIN)/python -m pytest -m "soak or not soak" --timeout=7200 tests/spark/pipelines/test_real.py \
		tests/spark/system/test_killed_driver.py tests/spark/system/test_long_run.py \
		tests/contract/kafka/test_exactly_once_faults.py tests/contract/operations/test_acceptance_command.py

interop: node $(READY) ## run queries and workers of three versions of the KCL on one lease table: half an hour
	$(BIN)/python -m pytest -m "interop or not interop" tests/interop

defects: $(READY) ## plant defects into a copy of the product, each of which the tests of its part must find: an hour
	SSP_EFFORT=$${SSP_EFFORT:-ci} $(BIN)/python -m tests.support.planted_defects

nightly: node $(READY) ## run all of the above that CI has no time for, and keep the results in nightly/: six hours
	$(BIN)/python -m tests.support.nightly $(PARTS) $(if $(SEED),--seed $(SEED))

bench: $(READY) ## measure the product and its peers, into bench-output/: more than an hour
	$(BIN)/python -m benchmarks

lint: $(READY) ## check format, lint, types and documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m website check

# Compiles the modules once, before parallel test processes would each do it.
compiled: $(READY)
	@mkdir -p .cache
	$(BIN)/python -m pytest --collect-only --quiet tests > .cache/collected || { cat .cache/collected; exit 1; }

release-check: node $(READY) ## build and install the distributions of a release, and check them: ten minutes
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope -m release tests/release

site: node $(READY) ## build the documentation site, to be looked at on this machine
	$(BIN)/python -m website build

wheel: $(READY) ## build the distribution into dist/
	$(BIN)/python -m hatchling build -d dist

lock: $(READY) ## renew requirements/*.txt after a change of dependencies
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" requirements/bootstrap.in -o requirements/bootstrap.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" --all-extras --group dev --no-emit-package spark-ssp \
		pyproject.toml -o requirements/dev.txt

clean: ## remove everything that these commands made
	rm -rf .venv .cache .hypothesis dist build demo-output bench-output nightly spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

machine: node
	@.ci/machine product $(PYTHON)

# Required by the targets that start the servers of tests/servers.
node:
	@.ci/machine tests

$(READY): $(LOCKS) pyproject.toml
	@.ci/machine product $(PYTHON)
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
