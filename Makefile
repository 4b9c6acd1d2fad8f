# `make demo` and `make test` do everything on a fresh machine: a virtual environment, the pinned install, the job.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo studio test test-slow browser lint types docs bench soak lowest release clean help

help:  ## show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: $(VENV)/.run  ## draw the same pictures at full cost and at a fraction of it, offline, and report
	$(BIN)/budcache demo

studio: $(VENV)/.studio  ## look, find, compare and take away on tiny-flux, in a browser
	$(BIN)/budcache studio tiny-flux

test: $(VENV)/.dev  ## the test suite, without the slow tests
	$(BIN)/pytest -n auto --dist loadgroup -m "not slow"

# Three processes on two cores: half of the time these tests wait, for a browser, for Ray, for one another.
test-slow: $(VENV)/.dev  ## the slow tests; those of the page need `make browser` before
	$(BIN)/pytest -n 3 --dist loadgroup -m slow

browser:  ## Chromium, Playwright and axe-core, which the slow tests of the page need
	@# Only what is missing: a Node that did not come from Debian brings its own npm, and Debian's would conflict with it.
	@missing=$$(command -v chromium >/dev/null || echo chromium; command -v node >/dev/null || echo nodejs; \
	  command -v npm >/dev/null || echo npm); \
	  test -z "$$missing" || { apt-get update -q && apt-get install -yq --no-install-recommends $$missing; } || \
	  { echo "Install $$missing, then try again."; exit 2; }
	@npm install --prefix tests/report/browser --no-package-lock --no-audit --no-fund --loglevel=error

lint: $(VENV)/.dev  ## formatting and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev  ## static types
	$(BIN)/mypy

docs: $(VENV)/.dev  ## what of the documentation is made from the docstrings
	$(BIN)/python docs/make_api.py

bench: $(VENV)/.dev  ## the benchmarks but for paper/, one JSON line each; OPTIONS="--threads 1" hands them options
	@for name in overhead search_cost fidelity; do $(BIN)/python benchmarks/$$name.py $(OPTIONS) || exit 1; done

# For a short one: make soak OPTIONS="--count 100 --seed 7"
soak: $(VENV)/.dev  ## what is promised, by force: hours, one JSON line each; docs/reliability.md says what each does
	@for name in startup kills writes hostile failures threads disks zoo; do $(BIN)/python -m soak.$$name $(OPTIONS) || exit 1; done

lowest: $(VENV)/.dev  ## the tests of values, search and serving with the lowest versions that pyproject.toml allows
	$(BIN)/python -m soak.lowest

release: $(VENV)/.dev  ## build sdist and wheel without a network, check them, and draw with the wheel alone
	@$(BIN)/pip install --quiet --disable-pip-version-check build twine hatchling
	$(BIN)/python -m soak.release

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) $(VENV)-lowest .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The constraints hold for the build environment too, hence the variable instead of `pip install -c`.
$(VENV)/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
	  { echo "budcache needs Python 3.10 to 3.13, $(PYTHON) is another one: make PYTHON=python3.11 ..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing budcache into $(VENV) (once; torch is large) ..."
	@PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.studio: $(VENV)/.run
	@PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e ".[studio,video]"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@
