"""A plugin of pytest: ``import autograd`` imports adjoint (``pytest -p adjoint_as_autograd``)."""

import sys

import adjoint.autograd

sys.modules["autograd"] = adjoint.autograd
