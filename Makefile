# One command each; every target makes its own environment first.
#   make demo    real text -> shards -> training, killed and resumed, bit for bit
#   make test    everything CI runs; the last line is pytest's own
#   make check   what to run before a commit: style, types, layers, fast tests
#   make bench   the benchmarks with their times
#   make rates   rates of reading and writing beside their ceilings
#   make soak    kills, stress and fuzzing for SOAK_SECONDS, by default ten minutes
#   make format  rewrite the sources in the project's style

VENV := .venv
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do command -v $$name && break; done)
PIP_VERSION := 26.3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := torch,msgpack,testing,demo,dev
SOAK_SECONDS ?= 600
# Tests at once. A number that all machines share: some take a core, some gigabytes.
TEST_PROCESSES ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES)

.PHONY: demo test check bench rates soak format static clean

demo: $(STAMP)
	$(BIN)/python -m demo.run

# pytest comes last and nothing may be printed after it.
test: static
	@$(PYTEST)

check: static
	@$(PYTEST) -m "not slow"

bench: $(STAMP)
	$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-only

rates: $(STAMP)
	$(BIN)/python -m benchmarks.rates

# atheris has no wheel for every Python; without it the parsers are fuzzed without coverage.
soak: $(STAMP)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: atheris==3.0.0
	$(BIN)/python -m tests.soak all --seconds $(SOAK_SECONDS)

static: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist demo-out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Python 3.11 brings a pip of 2023: it is replaced before anything else is asked of it.
$(STAMP): pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==$(PIP_VERSION)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@
