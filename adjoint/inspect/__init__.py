"""Look inside a step: why gradients are missing, where time and memory go, what the graph is."""

from adjoint.inspect.causes import Finding
from adjoint.inspect.explain import Explanation, explain
from adjoint.inspect.profiling import Profile, Row, profile
from adjoint.inspect.summaries import Layer, Summary, summary

__all__ = ["Explanation", "Finding", "Layer", "Profile", "Row", "Summary", "explain", "profile", "summary"]


def __dir__() -> list[str]:
    return sorted(__all__)
