"""Colours: no two entries that one product would join have the same colour."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from adjoint.sparsity.coloring import column_colours, split_colours, star_colours


def random_pattern(rng: np.random.Generator, m: int, n: int, density: float) -> scipy.sparse.csr_array:
    found = scipy.sparse.csr_array(rng.random((m, n)) < density)
    found.sort_indices()
    return found


def assert_free(p: scipy.sparse.csr_array, colours: np.ndarray) -> None:
    """No row has two entries of one colour, and columns have a colour if they have an entry."""
    for row in np.split(p.indices, p.indptr[1:-1]):
        assert len(set(colours[row])) == len(row)
    assert ((colours >= 0) == (np.diff(p.tocsc().indptr) > 0)).all()


@pytest.mark.parametrize("seed", range(12))
def test_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = random_pattern(rng, 20, 30, rng.uniform(0, 0.3))
    assert_free(p, column_colours(p))
    assert_free(p, column_colours(p, [(5, 6)]))


@pytest.mark.parametrize("seed", range(12))
def test_rows_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = random_pattern(rng, 20, 30, 0.1).toarray()
    dense[7] = True
    p = scipy.sparse.csr_array(dense)
    rows, colours = split_colours(p)
    assert 7 in rows
    dense[rows] = False
    assert_free(scipy.sparse.csr_array(dense), colours)


@pytest.mark.parametrize("seed", range(30))
def test_stars(seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.random((14, 14)) < rng.uniform(0.05, 0.4)
    dense = half | half.T
    colours = star_colours(scipy.sparse.csr_array(dense))
    near = [np.flatnonzero(row) for row in dense & ~np.eye(14, dtype=bool)]
    for a in range(14):
        for b in near[a]:
            assert colours[a] != colours[b]
            for c in near[b]:
                for d in near[c]:
                    if len({a, b, c, d}) == 4:
                        assert len({colours[i] for i in (a, b, c, d)}) > 2


def stencil(n: int, m: int) -> scipy.sparse.csr_array:
    line = lambda k: scipy.sparse.diags_array(
        [np.ones(k - 1), np.ones(k), np.ones(k - 1)], offsets=[-1, 0, 1]
    )
    eye = scipy.sparse.eye_array
    found = scipy.sparse.csr_array(
        scipy.sparse.kron(line(n), eye(m)) + scipy.sparse.kron(eye(n), line(m)), dtype=bool
    )
    found.sort_indices()
    return found


@pytest.mark.parametrize("shapes", [[(30, 40)], [(1200,)]])
def test_a_stencil_needs_as_many_colours_as_it_has_points(shapes: list[tuple[int, ...]]) -> None:
    p = stencil(30, 40)
    colours = column_colours(p, shapes)
    assert_free(p, colours)
    assert colours.max() == 4


def test_an_arrow_needs_two_stars() -> None:
    dense = np.eye(50, dtype=bool)
    dense[0] = dense[:, 0] = True
    assert star_colours(scipy.sparse.csr_array(dense)).max() == 1


def test_a_band_needs_three_stars() -> None:
    p = scipy.sparse.diags_array([np.ones(49), np.ones(50), np.ones(49)], offsets=[-1, 0, 1]).tocsr()
    assert star_colours(p).max() == 2
