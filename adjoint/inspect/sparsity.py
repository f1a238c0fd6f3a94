"""``spy``: draw the pattern of a Jacobian or Hessian, and the colours of its products."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.errors import ArgumentError, InputError, MissingExtraError
from adjoint.sparsity.derivatives import SparseDerivative
from adjoint.sparsity.plan import Plan
from adjoint.transforms.inputs import as_function, name_of

__all__ = ["Spy", "spy"]

_WIDTH = 64  # characters of a text, at most
_DOTS = "⠁⠂⠄⡀⠈⠐⠠⢀"  # the dots of a Braille character, column by column


class Spy:
    """The pattern of a sparse derivative, as ``ad.inspect.spy`` returns it; it prints as a text.

    Parameters
    ----------
    name : str
        What the pattern is of.
    plan : Plan
        The products that give the derivative.

    Attributes
    ----------
    pattern : scipy.sparse.csr_array
        The pattern.
    columns, rows : numpy.ndarray
        The colour of each column in the products of forward mode, and of each row in those of reverse mode;
        -1 for none.
    products : int
        The number of products.
    """

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.pattern, self.columns, self.rows = plan.pattern, plan.columns, plan.rows
        self.products = plan.count

    def text(self) -> str:
        """Return the pattern as Braille characters below a line that describes it.

        Returns
        -------
        str
            The text.  A dot stands for a part of the matrix with an entry.
        """
        m, n = self.pattern.shape
        counts = (self.plan.forward, "columns"), (self.plan.backward, "rows")
        modes = [f"{k} of {what}" for k, what in counts if k]
        title = f"{self.name}: {m} x {n}, {self.pattern.nnz} entries, {self.products} products"
        return "\n".join([title + (f" ({', '.join(modes)})" if modes else ""), *self._picture()])

    def _picture(self) -> list[str]:
        """Return lines of Braille characters, each of 4 by 2 dots."""
        m, n = self.pattern.shape
        size = min(2 * _WIDTH, max(m, n, 1))
        high, wide = (max(1, -(-k * size // max(m, n, 1))) for k in (m, n))
        dots = np.zeros((-(-high // 4) * 4, -(-wide // 2) * 2), bool)
        rows = np.repeat(np.arange(m), np.diff(self.pattern.indptr))
        dots[rows * high // max(m, 1), self.pattern.indices.astype(np.int64) * wide // max(n, 1)] = True
        cells = dots.reshape(len(dots) // 4, 4, -1, 2).transpose(0, 2, 3, 1).reshape(len(dots) // 4, -1, 8)
        codes = (cells * [ord(d) - 0x2800 for d in _DOTS]).sum(axis=-1) + 0x2800
        return ["".join(map(chr, line)).rstrip("⠀") for line in codes.tolist()]

    def figure(self) -> Any:
        """Return the pattern as a figure of matplotlib: each entry has the colour of its product.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError("drawing plots", "matplotlib", "plot") from None
        figure = Figure(figsize=(5, 5), layout="constrained")
        axes = figure.add_subplot()
        m, n = self.pattern.shape
        rows = np.repeat(np.arange(m), np.diff(self.pattern.indptr))
        cols = self.pattern.indices
        size = max(0.3, min(30.0, (200.0 / max(m, n, 1)) ** 2))
        axes.scatter(cols, rows, c=self.plan.products(), s=size, marker="s", cmap="turbo", linewidths=0)
        axes.set(xlim=(-0.5, n - 0.5), ylim=(m - 0.5, -0.5), aspect="equal" if m and n else "auto")
        axes.set_title(self.text().partition("\n")[0], fontsize=8)
        return figure

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


def spy(
    f: Callable[..., Any],
    *args: Any,
    hessian: bool = False,
    argnums: int = 0,
    path: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Spy:
    """Show the pattern of the Jacobian of a function, and the colours of the products that give it.

    Parameters
    ----------
    f : callable
        The function, or a result of ``ad.jacobian`` or ``ad.hessian`` with ``sparse=True``.
    *args : tensor, array, number or pytree
        Its arguments.
    hessian : bool, optional
        Whether to show the Hessian.
    argnums : int, optional
        The position of the argument to differentiate with respect to.
    path : path, optional
        The file to write, in a format that matplotlib knows by the ending: .png, .svg or .pdf.
    **kwargs : object
        Keyword arguments of the function.

    Returns
    -------
    Spy
        The pattern.  It prints as a text, and ``figure()`` returns a plot.

    Raises
    ------
    InputError
        If ``f`` is not a function.
    ArgumentError
        If ``path`` has no ending.
    MissingExtraError
        If ``path`` is given and matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np, adjoint as ad
    >>> print(ad.inspect.spy(lambda x: x[1:] * x[:-1], np.ones(9)))
    <lambda>: 8 x 9, 16 entries, 2 products (2 of columns)
    ⠙⢦⡀
    ⠀⠀⠙⢦⡀
    """
    if isinstance(f, SparseDerivative):
        derivative = f
    else:
        as_function("spy", f)
        transform = "hessian" if hessian else "jacobian"
        derivative = SparseDerivative(transform, f, argnums, False, None, True, True)
    if path is not None and not os.path.splitext(os.fspath(path))[1]:
        raise ArgumentError(f"spy: path={os.fspath(path)!r} has no ending.\n  Use .png, .svg or .pdf.")
    if not args:
        raise InputError("spy: the arguments of the function are missing: ad.inspect.spy(f, x, …).")
    found = Spy(name_of(derivative.f), derivative.plan(derivative.record(args, kwargs)[0], args, kwargs))
    if path is not None:
        found.figure().savefig(path)
    return found
