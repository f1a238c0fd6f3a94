"""NumPy's protocols, the Array API standard and DLPack: tensors in programs written for others."""

from __future__ import annotations

import builtins
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import (
    ArgumentError,
    DTypeError,
    InputError,
    LostHistoryError,
    NoGradientError,
    SharingError,
)

DTYPES = """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128
""".split()


# The Array API ---------------------------------------------------------------------------------


def test_the_namespace_of_a_tensor_is_adjoint():
    x = ad.tensor([1.0, 2.0])
    assert x.__array_namespace__() is ad
    assert x.__array_namespace__(api_version=ad.__array_api_version__) is ad
    with pytest.raises(ArgumentError, match=r"in the versions 2021\.12, .*2024\.12, not '2019\.01'"):
        x.__array_namespace__(api_version="2019.01")


def test_a_function_written_for_the_standard_differentiates():
    def rms(x):
        xp = x.__array_namespace__()
        return xp.sqrt(xp.mean(xp.astype(x, xp.float64) ** 2, axis=-1))

    a = np.array([[3.0, 4.0]])
    np.testing.assert_allclose(rms(ad.tensor(a)).numpy(), rms(a))
    assert ad.testing.gradcheck(rms, [a], order=2)


def test_no_name_of_the_namespace_hides_a_builtin_inside_adjoint():
    # the modules that say bool, e or pi must not get the dtypes and constants by a star import
    for name in ("bool",):
        assert getattr(ad, name) is not getattr(builtins, name)
    for module in (ad.errors, ad.config, ad.tree, ad.linalg, ad.fft, ad.special):
        assert not hasattr(module, "bool")


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_those_of_tensors(name):
    dtype = getattr(ad, name)
    x = ad.zeros(2, dtype=dtype)
    assert x.dtype == dtype and hash(x.dtype) == hash(dtype)
    assert dtype.name == name


def test_constants():
    assert (ad.pi, ad.e, ad.inf) == (math.pi, math.e, math.inf)
    assert math.isnan(ad.nan)
    assert ad.ones(2)[ad.newaxis].shape == (1, 2)


def test_can_cast_takes_dtypes_and_tensors():
    assert ad.can_cast(ad.int32, ad.float64)
    assert not ad.can_cast(ad.ones(1), ad.float32)
    with pytest.raises(DTypeError, match="'strange' is not a dtype"):
        ad.can_cast("strange", ad.float32)


def test_result_type_follows_the_rules_of_tensors():
    x, y = ad.ones(1, dtype=ad.float32), ad.ones(1, dtype=ad.int32)
    for values in ([x, y], [x, 2.0], [y, 2], [y, 2.0], [x, 1j], [y, True]):
        total = values[0] + values[1]
        assert ad.result_type(*values) == total.dtype, values
    assert ad.result_type(x, ad.float64, y) == ad.float64
    assert ad.result_type(1.0, 2) == ad.get_default_dtype()
    assert np.result_type(x, y) == np.result_type(np.float32, np.int32)
    with pytest.raises(ArgumentError, match="at least one"):
        ad.result_type()


def test_isdtype_knows_kinds_dtypes_and_tuples_of_them():
    assert ad.isdtype(ad.float32, "real floating") and ad.isdtype(ad.float16, "real floating")
    assert ad.isdtype(ad.uint8, "integral") and not ad.isdtype(ad.bool, "numeric")
    assert ad.isdtype(ad.complex64, ("real floating", ad.complex64))
    with pytest.raises(ArgumentError, match=r"kind 'whole' is not known.  The kinds are bool, .*numeric\."):
        ad.isdtype(ad.int8, "whole")


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "complex64", "complex128"])
def test_finfo_has_python_numbers(name):
    info, expected = ad.finfo(getattr(ad, name)), np.finfo(name)
    assert ad.finfo(ad.zeros(1, dtype=name)) == info
    for key in ("eps", "max", "min", "smallest_normal"):
        assert type(getattr(info, key)) is float
        assert getattr(info, key) == getattr(expected, key)
    assert (info.bits, info.dtype) == (expected.bits, expected.dtype)
    with pytest.raises(DTypeError, match="int8 is not a float dtype"):
        ad.finfo(ad.int8)


def test_finfo_knows_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    info, expected = ad.finfo(ml_dtypes.bfloat16), ml_dtypes.finfo(ml_dtypes.bfloat16)
    assert (info.eps, info.max, info.smallest_normal) == (
        float(expected.eps), float(expected.max), float(expected.smallest_normal))  # fmt: skip
    assert ad.isdtype(ml_dtypes.bfloat16, "real floating")


