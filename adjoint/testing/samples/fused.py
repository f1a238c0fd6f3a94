"""Cases of the activations with parameters and of the fused ops."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

_ABOVE, _BELOW = array(2, 3, low=0.2, high=2.0), array(3, low=-2.0, high=-0.2)
_QKV = array(2, 3, 2), array(1, 4, 2, seed=1), array(2, 4, 5, seed=2)
_MASK = np.array([[[True, False, True, True], [False, False, True, False], [True] * 4]])
_CLASSES = np.array([1, 0, 3])

CASES = [
    *(Case("leaky_relu", (x,), {"slope": slope}) for x in (_ABOVE, _BELOW) for slope in (0.1, 1.5)),
    *(Case("elu", (x,), {"alpha": a, "scale": 1.1}) for x in (_ABOVE, _BELOW) for a in (1.0, 1.3)),
    Case("hardtanh", (array(2, 3, low=-0.9, high=0.9),), {"low": -1.0, "high": 1.5}),
    Case("hardtanh", (_BELOW,), {"low": -0.1, "high": 0.0}, "outside"),
    Case("huber", (array(3, low=0.1, high=0.9),), {"delta": 1.0}),
    Case("huber", (array(2, 3, low=1.1, high=3.0),), {"delta": 1.0}, "linear"),
    *(Case(op, (array(2, 3, 4),), {"axis": axis}) for op in ("softmax", "log_softmax") for axis in (-1, -2)),
    Case("softmax_nll", (array(3, 4), _CLASSES)),
    Case("mse", (array(3, 4), array(3, 4, seed=1))),
    Case("mse", (array(), array(seed=1)), note="one number"),
    Case("softmax_nll", (array(4), np.array(2)), note="one row"),
    Case("linear", (array(2, 3), array(4, 3, seed=1), array(4, seed=2))),
    Case("linear", (array(3), array(4, 3, seed=1), array(4, seed=2)), note="vector"),
    Case("linear", (array(2, 1, 3), array(4, 3, seed=1), array(4, seed=2)), note="batch"),
    Case("linear", (array(2, 3), array(4, 3, seed=1), 0), note="no bias"),
    *(
        Case(op, (array(2, 3, 4),), {"axis": axis, "eps": 1e-5})
        for op in ("standardize", "rms_standardize")
        for axis in ((-1,), (-3, -1))
    ),
    Case("layer_norm", (array(2, 3, 4), array(4, seed=1), array(4, seed=2)), {"eps": 1e-5}),
    Case("layer_norm", (array(2, 4), array(4, seed=1), 0), {"eps": 1e-5}, "no bias"),
    Case("layer_norm", (array(4), 1, array(4, seed=2)), {"eps": 1e-5}, "no weight"),
    *(
        Case(op, (*args, mask), {"scale": 0.5, "causal": causal}, note)
        for op, args in (("attention", _QKV), ("attention_weights", _QKV[:2]))
        for mask, causal, note in (
            (0, False, "all"),
            (0, True, "causal"),
            (_MASK, False, "boolean mask"),
            (array(1, 3, 4, seed=4), False, "float mask"),
            (_MASK[:, :1], True, "boolean mask, causal"),
            (array(1, 3, 4, seed=4), True, "float mask, causal"),
        )
    ),
    Case("tanh_gelu", (array(2, 3, low=-3.0, high=3.0),)),
    Case("lstm_cell", (array(2, 8), array(2, 2, seed=1))),
    *(
        Case(
            "lstm_sequence",
            (array(steps, 3, 8), array(8, 2, seed=1), bias, array(3, 2, seed=3), array(3, 2, seed=4)),
        )
        for steps, bias in ((3, array(8, seed=2)), (1, 0))
    ),
    Case("lstm_slopes", (array(3, 6, 2, 2),)),
    Case(
        "lstm_push", (array(3, 2, 8), array(3, 2, 2, seed=1), array(3, 6, 2, 2, seed=2), array(8, 2, seed=3))
    ),
    Case("lstm_push", (array(2, 2, 8), 0, array(2, 6, 2, 2, seed=2), array(8, 2, seed=3)), note="one input"),
    Case(
        "lstm_pull",
        (
            array(3, 2, 2),
            array(3, 2, 2, seed=1),
            array(3, 2, 8, seed=2),
            array(3, 6, 2, 2, seed=3),
            array(8, 2, seed=4),
        ),
    ),
    Case(
        "lstm_pull",
        (0, array(2, 2, 2, seed=1), 0, array(2, 6, 2, 2, seed=3), array(8, 2, seed=4)),
        note="of cells",
    ),
    *(
        Case("gru_sequence", (array(steps, 3, 6), array(6, 2, seed=1), bias, array(3, 2, seed=3)))
        for steps, bias in ((3, array(6, seed=2)), (1, 0))
    ),
    Case(
        "gru_push", (array(3, 2, 6), array(3, 2, 2, seed=1), array(3, 4, 2, 2, seed=2), array(6, 2, seed=3))
    ),
    Case(
        "gru_pull", (array(3, 2, 2), array(3, 2, 6, seed=1), array(3, 4, 2, 2, seed=2), array(6, 2, seed=3))
    ),
]
