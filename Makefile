PYTHON ?= python

.PHONY: soak
soak: ## random graphs, failures and threads for minutes; not part of the tests
	PYTHONPATH=. $(PYTHON) tests/soak.py
