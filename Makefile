PYTHON ?= python

.PHONY: soak
soak: ## random graphs, failures, threads, killed saves and trainings for minutes; not part of the tests
	PYTHONPATH=.:tests/support:tests/engine $(PYTHON) tests/soak.py
	$(PYTHON) -m pytest -m soak tests

.PHONY: ports
ports: ## the tests of libraries that use autograd, with adjoint in its place: make ports PORTS="pymanopt=../pymanopt"
	$(PYTHON) tools/ports/run $(PORTS)