def test_iinfo():
    info = ad.iinfo(ad.tensor([1], dtype=ad.uint8))
    assert (info.bits, info.min, info.max, info.dtype) == (8, 0, 255, ad.uint8)
    with pytest.raises(DTypeError, match="float64 is not an integer dtype"):
        ad.iinfo(float)


def test_the_namespace_describes_itself():
    info = ad.__array_namespace_info__()
    assert info.devices() == [info.default_device()] == ["cpu"]
    assert info.default_dtypes()["real floating"] == ad.zeros(1).dtype
    assert info.default_dtypes()["integral"] == ad.arange(1).dtype
    assert set(info.dtypes()) == set(DTYPES) - {"float16"}
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {"bool", "complex64", "complex128"}
    assert info.capabilities()["max dimensions"] == ad.zeros((1,) * 64).ndim
    with pytest.raises(ArgumentError):
        info.dtypes(device="gpu")


MAKERS = {
    "zeros": lambda **k: ad.zeros(2, **k),
    "ones": lambda **k: ad.ones(2, **k),
    "empty": lambda **k: ad.empty(2, **k),
    "full": lambda **k: ad.full(2, 3.0, **k),
    "zeros_like": lambda **k: ad.zeros_like(ad.ones(2), **k),
    "ones_like": lambda **k: ad.ones_like(ad.ones(2), **k),
    "empty_like": lambda **k: ad.empty_like(ad.ones(2), **k),
    "full_like": lambda **k: ad.full_like(ad.ones(2), 3.0, **k),
    "arange": lambda **k: ad.arange(2, **k),
    "linspace": lambda **k: ad.linspace(0, 1, 2, **k),
    "eye": lambda **k: ad.eye(2, **k),
    "asarray": lambda **k: ad.asarray([1.0], **k),
    "astype": lambda **k: ad.astype(ad.ones(2), ad.float32, **k),
    "from_dlpack": lambda **k: ad.from_dlpack(np.ones(2), **k),
    "fft.fftfreq": lambda **k: ad.fft.fftfreq(2, **k),
    "fft.rfftfreq": lambda **k: ad.fft.rfftfreq(2, **k),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_only_device_is_the_cpu(name):
    x = MAKERS[name](device="cpu")
    assert x.device == "cpu" and x.to_device("cpu") is x
    with pytest.raises(ArgumentError, match=r'tensors are made on "cpu", but got .gpu.\.\n  Compile the'):
        MAKERS[name](device="gpu")


def test_to_device_refuses_streams():
    with pytest.raises(InputError, match="the cpu has no streams"):
        ad.ones(1).to_device("cpu", stream=1)


def test_gradients_flow_to_what_a_creation_function_is_given():
    value = ad.tensor(2.0, requires_grad=True)
    ad.full((2, 3), value).sum().backward()
    assert value.grad.item() == 6.0
    for endpoint in (True, False):
        assert ad.testing.gradcheck(lambda a, b: ad.linspace(a, b, 5, endpoint=endpoint), [np.array(1.0), np.array(3.0)])  # fmt: skip  # noqa: B023
        np.testing.assert_allclose(
            ad.linspace(value, 3.0, 5, endpoint=endpoint).numpy(), np.linspace(2.0, 3.0, 5, endpoint=endpoint)
        )
    with pytest.raises(NoGradientError, match=r"start \+ step \* ad.arange"):
        ad.arange(value)


def test_an_axis_out_of_range_is_a_value_and_an_index_error():
    for error in (ValueError, IndexError, ad.errors.ShapeError):
        with pytest.raises(error, match="axis 2 is out of range"):
            ad.sum(ad.ones((2, 2)), axis=2)


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0), (0,)])
def test_a_mask_without_elements_chooses_nothing(shape):
    a, mask = np.ones((3, 4)), np.zeros(shape, bool)
    x = ad.tensor(a, requires_grad=True)
    y = x[mask]
    assert y.shape == a[mask].shape
    y.sum().backward()
    assert not x.grad.numpy().any()
    with pytest.raises(IndexError, match=r"but has shape \(2, 4\) for axes 0 to 1 of shape"):
        x[np.zeros((2, 4), bool)]


def test_large_whole_numbers_keep_their_digits():
    values = [0, 2**63 + 1, 2**64 - 1]
    assert ad.asarray(values, dtype=ad.uint64).tolist() == values


