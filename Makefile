PYTHON ?= python

.PHONY: soak
soak: ## random graphs, failures, threads, killed saves and trainings for minutes; not part of the tests
	PYTHONPATH=.:tests/support:tests/engine $(PYTHON) tests/soak.py
	$(PYTHON) -m pytest -m soak tests
