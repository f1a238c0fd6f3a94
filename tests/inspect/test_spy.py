"""``ad.inspect.spy``: the pattern and the colours of a sparse derivative, as text and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad


def arrow(x: Any) -> Any:
    return ad.concat([(x**2).sum()[None], x[0] * x[1:]])


def test_text_colours_and_counts() -> None:
    found = ad.inspect.spy(arrow, np.ones(16))
    assert found.products == 3 and found.pattern.shape == (16, 16)
    assert found.rows.tolist() == [0] + [-1] * 15 and set(found.columns) == {0, 1}
    assert str(found) == repr(found) == (
        "arrow: 16 x 16, 46 entries, 3 products (2 of columns, 1 of rows)\n⡟⢍⠉⠉⠉⠉⠉⠉\n⡇⠀⠑⢄\n⡇⠀⠀⠀⠑⢄\n⡇⠀⠀⠀⠀⠀⠑⢄"
    )  # fmt: skip


def test_hessians_and_functions_of_jacobian() -> None:
    loss = lambda x: (x[1:] * x[:-1]).sum()
    assert ad.inspect.spy(loss, np.ones(4), hessian=True).pattern.nnz == 6
    assert ad.inspect.spy(ad.hessian(loss, sparse=True), np.ones(4)).pattern.nnz == 6
    assert ad.inspect.spy(ad.jacobian(arrow, sparse="columns"), np.ones(4)).products == 4


@pytest.mark.parametrize("shape", [(), (0,), (5000,)])
def test_sizes(shape: tuple[int, ...]) -> None:
    text = str(ad.inspect.spy(lambda x: x * 2, np.ones(shape)))
    assert max(map(len, text.splitlines())) <= 80
    n = int(np.prod(shape))
    assert text.startswith(f"<lambda>: {n} x {n}, {n} entries")


def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = ad.inspect.spy(arrow, np.ones(16), path=tmp_path / "arrow.png")
    assert (tmp_path / "arrow.png").read_bytes()[:4] == b"\x89PNG"
    (axes,) = found.figure().axes
    dots = axes.collections[0]
    products = {(int(r), int(c)): k for (c, r), k in zip(dots.get_offsets(), dots.get_array(), strict=True)}
    assert len(products) == 46
    # the first row is a product of its own, the first column another, the diagonal a third
    assert {products[0, k] for k in range(16)} == {2}
    assert {products[k, 0] for k in range(1, 16)} == {found.columns[0]}
    assert {products[k, k] for k in range(1, 16)} == {found.columns[1]} != {found.columns[0]}


def test_entries_of_a_hessian_have_the_colour_of_the_product_that_gives_them() -> None:
    pytest.importorskip("matplotlib")
    found = ad.inspect.spy(lambda x: (x[0] * x[1:] ** 2).sum(), np.ones(6), hessian=True)
    dots = found.figure().axes[0].collections[0]
    products = {(int(r), int(c)): k for (c, r), k in zip(dots.get_offsets(), dots.get_array(), strict=True)}
    assert (
        {products[0, k] for k in range(1, 6)} == {products[k, 0] for k in range(1, 6)} == {found.columns[0]}
    )


def test_messages(tmp_path: Path) -> None:
    with pytest.raises(ad.errors.InputError, match="spy: the arguments of the function are missing"):
        ad.inspect.spy(arrow)
    with pytest.raises(ad.errors.ArgumentError, match="has no ending"):
        ad.inspect.spy(arrow, np.ones(3), path=tmp_path / "arrow")
    with pytest.raises(ad.errors.InputError, match="spy: expected a function"):
        ad.inspect.spy(3, np.ones(3))  # type: ignore[arg-type]
