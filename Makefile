# Daily commands. Each one sets up `.venv` first, from the lock, if that is not done yet.
#   make demo      the product at work: real flight data through a stream that reshards meanwhile
#   make pipeline  two stages on the same data, from Kinesis through Kafka: planned, drawn, run
#   make test      everything that CI runs
#   make check     format, lint, types, docs and architecture: a minute
#   make long      whole scenarios on Spark: sinks, another Kinesis, examples: a quarter of an hour
#   make soak      the long runs
#   make interop   beside three versions of the Kinesis Client Library, in every way: half an hour
#   make bench     what everything costs, beside its peers: more than an hour
#   make lock      renew the lock of the development environment
#   make wheel     build the distribution into dist/
#   make clean     remove everything that the commands above made

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := check

PYTHON ?= python3
# Test processes side by side. Each may run a Spark of its own, which waits for a quarter of its time: on
# two cores, a third one takes that up.
WORKERS ?= 3
BIN := $(CURDIR)/.venv/bin
READY := .venv/.ready
LOCKS := requirements/bootstrap.txt requirements/dev.txt

# Spark starts its Python workers with this; with any other Python they would not find us.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
# Spark starts many a Python process: compiling every import each time would cost seconds apiece.
unexport PYTHONDONTWRITEBYTECODE
# A package index that pip was told about is good for uv too.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.PHONY: demo pipeline test check long soak interop bench lock wheel clean lint compiled machine node

demo: $(READY)
	$(BIN)/python -m examples.flights

pipeline: $(READY)
	$(BIN)/python -m examples.two_stage_pipeline

test: node $(READY)
	@# The servers are fetched meanwhile: who needs one before it is there waits for it, or fetches
	@# it once more and says what is wrong. It goes on to its end by itself, whatever comes of this.
	$(BIN)/python -m tests.support.fetch & \
	$(MAKE) --no-print-directory --jobs 2 lint compiled; \
	SSP_EFFORT=$${SSP_EFFORT:-ci} $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --durations 15 tests

check: lint
	$(BIN)/python -m pytest -q tests/architecture

long: node $(READY)
	SSP_EFFORT=$${SSP_EFFORT:-ci} $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "long and not soak" tests/spark

soak: node $(READY)
	SSP_EFFORT=soak $(BIN)/python -m pytest -m "soak or not soak" --timeout=7200 tests/simulation tests/spark

interop: node $(READY)
	$(BIN)/python -m pytest -m "interop or not interop" tests/interop

bench: $(READY)
	$(BIN)/python -m benchmarks

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/properdocs build --strict --site-dir .cache/site

# Once for all test processes, which would all do it side by side.
compiled: $(READY)
	@mkdir -p .cache
	$(BIN)/python -m pytest --collect-only --quiet tests > .cache/collected || { cat .cache/collected; exit 1; }

wheel: $(READY)
	$(BIN)/python -m hatchling build -d dist

lock: $(READY)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" requirements/bootstrap.in -o requirements/bootstrap.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" --all-extras --group dev --no-emit-package spark-ssp \
		pyproject.toml -o requirements/dev.txt

clean:
	rm -rf .venv .cache .hypothesis dist build demo-output bench-output spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

machine: node
	@.ci/machine product $(PYTHON)

# Only for targets that start the servers of tests/servers.
node:
	@.ci/machine tests

$(READY): $(LOCKS) pyproject.toml
	@.ci/machine product $(PYTHON)
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
