"""``gradcheck`` and ``gradgradcheck``: compare derivatives with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjoint import words
from adjoint.config import enable_grad, is_grad_enabled, no_grad
from adjoint.core.convert import asarray, tensor
from adjoint.core.docstrings import SharedDoc
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import ArgumentError, DTypeError, GradcheckError, InputError
from adjoint.grads.backward import gradients

__all__ = ["gradcheck", "gradgradcheck"]

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

# The default eps.  The error of central differences is about eps² (truncation) plus 1e-16/eps (cancellation).
# The complex step does not subtract, so eps may be very small.
_STEPS = {"central": 1e-6, "complex": 1e-20}


@dataclass(frozen=True)
class _How:
    """The settings of a check: the approximation of derivatives, and the tolerances of the comparison."""

    method: str
    eps: float
    atol: float
    rtol: float
    directions: int | None
    seed: int

    @property
    def name(self) -> str:
        return "the complex step" if self.method == "complex" else "central differences"

    def wrong(self, analytic: Array, numeric: Array) -> Array:
        """Return a mask of the elements that differ by more than the tolerance, or are NaN in one array."""
        with np.errstate(invalid="ignore"):
            close = np.abs(analytic - numeric) <= self.atol + self.rtol * np.abs(numeric)
        return ~close


_check_doc = SharedDoc("""
    Parameters
    ----------
    f : callable
        A function that returns a tensor or several.
    eps : float, optional
        The step; by default 1e-6, and 1e-20 for the complex step.
    atol : float, optional
        The absolute tolerance.
    rtol : float, optional
        The relative tolerance.
    seed : int, optional
        The seed of the random numbers.
    raise_exception : bool, optional
        Whether to raise instead of returning False.

    Returns
    -------
    bool
        True if the derivatives agree.

    Raises
    ------
    GradcheckError
        If they differ; the message shows the worst element.
    """)


@_check_doc
def gradcheck(
    f: Function,
    inputs: Any,
    *,
    eps: float | None = None,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    method: str = "central",
    order: int = 1,
    directions: int | None = None,
    seed: int = 0,
    raise_exception: bool = True,
) -> bool:
    """Compare the derivatives of ``f(*inputs)`` with finite differences.

    ``f`` must be smooth within ``eps`` of the inputs, and return the same values in each call.  A complex
    number counts as two real numbers, so functions that are not analytic can be checked, too; their gradients
    follow PyTorch's convention.

    Parameters
    ----------
    inputs : array_like or sequence
        One argument or several. Float64 and complex128 arrays and tensors that require grad are
        checked; other values are passed on.
    method : {"central", "complex"}, optional
        Central differences, or the complex step, which is exact to the last digits, for real inputs
        and functions of analytic ops (no abs, no comparisons).
    order : int, optional
        How many orders of derivatives to check.
    directions : int, optional
        The number of random combinations to compare in place of the whole Jacobian, with two calls
        of ``f`` each.

    >>> ad.testing.gradcheck(lambda x: (x * ad.sin(x)).sum(), [[0.5, 1.0]])
    True
    """
    how = _settings(method, eps, atol, rtol, directions, seed)
    return _run(f, _arguments(inputs), how, 0, order, raise_exception)


@_check_doc
def gradgradcheck(
    f: Function,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float | None = None,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    method: str = "central",
    directions: int | None = None,
    seed: int = 0,
    raise_exception: bool = True,
) -> bool:
    """Compare the second derivatives of ``f(*inputs)`` with finite differences.

    The gradient, as ``ad.gradients(..., create_graph=True)`` returns it, is checked by ``gradcheck`` as a
    function of the inputs and of ``grad_outputs``.

    Parameters
    ----------
    inputs : array_like or sequence
        One argument or several, as in ``gradcheck``.
    grad_outputs : array_like or sequence, optional
        The gradients of the outputs; random numbers by default.
    method : {"central", "complex"}, optional
        The approximation, as in ``gradcheck``.
    directions : int, optional
        The number of random combinations to compare, as in ``gradcheck``.

    >>> ad.testing.gradgradcheck(ad.tanh, [[0.5, 1.0]])
    True
    """
    how = _settings(method, eps, atol, rtol, directions, seed)
    gradient, args = _gradient_function(f, _arguments(inputs), grad_outputs, seed)
    return _run(gradient, args, how, 1, 1, raise_exception)


def _run(f: Function, args: list[Any], how: _How, first: int, count: int, raise_exception: bool) -> bool:
    """Check the derivatives of ``f`` of orders 1 to ``count``; return whether all are correct.

    If ``raise_exception`` is True, raise ``GradcheckError`` instead of returning False.  ``f`` is the user's
    function if ``first`` is 0, otherwise its derivative of order ``first``.
    """
    if count < 1:
        raise ArgumentError(f"gradcheck: order must be at least 1, but is {count}.")
    try:
        for level in range(first, first + count):
            if level > first:
                f, args = _gradient_function(f, args, None, how.seed + level)
            _check(f, args, how, level)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


# Arguments -------------------------------------------------------------------------------------


def _settings(
    method: str, eps: float | None, atol: float, rtol: float, directions: int | None, seed: int
) -> _How:
    if method not in _STEPS:
        raise ArgumentError(f"gradcheck: method must be 'central' or 'complex', not {method!r}.")
    step = _STEPS[method] if eps is None else float(eps)
    if not step > 0 or not np.isfinite(step):
        raise ArgumentError(f"gradcheck: eps must be a positive number, but is {eps}.")
    if directions is not None and directions < 1:
        raise ArgumentError(f"gradcheck: directions must be None or at least 1, but is {directions}.")
    return _How(method, step, atol, rtol, directions, seed)


def _arguments(inputs: Any) -> list[Any]:
    """Return ``inputs`` as a list, in which the arguments to check are leaf tensors that require grad."""
    several = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    args = [_argument(i, value) for i, value in enumerate(several)]
    if not any(map(_checked, args)):
        kinds = ", ".join(sorted({type(a).__name__ for a in args})) or "empty"
        raise ArgumentError(
            f"gradcheck: none of the inputs ({kinds}) can be checked.\n"
            "  Pass float64 arrays, or tensors made with requires_grad=True, each as a separate argument."
        )
    return args


def _argument(i: int, value: Any) -> Any:
    if isinstance(value, Tensor):
        if not value.requires_grad:
            return value
        value = value.detach()
    elif isinstance(value, (list, tuple, float, complex)) or (
        isinstance(value, (np.ndarray, np.generic)) and differentiable(value.dtype)
    ):
        value = tensor(value)
    else:
        return value
    if value.dtype.kind not in "fc":
        return value  # a list of integers
    if value.dtype not in (np.float64, np.complex128):
        raise DTypeError(
            f"gradcheck: inputs[{i}] is {value.dtype}, which has too few digits for finite differences.\n"
            "  Check in double precision: x.astype(np.float64)."
        )
    return tensor(value, requires_grad=True)


def _checked(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _outputs(f: Function, args: Sequence[Any]) -> list[Tensor]:
    """Call ``f`` and return its float and complex outputs; raise if an output is not a tensor."""
    if not callable(f):
        raise InputError(f"gradcheck: expected a function, but got {type(f).__name__}.")
    result = f(*args)
    found = list(result) if isinstance(result, (list, tuple)) else [result]
    # an array may come from a function of SciPy of a captured tensor without a history; it is constant
    found = [asarray(y) if isinstance(y, (np.ndarray, np.inexact)) else y for y in found]
    for i, y in enumerate(found):
        if not isinstance(y, Tensor):
            raise InputError(
                f"gradcheck: f must return tensors, but output {i} is {words.a(type(y).__name__)}."
            )
        if differentiable(y.dtype) and y.dtype not in (np.float64, np.complex128):
            raise DTypeError(
                f"gradcheck: output {i} of f is {y.dtype}, which has too few digits for finite "
                "differences.\n  Let f compute in double precision."
            )
    return [y for y in found if differentiable(y.dtype)]


def _gradient_function(
    f: Function, args: list[Any], grad_outputs: Any, seed: int
) -> tuple[Function, list[Any]]:
    """Return the gradient of ``f`` as a function, and the list of arguments to call that function with.

    The arguments are those of ``f``, followed by the gradients of the outputs of ``f``: ``grad_outputs``, or
    random numbers from ``seed`` if that is None.
    """
    count = len(args)
    wanted = [i for i, a in enumerate(args) if _checked(a)]
    if grad_outputs is None:
        rng = np.random.default_rng(seed)
        with no_grad():
            shapes = [(y.shape, y.dtype.kind == "c") for y in _outputs(f, args)]
        given: list[Any] = [_random(rng, shape, is_complex) for shape, is_complex in shapes]
    else:
        given = list(grad_outputs) if isinstance(grad_outputs, (list, tuple)) else [grad_outputs]

    def gradient(*values: Any) -> tuple[Tensor, ...]:
        create = is_grad_enabled()
        with enable_grad():
            xs = list(values[:count])
            for i in wanted:
                if not xs[i].requires_grad:
                    xs[i] = tensor(xs[i], requires_grad=True)
            targets = [xs[i] for i in wanted]
            # For complex arguments the gradient is conj(f')·g, which is not analytic.  The complex step
            # needs f'·g, which is the same for real arguments.
            stepped = any(
                x.dtype.kind == "c" != args[i].dtype.kind for i, x in zip(wanted, targets, strict=True)
            )
            gs = [g.conj() if stepped else g for g in values[count:]]
            pairs = [(y, g) for y, g in zip(_outputs(f, xs), gs, strict=True) if y.requires_grad]
            found: Sequence[Tensor | None] = [None] * len(targets)
            if pairs:
                ys, seeds = zip(*pairs, strict=True)
                found = gradients(ys, targets, seeds, create_graph=create, allow_unused=True)
        # the gradient of an input that does not influence the outputs is zero
        zeros = (tensor(np.zeros(x.shape, x.dtype)) for x in targets)
        filled = [z if g is None else g for z, g in zip(zeros, found, strict=True)]
        return tuple(g.conj() if stepped else g for g in filled)

    return gradient, [*args, *_arguments(given)]


def _random(rng: np.random.Generator, shape: tuple[int, ...], is_complex: bool) -> Array:
    """Return random numbers of both signs, none of them near zero.

    Elements of the Jacobian are multiplied by them, and an error times 0 would not be noticed.
    """
    real = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
    return np.asarray(real + 1j * _random(rng, shape, False) if is_complex else real)


# Derivatives as real numbers -------------------------------------------------------------------
# A complex number has two coordinates, its real and its imaginary part.  A seed is the gradient of an
# output, from which a backward pass starts.  With the gradient convention g = dL/da + i dL/db of
# L = Re(conj(seed) · f), backward passes with the seeds 1 and i give the rows of the real Jacobian.  Finite
# differences give its columns.


def _coordinates(a: Any) -> Array:
    """Return the real and imaginary parts of all elements as one vector, a view if ``a`` is contiguous."""
    flat = np.ascontiguousarray(a).reshape(-1)
    return flat.view(np.float64) if flat.dtype.kind == "c" else flat


def _moved(args: Sequence[Any], k: int, step: Array, how: _How) -> list[Any]:
    """Return the arguments as constants, with ``step`` added to argument ``k``.

    ``step`` is a vector with one number per coordinate.  For the complex step, i · ``step`` is added.
    """
    moved = [a.detach() if isinstance(a, Tensor) else a for a in args]
    if how.method == "complex":
        moved = [
            a.astype(np.complex128) if _checked(args[i]) and a.dtype.kind == "f" else a
            for i, a in enumerate(moved)
        ]
        value = moved[k].numpy(copy=True)
        value += 1j * step.reshape(value.shape)
    else:
        value = moved[k].numpy(copy=True)
        _coordinates(value)[...] += step
    moved[k] = tensor(value)
    return moved


def _difference(f: Function, args: Sequence[Any], k: int, direction: Array, how: _How) -> list[Array]:
    """Return the derivative of each output of ``f`` along ``direction``, a vector for argument ``k``.

    It is approximated by a central difference or by the complex step.
    """
    step = how.eps * direction
    with no_grad():
        if how.method == "complex":
            found = _outputs(f, _moved(args, k, step, how))
            for i, y in enumerate(found):
                if y.dtype.kind != "c":
                    raise ArgumentError(
                        f"gradcheck: output {i} of f is real for complex inputs, so f is not analytic "
                        "and the complex step cannot be used.\n  Use method='central'."
                    )
            return [_coordinates(y.numpy().imag) / how.eps for y in found]
        above = _outputs(f, _moved(args, k, step, how))
        below = _outputs(f, _moved(args, k, -step, how))
    with np.errstate(invalid="ignore"):  # inf - inf: the NaN is reported
        return [
            (_coordinates(a.numpy()) - _coordinates(b.numpy())) / (2 * how.eps)
            for a, b in zip(above, below, strict=True)
        ]


def _unit(size: int, j: int) -> Array:
    unit = np.zeros(size)
    unit[j] = 1.0
    return unit


def _pulled(y: Tensor, seed: Array, leaves: list[Tensor]) -> list[Array]:
    """Return the gradient of each leaf, given the gradient ``seed`` of the output ``y``, as real vectors."""
    if not y.requires_grad:
        return [np.zeros(_coordinates(x.numpy()).size) for x in leaves]
    value = np.empty(y.shape, y.dtype)
    _coordinates(value)[...] = seed
    found = gradients(y, leaves, value, retain_graph=True, allow_unused=True)
    return [
        np.zeros(_coordinates(x.numpy()).size) if g is None else _coordinates(g.numpy())
        for x, g in zip(leaves, found, strict=True)
    ]


# The check -------------------------------------------------------------------------------------


def _check(f: Function, args: list[Any], how: _How, level: int) -> None:
    if how.method == "complex" and any(_checked(a) and a.dtype.kind == "c" for a in args):
        raise ArgumentError(
            "gradcheck: method='complex' requires real inputs, but one is complex.  Use method='central'."
        )
    places = [i for i, a in enumerate(args) if _checked(a)]
    with enable_grad():
        outputs = _outputs(f, args)
    _check_repeatable(f, args, outputs)
    leaves = [args[i] for i in places]
    if how.directions is None:
        _check_elements(f, args, places, leaves, outputs, how, level)
    else:
        _check_directions(f, args, places, leaves, outputs, how, level)


def _check_repeatable(f: Function, args: list[Any], outputs: list[Tensor]) -> None:
    with enable_grad():
        again = _outputs(f, args)
    same = len(again) == len(outputs) and all(
        a.shape == b.shape and np.array_equal(a.numpy(), b.numpy(), equal_nan=True)
        for a, b in zip(again, outputs, strict=True)
    )
    if not same:
        raise GradcheckError(
            "f returned a different result in a second call, so finite differences are not meaningful.\n"
            "  Set a seed for random numbers inside f, or check f without dropout."
        )


def _check_elements(
    f: Function,
    args: list[Any],
    places: list[int],
    leaves: list[Tensor],
    outputs: list[Tensor],
    how: _How,
    level: int,
) -> None:
    """Compare the Jacobians of all outputs by all inputs with finite differences; raise if they differ.

    ``places`` are the indices of ``leaves``, the inputs to check, in ``args``.  ``level`` is for the message:
    0 if ``f`` is the user's function, and n if it is the derivative of order n.
    """
    rows = [_coordinates(y.numpy()).size for y in outputs]
    analytic = [
        [_pulled(y, _unit(n, r), leaves) for r in range(n)] for y, n in zip(outputs, rows, strict=True)
    ]
    for k, (place, leaf) in enumerate(zip(places, leaves, strict=True)):
        size = _coordinates(leaf.numpy()).size
        columns = [_difference(f, args, place, _unit(size, j), how) for j in range(size)]
        for i, (y, n) in enumerate(zip(outputs, rows, strict=True)):
            if not n or not size:
                continue
            a = np.array([row[k] for row in analytic[i]])
            d = np.stack([column[i] for column in columns], axis=1)
            wrong = how.wrong(a, d)
            if wrong.any():
                raise GradcheckError(_element_report(a, d, wrong, (i, y), (place, leaf), how, level))


def _check_directions(
    f: Function,
    args: list[Any],
    places: list[int],
    leaves: list[Tensor],
    outputs: list[Tensor],
    how: _How,
    level: int,
) -> None:
    """Compare the products of the Jacobians with random vectors on both sides; raise if they differ.

    The arguments are those of ``_check_elements``.
    """
    rng = np.random.default_rng(how.seed)
    for n in range(how.directions or 0):
        seeds = [_random(rng, (_coordinates(y.numpy()).size,), False) for y in outputs]
        pulled = [_pulled(y, v, leaves) for y, v in zip(outputs, seeds, strict=True)]
        for k, (place, leaf) in enumerate(zip(places, leaves, strict=True)):
            u = _random(rng, (_coordinates(leaf.numpy()).size,), False)
            differences = _difference(f, args, place, u, how)
            a = np.array(sum(float(p[k] @ u) for p in pulled))
            d = np.array(sum(float(v @ c) for v, c in zip(seeds, differences, strict=True)))
            if how.wrong(a, d).any():
                raise GradcheckError(
                    f"{_which(level)} with respect to inputs[{place}] of shape {leaf.shape} disagrees with "
                    f"{how.name} along random direction {n}:\n"
                    f"  {_numbers(float(a), float(d), how)}\n"
                    f"  Pass directions=None to compare each element and show the worst.{_nan_note(a, d)}"
                )


def _which(level: int) -> str:
    names = {0: "the derivative", 1: "the second derivative", 2: "the third derivative"}
    return names.get(level, f"the derivative of order {level + 1}")


def _result(level: int, i: int) -> str:
    return f"(the derivative of gradient {i})" if level else f"of output {i}"


def _numbers(a: float, d: float, how: _How) -> str:
    allowed = how.atol + how.rtol * abs(d)
    return f"analytic {a:.9g}, numeric {d:.9g}, difference {abs(a - d):.3g} (allowed {allowed:.3g})."


def _nan_note(a: Any, d: Any) -> str:
    if np.isnan(a).any() or np.isnan(d).any():
        return "\n  There is a NaN: ad.detect_anomaly() finds the op that made it."
    return ""


def _element_report(
    a: Array,
    d: Array,
    wrong: Array,
    output: tuple[int, Tensor],
    place: tuple[int, Tensor],
    how: _How,
    level: int,
) -> str:
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - d) - how.rtol * np.abs(d)
    gap = np.where(wrong, np.where(np.isnan(gap), np.inf, gap), -np.inf)
    r, c = np.unravel_index(int(gap.argmax()), gap.shape)
    i, y = output
    k, x = place
    above = _element("gradient" if level else "output", y, int(r))
    return (
        f"{_which(level)} {_result(level, i)} with respect to inputs[{k}] disagrees with {how.name} at "
        f"{int(wrong.sum())} of {wrong.size} elements.\n"
        f"  Worst: d {above} / d {_element('input', x, int(c))}: "
        f"{_numbers(float(a[r, c]), float(d[r, c]), how)}\n"
        f"  The rule is wrong, or the function is not smooth within eps = {how.eps:g} of this input."
        f"{_nan_note(a[r, c], d[r, c])}"
    )


def _element(name: str, t: Tensor, coordinate: int) -> str:
    part = ""
    if t.dtype.kind == "c":
        coordinate, imaginary = divmod(coordinate, 2)
        part = ".imag" if imaginary else ".real"
    index = np.unravel_index(coordinate, t.shape) if t.shape else ()
    where = f"[{', '.join(map(str, map(int, index)))}]" if t.shape else ""
    return f"{name}{where}{part}"
