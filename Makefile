# Everything runs in a virtual environment inside the checkout, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo docs test test-gpu test-frameworks test-report lint check laws fuzz chaos bench bench-gpu format build clean

demo: $(READY)
	$(BIN)/thinwire demo

# Two at a time: much of the suite waits for processes and for time-outs.
test: $(READY)
	$(BIN)/pytest -q -m "not slow and not gpu and not browser and not frameworks" -n 2 --dist worksteal

# On a machine with a CUDA device.
test-gpu: $(READY)
	$(BIN)/pytest -q -m gpu

# Real training frameworks, on two processes each.
test-frameworks: $(VENV)/.ready-for-frameworks
	$(BIN)/pytest -q -m frameworks tests/integrations

# Reports in a real browser, which is found or installed; its driver is kept in .browser.
BROWSER := .browser
test-report: $(BROWSER)/.ready
	PYTHONPATH=$(BROWSER) $(BIN)/pytest -q -m browser tests/tools/report

# The site, in site/; a warning is an error. Nothing is loaded while it is built.
docs: $(VENV)/.ready-for-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs src tests experiments
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

# The laws over the full product of collectives, codecs and group sizes.
laws: $(READY)
	$(BIN)/pytest -q tests/laws --laws -m "not gpu" -n 2 --dist worksteal

# For how long, as in `make fuzz SECONDS=1200 JOBS=2`; what it learns is kept in .fuzz.
SECONDS ?= 60
JOBS ?= 1
fuzz: $(VENV)/.ready-to-fuzz
	$(BIN)/python -m fuzz.decoders --seconds $(SECONDS) --jobs $(JOBS)

# Real training, hurt at random and checked, as in `make chaos SECONDS=1800`; with cuts
# and slow hosts where a lab can be built.
chaos: $(READY)
	$(BIN)/python -m chaos --seconds $(SECONDS)

bench: $(READY)
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/compile.py
	$(BIN)/python benchmarks/hook.py
	$(BIN)/python benchmarks/codecs.py
	$(BIN)/python benchmarks/sketch.py
	$(BIN)/python benchmarks/embedding.py

# On a machine with a CUDA device.
bench-gpu: $(READY)
	$(BIN)/python benchmarks/kernels_gpu.py
	$(BIN)/python benchmarks/spardl_gpu.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(READY)
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(VENV)-* $(BROWSER) build dist site src/*.egg-info

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thinwire needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(READY)

$(BROWSER)/.ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -c constraints.txt --target $(BROWSER) playwright
	PYTHONPATH=$(BROWSER) $(BIN)/python -m tests.tools.report.browser
	touch $@

$(VENV)/.ready-to-fuzz: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	touch $@

$(VENV)/.ready-for-frameworks: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test-frameworks]'
	touch $@

$(VENV)/.ready-for-docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@
