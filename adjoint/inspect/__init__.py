"""Look inside a step: why gradients are missing, where time and memory go, what the graph is."""

from adjoint.hints import add_hints as _add_hints
from adjoint.inspect.causes import Finding
from adjoint.inspect.drawing import Drawing, draw
from adjoint.inspect.explain import Explanation, explain
from adjoint.inspect.profiling import Profile, Row, profile
from adjoint.inspect.recorder import Recorder
from adjoint.inspect.reporting import report
from adjoint.inspect.sparsity import Spy, spy
from adjoint.inspect.summaries import Layer, Summary, summary

__all__ = [
    "Drawing", "Explanation", "Finding", "Layer", "Profile", "Recorder", "Row", "Spy", "Summary", "draw",
    "explain", "profile", "report", "spy", "summary",
]  # fmt: skip
__dir__ = sorted(__all__).copy


_add_hints(__name__)
