"""Look inside a step: why gradients are missing, where time and memory go, what the graph is."""

from adjoint.inspect.causes import Finding
from adjoint.inspect.explain import Explanation, explain

__all__ = ["Explanation", "Finding", "explain"]


def __dir__() -> list[str]:
    return sorted(__all__)
