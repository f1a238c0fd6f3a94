"""What networks are made of: ``functional`` has activations, norms, attention, convolutions and losses."""

from adjoint.nn import functional

__all__ = ["functional"]
