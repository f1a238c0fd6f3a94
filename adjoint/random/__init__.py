"""Random tensors from explicit generators; gradients flow to the parameters of a distribution.

``default_rng(seed)`` returns a ``Generator`` on NumPy's counter-based Philox.  There is no global
generator.  A draw from a continuous distribution is a smooth function of its parameters and of noise that
does not depend on them (``normal``: loc + scale · z), so gradients flow to ``loc``, ``scale`` and
``logits``.  Draws of integers and classes have no gradient; ``NoGradientError`` is raised if a gradient is
requested through them alone.

Examples
--------
>>> import adjoint as ad
>>> rng = ad.random.default_rng(0)
>>> scale = ad.tensor(2.0, requires_grad=True)
>>> x = rng.normal(0.0, scale, size=1000)
>>> (x * x).mean().backward()  # E[x²] = scale², so its derivative is about 2 · scale
>>> abs(scale.grad.item() - 4) < 0.5
True
"""

from adjoint.hints import add_hints as _add_hints
from adjoint.random.generator import Generator, default_rng
from adjoint.random.score import score_function

__all__ = ["Generator", "default_rng", "score_function"]


def __dir__() -> list[str]:
    return sorted(__all__)


_add_hints(__name__, f"{__name__}.generator")
