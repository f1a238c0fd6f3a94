"""Cases of the Fourier transforms: of the input's length, a longer and a shorter one; odd and even."""

from __future__ import annotations

from adjoint.testing.cases import Case, array

_LENGTHS = ((4, "even"), (5, "odd"), (7, "longer"), (3, "shorter"))


def _half(n: int) -> object:
    return array(2, n // 2 + 1) + 1j * array(2, n // 2 + 1, seed=1)


CASES = [
    *(
        Case(
            "fftn",
            (array(2, 4),),
            {"n": (n,), "axes": (-1,), "norm": norm, "inverse": inverse},
            f"{note}-{norm}",
        )
        for (n, note), norm, inverse in zip(
            _LENGTHS, ("backward", "ortho", "forward", "backward"), (False, True, False, True), strict=True
        )
    ),
    Case(
        "fftn", (array(3, 4),), {"n": (2, 5), "axes": (-2, -1), "norm": "ortho", "inverse": False}, "two axes"
    ),
    *(
        Case("rfftn", (array(2, 4),), {"n": (n,), "axes": (-1,), "norm": norm}, f"{note}-{norm}")
        for (n, note), norm in zip(_LENGTHS, ("backward", "ortho", "forward", "ortho"), strict=True)
    ),
    Case("rfftn", (array(3, 4, 2),), {"n": (4, 5), "axes": (-3, -2), "norm": "backward"}, "two axes"),
    *(
        Case("irfftn", (_half(4),), {"n": (n,), "axes": (-1,), "norm": norm}, f"{note}-{norm}")
        for (n, note), norm in zip(_LENGTHS, ("backward", "ortho", "forward", "ortho"), strict=True)
    ),
    Case("irfftn", (array(3, 4),), {"n": (4, 5), "axes": (-2, -1), "norm": "forward"}, "two axes"),
]
