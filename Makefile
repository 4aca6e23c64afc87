# The book in two commands: `make book`, and `make test` before a change goes in. `make help`.

PYTHON ?= python3
JOBS ?= 2
PORT ?= 8000
ROUNDS ?= 5
VERSIONS ?= python3.11 python3.12 python3.13
VENV := .venv
BIN := $(VENV)/bin
# Two notebooks at a time share the cores (XLA sizes its thread pools by NPROC).
ONE_THREAD := NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONHASHSEED=0 JAX_PLATFORMS=cpu
# A file of tests stays with one worker, which has its programs; the files come longest first. Three
# on two cores: tests of processes wait a tenth of the time. What is compiled is kept, as by pages.
KEEP_PROGRAMS := JAX_COMPILATION_CACHE_DIR="$(CURDIR)/_build/compiled/$(shell uname -n)" \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 TF_CPP_MIN_LOG_LEVEL=3
PYTEST := $(ONE_THREAD) $(KEEP_PROGRAMS) $(BIN)/python -m pytest -q -n 3 \
  --dist loadscope --no-loadscope-reorder
NBVAL := PYTHONPATH="$(CURDIR)" $(PYTEST) --nbval --nbval-sanitize-with tests/notebooks/sanitize.cfg
# After `make gpu`, what CUDA takes as well.
LOCKS := requirements.lock $(if $(wildcard $(VENV)/.gpu),requirements-gpu.lock)
# Named after the locks and the project file, so that another version of one installs again.
INSTALLED := $(VENV)/.installed-$(shell cat $(LOCKS) pyproject.toml | cksum | tr ' ' '-')
# What checks take beside it, and no reader: installed by the first target that asks for it.
DEV := $(VENV)/.dev-$(shell cksum < requirements-dev.lock | tr ' ' '-')
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q --no-deps

.DEFAULT_GOAL := help
.PHONY: help installed book results serve browser pdf lint format test suite nbval nightly links library \
  versions references picture bench gpu lock dist clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo "Variables: TIER=gpu for results, PAGE='xor regimes' for some pages of it, BUDGET=30 for so"
	@echo "many minutes (again to go on); JOBS=$(JOBS) notebooks at a time (results: 1); PORT=$(PORT);"
	@echo "PROFILE=slurm for results on a cluster, SHARES=8 for so many jobs a page."

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing the pinned versions of $(LOCKS) (minutes, once)"
	@$(PIP) --no-compile --require-hashes $(LOCKS:%=-r %)
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true # on all cores; pip takes one
	@$(PIP) --no-build-isolation --no-index -e .
	@rm -f $(VENV)/.installed-* && touch $@

$(DEV): $(INSTALLED)
	@echo "installing the pinned versions of requirements-dev.lock (once)"
	@$(PIP) --require-hashes -r requirements-dev.lock
	@rm -f $(VENV)/.dev-* && touch $@

installed: $(INSTALLED)

book: $(INSTALLED) ## run the pages at the quick tier [PAGE=xor] and build _build/html
	@$(BIN)/python -m iterlin_book.build book --parent --jobs $(JOBS) $(PAGE:%=--page %)
	@$(BIN)/python -m iterlin_study.report.claims

results: JOBS =
results: $(INSTALLED) ## run TIER=laptop|gpu|paper [PAGE=xor] [BUDGET=minutes], record the results
	@$(BIN)/python -m iterlin_book.build results --parent --tier "$(TIER)" $(PAGE:%=--page %) \
	  $(JOBS:%=--jobs %) $(BUDGET:%=--budget %) $(SHARES:%=--shares %) $(PROFILE:%=--profile %)

serve: book ## show the book on this machine
	@echo "http://127.0.0.1:$(PORT)/ (stop with Ctrl-C)"
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

browser: book $(DEV) ## open every page in Debian's chromium: requests, errors, widths, formulas, WCAG
	@$(BIN)/python -m iterlin_book.offline _build/html
	@$(BIN)/python -m iterlin_book.browser _build/html

pdf: book $(DEV) ## print the book with chromium: _build/iterlin.pdf
	@$(BIN)/python -m iterlin_book.pdf

lint: $(DEV) ## check style, types and layers of the code, and the style of the pages' code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m iterlin_book.lint
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/pyright --pythonpath $(BIN)/python

format: $(DEV) ## bring the code into that style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/python -m iterlin_book.lint --fix

test: lint browser suite nbval ## everything: style, book, its links and looks, tests, pages against their references

suite: book $(DEV)
	@$(PYTEST)

# All pages ran in `book` and are compared by the suite; nbval itself runs one again, all of them at
# night.
nbval: $(DEV)
	@$(NBVAL) -n 0 tests/notebooks/convergence/damping.ipynb

nightly: lint browser ## the same at length: pages executed again, other tiers, random examples (hours)
	@$(PYTEST) --nightly
	@$(NBVAL) tests/notebooks
	@$(BIN)/python -m pytest -q -rs tests/iterlin/test_gpu.py

links: book ## ask other sites for what the book refers to (needs the network; no part of the tests)
	@$(BIN)/jupyter-book build _build/source --path-output _build/links --config "$(CURDIR)/_config.yml" \
	  --toc "$(CURDIR)/_toc.yml" --builder linkcheck --quiet

library: $(DEV) ## the library's tests alone: no book, no notebooks
	@$(PYTEST) tests/iterlin

versions: $(VERSIONS:%=library-%) ## the library's tests on each Python of VERSIONS
library-%:
	@$(MAKE) --no-print-directory library PYTHON=$* VENV=.venv-$*

references: $(INSTALLED) ## make tests/notebooks anew from the pages that run now
	@$(BIN)/python -m iterlin_book.references --jobs $(JOBS)

picture: $(INSTALLED) ## take the README's picture from the book's landing page
	@$(BIN)/python -m iterlin_book.picture

bench: $(DEV) ## measure the library beside its peers on the CPU [CASES=NTK] [ROUNDS=5]
	@$(if $(TIER),$(error bench takes no TIER: it measures on the CPU))
	@$(BIN)/python -m bench --rounds $(ROUNDS) $(if $(CASES),--cases $(CASES))

gpu: $(INSTALLED) ## add JAX for NVIDIA GPUs to the installation, as requirements-gpu.lock pins it
	@touch $(VENV)/.gpu
	@$(MAKE) --no-print-directory installed

COMPILE = uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) pyproject.toml
lock: ## pin what pyproject.toml asks for, the rest as it is (UPGRADE=1: the newest; needs uv)
	@$(COMPILE) --extra study --extra book -o requirements.lock
	@$(COMPILE) --group dev --constraints requirements.lock -o requirements-dev.lock
	@$(COMPILE) --extra gpu --constraints requirements.lock -o requirements-gpu.lock

dist: book $(DEV) ## make dist/: the library's wheel and source archive, tested, and the book for a deposit
	@$(PYTEST) --nightly tests/book/test_wheel.py
	@$(BIN)/python -m iterlin_book.pdf || [ $$? -eq 3 ]  # 3: no chromium, and so no PDF
	@rm -rf dist && $(BIN)/python -m iterlin_book.dist

clean: ## remove what was built, but not the installation
	rm -rf _build .snakemake dist
