# The commands of this project. Everything is installed into .venv; nothing is expected but python3 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := uv==0.13.7
LINT := .venv-lint
# Hundreds of Python processes start in the tests; each would compile all of Prefect anew, a second and a half at a time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup quickstart test test-faults test-kubernetes lint bench ui deploy cluster-up cluster-down clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready  ## install everything into .venv

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "prefect-tao needs Python 3.11 to 3.13, this is %d.%d: run make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@echo "==> setting up $(VENV) (once; about a minute without a package cache)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(UV)" 2>/dev/null || $(BIN)/python -m pip install "$(UV)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[all,dev]'
	@touch $@
	@echo "==> ready: $(BIN)/prefect-tao --help"

quickstart: setup  ## train, evaluate and export a small model as Prefect tasks, here
	@$(BIN)/prefect-tao quickstart

test: setup lint  ## all tests
	@$(BIN)/pytest -m "not long" -n 3 --dist loadgroup --durations=40 tests

test-faults: setup  ## the long tests: many faults, much load, killed workers, Postgres
	@$(BIN)/pytest --override-ini=timeout=1800 -m long -n 2 --dist loadgroup tests

test-kubernetes: setup  ## the Kubernetes driver on a real cluster: KUBECONFIG=... [NAMESPACE=...] [IMAGE=...]
	@test -n "$(KUBECONFIG)" || { echo "name the cluster: make test-kubernetes KUBECONFIG=~/.kube/config"; exit 2; }
	@PREFECT_TAO_TEST_KUBECONFIG="$(KUBECONFIG)" PREFECT_TAO_TEST_NAMESPACE="$(NAMESPACE)" PREFECT_TAO_TEST_IMAGE="$(IMAGE)" \
		$(BIN)/pytest --override-ini=timeout=1800 -k TestRealKubernetes tests/contract/test_kubernetes.py

lint: $(LINT)/.ready  ## ruff, mypy and shellcheck over all packages
	@$(LINT)/bin/ruff check .
	@$(LINT)/bin/ruff format --check .
	@$(LINT)/bin/shellcheck $$(find src -name '*.sh')
	@$(LINT)/bin/uv pip install --quiet --python $(LINT)/bin/python --no-deps --config-setting editable_mode=strict --editable .
	@$(LINT)/bin/mypy -p prefect_tao
	@$(LINT)/bin/mypy docs/shelf

# Type checkers see the mapped folders only through a strict editable install (a tree of links), made anew each time.
$(LINT)/.ready: pyproject.toml constraints.txt
	@echo "==> setting up $(LINT) for ruff, mypy and shellcheck"
	@test -x $(LINT)/bin/python || $(PYTHON) -m venv $(LINT)
	@$(LINT)/bin/python -m pip install --quiet --disable-pip-version-check "$(UV)" 2>/dev/null || $(LINT)/bin/python -m pip install "$(UV)"
	@$(LINT)/bin/uv pip install --quiet --python $(LINT)/bin/python --constraint constraints.txt --config-setting editable_mode=strict --editable '.[all,dev]'
	@touch $@

bench: setup  ## measure side by side with peers; writes benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks

ui: setup  ## start the Prefect server with its UI on this machine
	@$(BIN)/prefect-tao ui

deploy: setup  ## bring blocks, work pool, deployments and automations to the server (PREFECT_API_URL, else the one here)
	@$(BIN)/python -m prefect_tao.deployments $(if $(POOL),--pool-type $(POOL))

cluster-up: setup  ## start a SLURM cluster on this machine, to try things on (Debian, root)
	@$(BIN)/python tests/services/slurm/cluster.py up

cluster-down:  ## stop it; its jobs end, its files stay
	@$(PYTHON) tests/services/slurm/cluster.py down

clean:  ## remove what make made (never your results)
	rm -rf $(VENV) $(LINT) .bench build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache test-output
