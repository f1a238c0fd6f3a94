"""``autograd.misc.optimizers``."""

from adjoint.autograd.descent import adam, rmsprop, sgd, unflatten_optimizer

__all__ = ["adam", "rmsprop", "sgd", "unflatten_optimizer"]
