PYTHON ?= python

.PHONY: soak
soak: ## random graphs, failures, threads and killed saves for minutes; not part of the tests
	PYTHONPATH=. $(PYTHON) tests/soak.py
	$(PYTHON) -m pytest -m soak tests
