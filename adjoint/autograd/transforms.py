"""The operators of autograd by its names and habits, on the transforms of adjoint.

An operator takes a function and ``argnum``.  Integers may be differentiated, and become floats.  Complex
gradients are autograd's: the conjugates of adjoint's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

import adjoint.numpy as anp
from adjoint import tree
from adjoint.autograd import rules
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import InputError, NoGradientError
from adjoint.interop.drop_in import holds_tensor
from adjoint.tracebacks import hide
from adjoint.transforms import batch, forward, matrix, recompute, reverse
from adjoint.transforms.arrays import outermost, returned, to_arrays
from adjoint.transforms.inputs import as_function, record_call
from adjoint.transforms.linear import pull_back

__all__ = [
    "checkpoint", "conjugated", "core_make_jvp", "core_make_vjp", "deriv", "elementwise_grad", "floats",
    "grad", "grad_and_aux", "grad_named", "hessian", "hessian_tensor_product", "hessian_vector_product",
    "holomorphic_grad", "jacobian", "make_ggnvp", "make_hvp", "make_jvp", "make_jvp_reversemode",
    "make_vjp", "multigrad_dict", "tensor_jacobian_product", "unary_to_nary", "value_and_grad",
    "vector_jacobian_product",
]  # fmt: skip


def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function like `fun` that saves only its arguments, and runs again in the backward pass."""
    return functools.wraps(fun)(lambda *args, **kwargs: recompute.checkpoint(fun, *args, **kwargs))


