# Needs Python 3.11 or newer and make, nothing else: every target builds the environment it runs in.
#   make test PYTHON=/path/to/python3.13     choose the interpreter (after "make clean", if there is a .venv)
#   make test ARGS="-k fenced -x"            pass arguments on; also for demo, chaos and bench

# The interpreter for the environments; empty means the first of CANDIDATES that will do.
PYTHON ?=
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
# Test processes at a time.
JOBS ?= 2
ARGS ?=
# Only for "make lock", which only a change of dependencies needs.
UV ?= uv

REQUIREMENTS := tests/requirements
PY := .venv/bin/python
BENCH_PY := .venv-bench/bin/python
CHECKED := $(wildcard src tests examples)
FORKING := tests/crash tests/seeded tests/testing
PYTEST = $(PY) -m pytest -n $(JOBS) --dist loadgroup
LOCK := $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-header --no-emit-index-url
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two targets never install into one environment at the same time.
.NOTPARALLEL:
.PHONY: help demo test chaos bench lint format lock clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core ## Kill an agent at step 47 of 50, then a worker of a server, and watch them come back (no key, no network)
	@$(PY) examples/killed_at_47/demo.py $(ARGS)
	@$(if $(ARGS),,echo && $(PY) examples/killed_worker/demo.py)

# Two runs: the crash tests fork their process thousands of times, and one that has collected everything is too large.
# With ARGS, such as -k, one of them may have nothing to do: exit code 5.
test: .venv/.test ## Run the tests
	@first=0; second=0; \
	$(PYTEST) $(FORKING) $(ARGS) || first=$$?; \
	$(PYTEST) $(addprefix --ignore ,$(FORKING)) $(ARGS) || second=$$?; \
	case $$first,$$second in 0,0 | 0,5 | 5,0) ;; *) exit 1 ;; esac

chaos: .venv/.test ## Run the long, randomised kill experiments
	$(PY) -m pytest -m chaos --timeout 3600 $(ARGS)

bench: .venv-bench/.bench ## Run the benchmarks, in an environment of their own
	$(BENCH_PY) -m tests.bench.run $(ARGS)

lint: .venv/.test ## Check hygiene, style, format, types and layering
	$(PY) tests/hygiene.py
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(CHECKED)
	.venv/bin/lint-imports --no-cache

format: .venv/.test ## Format the code and fix what can be fixed
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

lock: ## Compile the pinned requirements anew (maintainers; needs uv)
	$(LOCK) -o $(REQUIREMENTS)/core.txt --extra server pyproject.toml $(REQUIREMENTS)/build.in
	$(LOCK) -o $(REQUIREMENTS)/test.txt -c $(REQUIREMENTS)/core.txt --extra all \
	    pyproject.toml $(REQUIREMENTS)/build.in $(REQUIREMENTS)/test.in
	$(LOCK) -o $(REQUIREMENTS)/bench.txt -c $(REQUIREMENTS)/test.txt --extra all \
	    pyproject.toml $(REQUIREMENTS)/build.in $(REQUIREMENTS)/test.in $(REQUIREMENTS)/bench.in

clean: ## Remove environments, caches and build products
	rm -rf .venv .venv-bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples adapters -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The environments. A file in each says how far it came; a failed or interrupted install leaves none and starts over.

.venv/.created:
	$(call create_environment,.venv)
	@touch $@

.venv/.core: .venv/.created $(REQUIREMENTS)/core.txt pyproject.toml
	$(call install,$(PY),core)
	@touch $@

# The test set holds the core set, with the same pins.
.venv/.test: .venv/.created $(REQUIREMENTS)/test.txt pyproject.toml
	$(call install,$(PY),test)
	@touch .venv/.core $@

.venv-bench/.created:
	$(call create_environment,.venv-bench)
	@touch $@

.venv-bench/.bench: .venv-bench/.created $(REQUIREMENTS)/bench.txt pyproject.toml
	$(call install,$(BENCH_PY),bench)
	@touch $@

define install
@echo "Installing the pinned $(2) requirements and Holdfast ..."
@$(1) $(PIP_INSTALL) --require-hashes -r $(REQUIREMENTS)/$(2).txt
@$(1) $(PIP_INSTALL) --no-deps --no-build-isolation -e .
endef

# A candidate must be new enough and able to make an environment: Debian ships python3 without ensurepip.
define create_environment
@found=; seen=; \
for python in $(if $(PYTHON),"$(PYTHON)",$(CANDIDATES)); do \
    version=`"$$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null` || continue; \
    if ! "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
        seen="$$seen    $$python is Python $$version: too old\n"; \
    elif ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
        seen="$$seen    $$python is Python $$version, but without the venv module (Debian, Ubuntu: apt install python3-venv)\n"; \
    else \
        found=$$python; break; \
    fi; \
done; \
if [ -z "$$found" ]; then \
    { echo "Holdfast needs Python 3.11 or newer with the venv module, and found:"; \
      printf "%b" "$${seen:-    no Python that runs\n}"; \
      echo "Install one, or name it: make <target> PYTHON=/path/to/python3"; } >&2; \
    exit 1; \
fi; \
echo "Creating $(1) with $$found (Python $$version) ..."; \
"$$found" -m venv --clear $(1)
endef
