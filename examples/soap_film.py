"""A partial differential equation by Newton's method: the soap film in a bent wire frame.

The film has the least area of all surfaces with this edge.  The Hessian of the area is sparse: the height at a
point of the grid meets only its neighbours.  ``ad.hessian(…, sparse=True)`` finds where its elements are, and computes
them with a few products, so that a step is one sparse solve with thousands of unknowns.

    python examples/soap_film.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pictures import panels, save
from scipy.sparse.linalg import spsolve

import adjoint as ad


def frame(n: int) -> np.ndarray[Any, Any]:
    """Return heights on a grid: those of the wire at the edge, and 0 inside."""
    t = np.linspace(0, 1, n)
    height = np.zeros((n, n))
    height[0], height[-1] = np.sin(np.pi * t), np.sin(np.pi * t)
    height[:, 0], height[:, -1] = -(np.sin(2 * np.pi * t) ** 2) / 2, -np.sin(np.pi * t) / 2
    return height


def main(n: int = 80) -> float:
    edge, space = frame(n), 1 / (n - 1)

    def area(inner: Any) -> Any:
        """Return the area of the film: two triangles per cell."""
        z = ad.asarray(edge).at[1:-1, 1:-1].set(inner.reshape(n - 2, n - 2))
        down, right = ad.diff(z, axis=0) / space, ad.diff(z, axis=1) / space
        first = 1 + down[:, :-1] ** 2 + right[:-1] ** 2
        second = 1 + down[:, 1:] ** 2 + right[1:] ** 2
        return (ad.sqrt(first) + ad.sqrt(second)).sum() * space**2 / 2

    value, hessian = ad.compile(ad.value_and_grad(area)), ad.compile(ad.hessian(area, sparse=True))
    u = np.zeros((n - 2) ** 2)
    sizes = []
    for _ in range(30):
        now, slope = value(u)
        sizes.append(float(np.abs(slope).max()))
        if sizes[-1] < 1e-12:
            break
        step = spsolve(hessian(u).tocsc(), -slope)
        while value(u + step)[0] > now + 1e-4 * slope @ step + 1e-15:
            step /= 2
        u = u + step
    matrix = hessian(u)
    products = ad.inspect.spy(ad.hessian(area, sparse=True), u).products
    print(f"{len(u)} unknowns: area {value(u)[0]:.6f} after {len(sizes) - 1} steps")
    print(f"Hessian: {matrix.nnz} elements from {products} products")

    figure, (left, right) = panels(2, height=3.0)
    height = edge.copy()
    height[1:-1, 1:-1] = u.reshape(n - 2, n - 2)
    shown = left.contourf(height, 24, cmap="viridis", extent=(0, 1, 0, 1))
    figure.colorbar(shown, ax=left, label="height")
    left.set(title="soap film", xticks=[], yticks=[], aspect="equal")
    right.semilogy(sizes, "o-", color="C1")
    right.set(xlabel="Newton step", ylabel="largest slope", title="convergence")
    print(save(figure, "soap_film.png"))
    return sizes[-1]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
