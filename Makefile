# Needs Python 3.11 or newer and make, nothing else: every target builds the environment it runs in.
#   make test PYTHON=/path/to/python3.13     choose the interpreter (after "make clean", if there is a .venv)
#   make test ARGS="-k fenced -x"            pass arguments on, to all tests; also for floors, demo, chaos and bench
#   make test ADAPTERS=                      only the library's own tests; ADAPTERS=langgraph: and that adapter's

# The interpreter for the environments; empty means the first of CANDIDATES that will do.
PYTHON ?=
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
# Test processes at a time, on 2 cores: most tests wait more than they work. Those that fork fill the cores by themselves.
JOBS ?= 3
ARGS ?=
# Only for "make lock", which only a change of dependencies needs.
UV ?= uv

REQUIREMENTS := tests/requirements
# Every adapter has environments of its own, since no one environment holds the newest of all frameworks: for each file
# requirements/NAME.in one, called .venv-<adapter> for "test" and .venv-<adapter>-NAME for the others. "floor" has the oldest
# versions; any further one has tests of its own, in tests/NAME.
ADAPTERS := $(patsubst adapters/%/pyproject.toml,%,$(wildcard adapters/*/pyproject.toml))
places = $(patsubst adapters/$(1)/requirements/%.in,%,$(wildcard adapters/$(1)/requirements/*.in))
further = $(filter-out test floor,$(call places,$(1)))
venv = .venv-$(1)$(if $(filter-out test,$(2)),-$(2))
NEWEST := $(foreach name,$(ADAPTERS),$(foreach place,test $(call further,$(name)),$(call venv,$(name),$(place))/.test))
FLOORED := $(foreach name,$(ADAPTERS),$(if $(filter floor,$(call places,$(name))),$(name)))
FLOORS := $(foreach name,$(FLOORED),$(call venv,$(name),floor)/.test)
PY := .venv/bin/python
BENCH_PY := .venv-bench/bin/python
# Adapters whose frameworks go together in one environment, that of the benchmarks.
BENCHED := langgraph openai_agents
# An example that needs a framework begins with its adapter's name, and is checked in that environment.
CHECKED := src tests $(filter-out $(foreach name,$(ADAPTERS),$(wildcard examples/$(name)_*)),$(wildcard examples/*))
FORKING := tests/crash tests/seeded tests/testing
PYTEST := -m pytest -p tests.sampling --dist loadgroup
# "make test" runs a sample of the tests, "make test-all" the rest (tests/sampling.py); arguments choose by themselves.
SAMPLE = $(if $(ARGS),,--sample)
CHAOS := -m pytest -p tests.sampling -m chaos --timeout 3600
LOCK := $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-header --no-emit-index-url --no-strip-extras
PIP_INSTALL := -m pip install --no-compile --quiet --disable-pip-version-check --no-input

# Hundreds of processes are started in the tests: none should have to compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

AGAIN := $(MAKE) --no-print-directory

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two targets never install into one environment at the same time.
.NOTPARALLEL:
.PHONY: help demo test test-all floors chaos bench lint format lock clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core ## Kill an agent at step 47 of 50, then a worker of a server, and watch them come back (no key, no network)
	@$(PY) examples/killed_at_47/demo.py $(ARGS)
	@$(if $(ARGS),,echo && $(PY) examples/killed_worker/demo.py)

# Two runs of the library's: the crash tests fork their process thousands of times, and one that has collected everything
# is too large. Meanwhile the adapters' environments are made, and then each adapter has a run in its own.
test: .venv/.test ## Run the tests: the library's, and each adapter's with the newest of its framework; each promise on each store
	@$(all_of) \
	$(AGAIN) .venv/.test $(NEWEST) >.venv/adapters.log 2>&1 & adapters=$$!; \
	run $(PY) $(PYTEST) $(SAMPLE) -n 2 $(FORKING) $(ARGS); \
	run $(PY) $(PYTEST) $(SAMPLE) -n $(JOBS) $(addprefix --ignore ,$(FORKING)) $(ARGS); \
	wait $$adapters || { cat .venv/adapters.log; exit 1; }; \
	$(foreach name,$(ADAPTERS),$(call tested,$(name),test) $(foreach place,$(call further,$(name)),$(call tested,$(name),$(place)))) \
	$(verdict)

# Of an adapter or a folder, all tests may be in the sample: exit code 5 is fine.
test-all: ## Run what "make test" leaves out: the other combinations of stores and callers, and the longer tests
	@$(MAKE) --no-print-directory test SAMPLE=--rest SOME=rest

floors: $(FLOORS) ## Run each adapter's tests with the oldest versions of its framework
	@$(all_of) $(foreach name,$(FLOORED),$(call tested,$(name),floor)) $(verdict)

# $(1): an adapter, $(2): one of its environments.
tests = $(if $(filter test floor,$(2)),adapters/$(1)/tests $(addprefix --ignore adapters/$(1)/tests/,$(call further,$(1))),adapters/$(1)/tests/$(2))
tested = run $(call venv,$(1),$(2))/bin/python $(PYTEST) $(SAMPLE) -n $(JOBS) $(ARGS) $(call tests,$(1),$(2));
# Of some tests only, such as -k, a run may have none: exit code 5. All of them, or one of the whole, is a mistake.
SOME = $(ARGS)
all_of = ran=; failed=; run() { \
    code=0; "$$@" || code=$$?; case "$$code$(if $(SOME), of some)" in 0*) ran=1 ;; "5 of some") ;; *) failed=1 ;; esac; };
verdict = [ -z "$$failed" ] && [ -n "$$ran" ]

chaos: SOME = chaos
chaos: .venv/.test $(NEWEST) ## Run the long, randomised kill experiments
	@$(all_of) run $(PY) $(CHAOS) $(ARGS); \
	$(foreach name,$(ADAPTERS),$(foreach place,test $(call further,$(name)),\
	    run $(call venv,$(name),$(place))/bin/python $(CHAOS) $(call tests,$(name),$(place)) $(ARGS);)) $(verdict)

# CrewAI's pins do not go with the others', so its sections ask a process of its adapter's environment.
bench: .venv-bench/.bench .venv-crewai/.test .venv-autogen/.test ## Run the benchmarks, in an environment of their own
	BENCH_CREWAI_PYTHON=$(CURDIR)/.venv-crewai/bin/python BENCH_AUTOGEN_PYTHON=$(CURDIR)/.venv-autogen/bin/python \
	    $(BENCH_PY) -m tests.bench.run $(ARGS)

lint: .venv/.test $(NEWEST) ## Check hygiene, style, format, types and layering
	$(PY) tests/hygiene.py
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(CHECKED)
	.venv/bin/lint-imports --no-cache
	$(foreach name,$(ADAPTERS),$(call typed,$(name)))

define typed
MYPYPATH=adapters/$(1)/src $(call venv,$(1),test)/bin/python -m mypy --cache-dir .mypy_cache/$(1) $(wildcard adapters/$(1)/src adapters/$(1)/tests examples/$(1)_*)

endef

format: .venv/.test ## Format the code and fix what can be fixed
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

lock: ## Compile the pinned requirements anew (maintainers; needs uv)
	$(LOCK) -o $(REQUIREMENTS)/core.txt --extra server pyproject.toml $(REQUIREMENTS)/build.in
	$(LOCK) -o $(REQUIREMENTS)/test.txt -c $(REQUIREMENTS)/core.txt --extra all \
	    pyproject.toml $(REQUIREMENTS)/build.in $(REQUIREMENTS)/test.in
	$(LOCK) -o $(REQUIREMENTS)/bench.txt -c $(REQUIREMENTS)/test.txt --extra all \
	    pyproject.toml $(REQUIREMENTS)/build.in $(REQUIREMENTS)/test.in $(REQUIREMENTS)/bench.in
	$(foreach name,$(ADAPTERS),$(foreach place,$(call places,$(name)),$(call locked,$(name),$(place))))

# The newest environments have the pins of the library's own tests; old frameworks, those that are no longer maintained,
# and those that ask for older versions of what the tests use (CrewAI: pydantic, rich) may not go with them.
UNPINNED := crewai swarm
pinned = $(if $(and $(filter test,$(2)),$(filter-out $(UNPINNED),$(1))),-c $(REQUIREMENTS)/test.txt)
define locked
$(LOCK) -o adapters/$(1)/requirements/$(2).txt $(call pinned,$(1),$(2)) --extra all \
    pyproject.toml $(REQUIREMENTS)/build.in adapters/$(1)/requirements/$(2).in

endef

clean: ## Remove environments, caches and build products
	rm -rf .venv .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
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

.venv-%/.created:
	$(call create_environment,.venv-$*)
	@touch $@

.venv-bench/.bench: .venv-bench/.created $(REQUIREMENTS)/bench.txt pyproject.toml $(wildcard adapters/*/pyproject.toml)
	$(call install,$(BENCH_PY),bench)
	@$(BENCH_PY) $(PIP_INSTALL) --no-deps --no-build-isolation $(addprefix -e adapters/,$(BENCHED))
	@touch $@

# $(1): an adapter, $(2): one of its environments.
define adapter_environment
$(call venv,$(1),$(2))/.test: $(call venv,$(1),$(2))/.created adapters/$(1)/requirements/$(2).txt pyproject.toml adapters/$(1)/pyproject.toml
	$$(call install_adapter,$(1),$(call venv,$(1),$(2)),$(2))
	@touch $$@
endef
$(foreach name,$(ADAPTERS),$(foreach place,$(call places,$(name)),$(eval $(call adapter_environment,$(name),$(place)))))

define install
@echo "Installing the pinned $(2) requirements and Stepfast ..."
@$(1) $(PIP_INSTALL) --require-hashes -r $(REQUIREMENTS)/$(2).txt
@$(1) $(PIP_INSTALL) --no-deps --no-build-isolation -e .
endef

define install_adapter
@echo "Installing the pinned $(3) requirements of the adapter $(1) ..."
@$(2)/bin/python $(PIP_INSTALL) --require-hashes -r adapters/$(1)/requirements/$(3).txt
@$(2)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation -e . -e adapters/$(1)
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
    { echo "Stepfast needs Python 3.11 or newer with the venv module, and found:"; \
      printf "%b" "$${seen:-    no Python that runs\n}"; \
      echo "Install one, or name it: make <target> PYTHON=/path/to/python3"; } >&2; \
    exit 1; \
fi; \
echo "Creating $(1) with $$found (Python $$version) ..."; \
"$$found" -m venv --clear $(1)
endef
