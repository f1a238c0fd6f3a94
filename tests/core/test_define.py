"""``define``: the facts of an op in one record."""

from __future__ import annotations

import numpy as np
import pytest
from table import OP_NAMES, op_of

import adjoint as ad
from adjoint.errors import ArgumentError


@pytest.mark.parametrize("name", OP_NAMES)
def test_every_op_has_a_batch_rule(name):
    assert callable(op_of(name).batch)


def test_an_unknown_batch_rule_is_named():
    with pytest.raises(ArgumentError) as caught:
        ad.define(
            "unknown_batch_rule", np.sin, lambda xp, g, y, x: g * xp.cos(x), saves="x", batch="trailing"
        )
    assert str(caught.value) == (
        "define 'unknown_batch_rule': batch must be one of 'elementwise', 'leading', 'fused' or a function, "
        "not 'trailing'."
    )