def unary_to_nary(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an operator on functions of one argument into one with the parameter ``argnum``."""

    @functools.wraps(operator)
    def of(fun: Any, argnum: Any = 0, *more: Any, **options: Any) -> Any:
        as_function(f"autograd.{operator.__name__}", fun)
        places = [argnum] if isinstance(argnum, int) else list(argnum)

        def call(*args: Any, **kwargs: Any) -> Any:
            def unary(x: Any) -> Any:
                new = list(args)
                for i, value in zip(places, [x] if isinstance(argnum, int) else x, strict=True):
                    new[i] = value
                return fun(*new, **kwargs)

            unary.__name__ = getattr(fun, "__name__", "[unknown name]")
            try:
                x = args[argnum] if isinstance(argnum, int) else tuple(args[i] for i in places)
                return operator(unary, x, *more, **options)
            except Exception as error:
                hide(error)
                raise

        name, wrapped = getattr(fun, "__name__", "[unknown name]"), operator.__name__
        call.__name__ = f"{wrapped}_of_{name}_wrt_argnum_{argnum}"
        call.__doc__ = (
            f"    {wrapped} of function {name} with respect to argument number {argnum}. Takes the\n"
            f"    same arguments as {name} but returns the {wrapped}.\n    "
        )
        return call

    del of.__wrapped__  # its signature is another one
    return of


def conjugated(value: Any) -> Any:
    """Convert complex gradients from adjoint's convention to autograd's, which is the conjugate, or back."""
    if type(value) in _SINGLE and value.dtype.kind == "f":
        return value
    return tree.map(lambda v: anp.conj(v) if np.iscomplexobj(v) else v, value)


_SINGLE = frozenset((Tensor, np.ndarray, np.float64))


def _inputs(x: Any) -> Any:
    """Return ``floats(x)``, after the functions that libraries registered for its types."""
    if type(x) not in _SINGLE and type(x) is not float:
        for leaf in tree.leaves(x):
            check = rules.Box.type_mappings.get(type(leaf))
            if isinstance(check, FunctionType):
                with contextlib.suppress(InputError):  # it makes a box of what it accepts
                    check(leaf, None, None)
    return floats(x)


def floats(x: Any) -> Any:
    """Return a tree with floats in place of integers, which have no gradient in adjoint."""

    if type(x) is float or (type(x) in _SINGLE and x.dtype.kind in "fc"):
        return x

    def converted(v: Any) -> Any:
        if isinstance(v, (Tensor, np.ndarray, np.generic)):
            return v.astype(float) if v.dtype.kind in "biu" else v
        return float(v) if type(v) is int else v

    return tree.map(converted, x)


def _derived(transform: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a transform, with autograd's error for a function that has no rule."""
    try:
        return transform(*args, **options)
    except NoGradientError as error:
        raise NotImplementedError(str(error)) from error


def core_make_vjp(fun: Callable[..., Any], x: Any) -> tuple[Callable[[Any], Any], Any]:
    """Return the function that maps gradients of the result to gradients of ``x``, and the result."""
    start = _inputs(x)
    single = type(start) is float or type(start) in _NUMBERS
    if not single and not tree.leaves(x):
        return (lambda g: x), fun(x)
    run, structures = _derived(record_call, "vjp", lambda v: floats(fun(v)), (start,), {}, (0,), False)
    y = returned(run.results()) if run.plain else run.results()
    real = run.plain and single and type(y) in _NUMBERS
    real = real and run.inputs[0].dtype.kind == run.outputs[0].dtype.kind == "f"

    def vjp(g: Any) -> Any:
        if real and type(g) in _NUMBERS and g.shape == y.shape and g.dtype.kind == "f" and outermost():
            seed = wrap(np.array(g, run.outputs[0].dtype))
            return to_arrays(_derived(pull_back, run, [seed], retain=True))[0]
        pairs = zip(tree.leaves(g), tree.leaves(y), strict=True)
        g = tree.unflatten(run.structure, [_fitted(v, w) for v, w in pairs])
        return conjugated(_derived(reverse.pull_of(run, structures), conjugated(g))[0])

    return vjp, y


_NUMBERS = frozenset((np.ndarray, np.float64, np.float32))  # single values with a shape and a dtype


def _fitted(v: Any, like: Any) -> Any:
    """Return the gradient ``v`` with the shape and dtype of the result ``like``."""
    v = v + np.zeros(np.shape(like)) if np.shape(v) != np.shape(like) else v
    dtype = like.dtype if hasattr(like, "dtype") else np.dtype(type(like))
    return (v.real if np.iscomplexobj(v) and dtype.kind != "c" else anp.asarray(v)).astype(dtype)


def core_make_jvp(fun: Callable[..., Any], x: Any) -> Callable[[Any], Any]:
    """Return the function that maps a tangent of ``x`` to the result and its tangent."""
    start = _inputs(x)

    def jvp(v: Any) -> Any:
        tangents = tree.map(lambda t, p: _fitted(t, p), floats(v), start)
        return _derived(forward.jvp, lambda u: floats(fun(u)), (start,), (tangents,))

    return jvp


make_vjp, make_jvp = unary_to_nary(core_make_vjp), unary_to_nary(core_make_jvp)


@unary_to_nary
def make_jvp_reversemode(fun: Any, x: Any) -> Any:
    """Return the function that maps a tangent to the tangent of the result."""
    jvp = core_make_jvp(fun, x)
    return lambda v: jvp(v)[1]


def _real_number(name: str, y: Any) -> None:
    number = isinstance(y, (Tensor, np.ndarray, np.generic, float, int)) and np.size(y) == 1
    if not number or isinstance(y, bool) or np.iscomplexobj(y):
        raise TypeError(
            f"{name} only applies to real scalar-output functions. Try jacobian, elementwise_grad or "
            "holomorphic_grad."
        )


@unary_to_nary
def grad(fun: Any, x: Any) -> Any:
    """
    Returns a function which computes the gradient of `fun` with respect to
    positional argument number `argnum`. The returned function takes the same
    arguments as `fun`, but returns the gradient instead.
    """
    vjp, y = core_make_vjp(fun, x)
    _real_number("Grad", y)
    return vjp(np.ones(np.shape(y)))


@unary_to_nary
def value_and_grad(fun: Any, x: Any) -> Any:
    """Returns a function that returns both value and gradient."""
    vjp, y = core_make_vjp(fun, x)
    _real_number("value_and_grad", y)
    return y, vjp(np.ones(np.shape(y)))


@unary_to_nary
def elementwise_grad(fun: Any, x: Any) -> Any:
    """Returns a function that computes the sum of each column of the Jacobian of `fun`."""
    vjp, y = core_make_vjp(fun, x)
    if np.iscomplexobj(y):
        raise TypeError("Elementwise_grad only applies to real-output functions.")
    return vjp(tree.map(lambda v: np.ones(np.shape(v)), y))


@unary_to_nary
def holomorphic_grad(fun: Any, x: Any) -> Any:
    """Returns a function that computes the derivative of a holomorphic function."""
    if not np.iscomplexobj(x):
        warnings.warn("Input to holomorphic_grad is not complex", stacklevel=2)
    vjp, y = core_make_vjp(lambda v: anp.real(fun(v)), x)
    return vjp(np.ones(np.shape(y)))


@unary_to_nary
def deriv(fun: Any, x: Any) -> Any:
    """Returns the forward-mode derivative in the direction of ones."""
    return core_make_jvp(fun, x)(tree.map(lambda v: np.ones(np.shape(v)), x))[1]


@unary_to_nary
def jacobian(fun: Any, x: Any) -> Any:
    """Returns a function which computes the Jacobian of `fun`, as one array for arrays."""

    def as_array(v: Any) -> Any:
        y = fun(v)
        return floats(anp.array(y) if isinstance(y, (list, tuple)) else y)

    pull, y = core_make_vjp(as_array, x)
    if np.iscomplexobj(y) or not np.size(y) or not tree.leaves(x):
        return conjugated(_derived(matrix.jacrev(as_array), floats(x)))  # also for its errors
    count = np.size(y)
    largest = max(count, *(np.size(v) for v in tree.leaves(x)))
    step = min(count, max(1, _CHUNK // largest))
    parts = [_rows(pull, y, start, min(start + step, count)) for start in range(0, count, step)]
    rows = parts[0] if len(parts) == 1 else tree.map(lambda *some: anp.concatenate(some), *parts)
    return tree.map(lambda v: anp.reshape(v, (*np.shape(y), *np.shape(v)[1:])), rows)


_CHUNK = 2**16  # elements of the rows computed at once: they fit into the cache


def _rows(pull: Callable[[Any], Any], y: Any, start: int, stop: int) -> Any:
    """Return some rows of a Jacobian, at once, or one by one where a rule of a primitive needs arrays."""
    units = np.eye(stop - start, np.size(y), start, dtype=y.dtype).reshape(-1, *np.shape(y))
    if len(units) == 1:
        return tree.map(lambda v: v[None], pull(units[0]))
    try:
        return batch.vmap(pull)(units)
    except Exception:  # of any library that the rule calls; the loop raises what is wrong with the function
        return tree.map(lambda *rows: anp.stack(rows), *map(pull, units))


@unary_to_nary
def hessian(fun: Any, x: Any) -> Any:
    """Returns a function that computes the Hessian; also of functions that return arrays."""
    return jacobian(jacobian(fun))(x)


@unary_to_nary
def make_hvp(fun: Any, x: Any) -> Any:
    """Returns a function that makes the product of the Hessian at a point with vectors."""
    return core_make_vjp(grad(fun), x)


def hessian_tensor_product(fun: Any, argnum: int = 0) -> Any:
    """Returns the product of the Hessian with a further last argument."""

    def directed(*args: Any, **kwargs: Any) -> Any:
        *args_, v = args
        return anp.tensordot(grad(fun, argnum)(*args_, **kwargs), v, np.ndim(v))

    return grad(directed, argnum)


hessian_vector_product = hessian_tensor_product


def tensor_jacobian_product(fun: Any, argnum: int = 0) -> Any:
    """Returns the product of a further last argument with the Jacobian."""

    def directed(*args: Any, **kwargs: Any) -> Any:
        *args_, v = args
        return anp.tensordot(v, fun(*args_, **kwargs), np.ndim(v))

    return jacobian(directed, argnum)


vector_jacobian_product = tensor_jacobian_product


def make_ggnvp(fun: Any, g: Any = lambda x: 0.5 * anp.sum(x**2, axis=-1), f_argnum: int = 0) -> Any:
    """Returns products with JᵀHJ, for the Jacobian J of ``fun`` and the Hessian H of ``g``."""

    @unary_to_nary
    def product(fun: Any, x: Any) -> Any:
        f_vjp, f_x = core_make_vjp(fun, x)
        return lambda v: f_vjp(core_make_jvp(grad(g), f_x)(core_make_jvp(fun, x)(v)[1])[1])

    return product(fun, f_argnum)


def grad_named(fun: Any, argname: str) -> Any:
    """Takes gradients with respect to a named argument."""
    return grad(fun, inspect.getfullargspec(fun).args.index(argname))


def multigrad_dict(fun: Any) -> Any:
    """Takes gradients with respect to all arguments, as a dictionary by their names."""
    names = inspect.signature(fun)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = names.bind(*args, **kwargs)
        given.apply_defaults()

        def of_arguments(values: dict[str, Any]) -> Any:
            bound = inspect.BoundArguments(names, values)
            return fun(*bound.args, **bound.kwargs)

        return grad(of_arguments)(dict(given.arguments))

    return call


@unary_to_nary
def grad_and_aux(fun: Any, x: Any) -> Any:
    """Takes the gradient of the first value of a pair, and returns the second one, too."""
    kept: list[Any] = []

    def first(v: Any) -> Any:
        y, aux = fun(v)
        kept[:] = [aux]
        return y

    found = grad(first)(x)
    return found, kept[0] if holds_tensor(x) else returned(tree.map(_detached, kept[0]))


def _detached(v: Any) -> Any:
    return v.detach() if type(v) is Tensor and v.requires_grad else v