def test_python_numbers_written_into_a_tensor_are_weak():
    x = ad.zeros(2, dtype=ad.uint8)
    x[0] = 3
    assert x.tolist() == [3, 0]
    with pytest.raises(ArgumentError, match="300 is out of range for a uint8 tensor"):
        x[0] = 300
    with pytest.raises(DTypeError, match="float64 values cannot be written into a uint8 tensor"):
        x[0] = 2.5


@pytest.mark.parametrize("name", ["sum", "prod", "nansum", "nanprod", "cumsum", "cumprod", "cumulative_sum", "cumulative_prod"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "bool"])
def test_sums_have_the_dtype_that_was_asked_for(name, dtype):
    a = np.array([100, 3, 200, 7], dtype=np.uint8)
    got = getattr(ad, name)(ad.tensor(a), dtype=dtype)
    expected = getattr(np, name)(a, dtype=dtype)
    assert got.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(got.numpy(), expected)


# DLPack ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_dlpack_goes_both_ways(name):
    a = np.arange(6).reshape(2, 3).astype(name)
    x = ad.from_dlpack(a)
    assert x.dtype == a.dtype
    np.testing.assert_array_equal(x.numpy(), a)
    np.testing.assert_array_equal(np.from_dlpack(x), a)
    strided = ad.from_dlpack(a[:, ::-2])
    np.testing.assert_array_equal(strided.numpy(), a[:, ::-2])


def test_dlpack_copies_because_tensors_own_their_memory():
    a = np.zeros(2)
    x = ad.from_dlpack(a)
    a[0] = 1
    assert x.tolist() == [0, 0]
    b = np.from_dlpack(x)
    if b.flags.writeable:  # from NumPy 2.2 on
        b[0] = 1
    assert x.tolist() == [0, 0]
    locked = a.view()
    locked.flags.writeable = False
    for array in (a, locked):  # of the second it is not known who else can write to it
        with pytest.raises(BufferError, match="its owner could still write to it"):
            ad.from_dlpack(array, copy=False)


def test_dlpack_shares_read_only_memory_where_that_is_asked():
    x = ad.tensor([1.0, 2.0])
    a = np.from_dlpack(x, copy=False)
    assert not a.flags.writeable
    assert np.shares_memory(a, x.numpy())
    x[0] = 5.0  # goes to a copy
    assert a.tolist() == [1.0, 2.0]
    y = ad.from_dlpack(x, copy=False)
    assert np.shares_memory(y.numpy(), x.numpy())
    y[0] = 7.0
    assert x.tolist() == [5.0, 2.0]
    with pytest.raises(SharingError, match=r"needs DLPack 1\.0 or later"):
        x.__dlpack__(copy=False)


def test_dlpack_says_what_it_cannot_do():
    x = ad.ones(2)
    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(SharingError, match="tensors are on the cpu"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(InputError, match="no streams"):
        x.__dlpack__(stream=3)
    with pytest.raises(LostHistoryError, match="would become a DLPack capsule"):
        np.from_dlpack(ad.ones(2, requires_grad=True))
    with pytest.raises(InputError, match="a list has no __dlpack__"):
        ad.from_dlpack([1.0])


@pytest.mark.oracle
def test_dlpack_with_pytorch():
    torch = pytest.importorskip("torch")
    t = torch.arange(6.0).reshape(2, 3).T
    x = ad.from_dlpack(t)
    assert x.tolist() == t.tolist()
    t[0, 0] = 9
    assert x.tolist()[0][0] == 0
    back = torch.from_dlpack(x)
    back[0, 0] = 7
    assert x.tolist()[0][0] == 0
    with pytest.raises(SharingError, match="cannot be exported"):
        ad.from_dlpack(t.requires_grad_())


# The op table ----------------------------------------------------------------------------------


def test_the_page_of_ops_is_up_to_date():
    # in a process of its own: tests define ops, too
    page = Path(__file__).parents[2] / "docs" / "ops.md"
    command = [sys.executable, "-m", "adjoint", "ops", "--markdown"]
    made = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        cwd=page.parent.parent,
    ).stdout.decode()  # fmt: skip
    kept, new = page.read_text(encoding="utf-8").splitlines(), made.splitlines()
    assert kept == new, "run: python -m adjoint ops --markdown > docs/ops.md"
    rows = [line for line in made.splitlines() if line.startswith("| ")]
    assert len(rows) > 200
    assert not any("not compared" in row for row in rows)
