"""Rules of ``primitive`` and ``defvjp``, real and complex, beside autograd's own: a rename is enough."""

from __future__ import annotations

import numpy
import pytest

pytest.importorskip("autograd")

import autograd.extend
import autograd.numpy as theirs
import autograd_rules

import adjoint as ad
import adjoint.numpy as ours
from adjoint import extend

OURS = autograd_rules.primitives(ours, extend.primitive, extend.defvjp)
THEIRS = autograd_rules.primitives(theirs, autograd.extend.primitive, autograd.extend.defvjp)


def both_orders(seed, np, made, grad):
    """The gradients in both vectors, then those of a real function of these gradients."""
    loss = autograd_rules.program(seed, np, made)
    x, z = autograd_rules.point(seed)
    first = [grad(loss, i)(x, z) for i in (0, 1)]

    def of_gradients(x, z):
        a, b = (grad(loss, i)(x, z) for i in (0, 1))
        return np.sum(np.sin(np.real(a))) + np.sum(np.abs(b) ** 2)

    return [*first, *(grad(of_gradients, i)(x, z) for i in (0, 1))]


def compare(seed):
    found = both_orders(seed, ours, OURS, ad.grad)
    wanted = both_orders(seed, theirs, THEIRS, autograd.grad)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        # complex gradients of autograd are the conjugates; where a rule is complex it has no real ones
        b = numpy.conj(b) if i % 2 else numpy.real(b)
        scale = max(1.0, float(numpy.abs(b).max()))
        numpy.testing.assert_allclose(numpy.asarray(a), b, rtol=0, atol=1e-9 * scale, err_msg=f"{seed}: {i}")


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("seed", range(60))
def test_random_programs_of_complex_rules(seed):
    compare(seed)
