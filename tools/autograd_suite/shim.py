"""adjoint under the names of HIPS autograd, so that autograd's own tests run on it: ``pytest -p shim``.

``autograd.numpy`` has NumPy's functions for arrays and those of ``adjoint.numpy`` for tensors.  Complex
gradients are conjugated: autograd's convention is the conjugate of adjoint's.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
import types
import warnings
from typing import Any

import numpy as onp

import adjoint as ad
import adjoint.numpy as anp
from adjoint import extend, tree

Tensor = ad.Tensor


def plain(value: Any) -> Any:
    """Return tensors without a history as arrays, and other values unchanged."""
    return tree.map(lambda t: _array(t) if builtins.isinstance(t, Tensor) else t, value)


def _array(t: Any) -> Any:
    return t if t.requires_grad or type(t._data) is not onp.ndarray else t.numpy()[()]


def traced(value: Any) -> bool:
    if builtins.isinstance(value, (builtins.list, builtins.tuple)):
        return any(map(traced, value))
    if builtins.isinstance(value, onp.ndarray) and value.dtype == object:
        return any(map(traced, value.flat))
    return builtins.isinstance(value, Tensor)


def both(theirs: Any, ours: Any) -> Any:
    """Return a function that calls NumPy's or SciPy's for arrays, adjoint's for tensors."""

    @functools.wraps(theirs, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return (ours if traced([*args, *kwargs.values()]) else theirs)(*args, **kwargs)

    return call


def space(name: str, theirs: Any, ours: Any, parts: tuple[str, ...] = ()) -> Any:
    """Make the module ``name`` of all names of ``theirs``."""
    module = types.ModuleType(name)
    for key in dir(theirs):
        value = getattr(theirs, key)
        if key.startswith("__") or key in parts:
            continue
        function = callable(value) and not builtins.isinstance(value, type)
        if function and key not in ("r_", "c_") and getattr(ours, key, value) is not value:
            value = both(value, getattr(ours, key))
        setattr(module, key, value)
    sys.modules[name] = module
    return module


# Transforms --------------------------------------------------------------------------------------


def named(operator: Any) -> Any:
    """Turn an operator on functions of one argument into one with ``argnum``."""

    @functools.wraps(operator)
    def of(fun: Any, argnum: Any = 0, *more: Any, **options: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            single = builtins.isinstance(argnum, int)
            places = [argnum] if single else builtins.list(argnum)

            def unary(x: Any) -> Any:
                new = builtins.list(args)
                for i, value in zip(places, [x] if single else x, strict=True):
                    new[i] = value
                return fun(*new, **kwargs)

            unary.__name__ = getattr(fun, "__name__", "[unknown name]")
            x = args[argnum] if single else builtins.tuple(args[i] for i in places)
            return operator(unary, x, *more, **options)

        name = getattr(fun, "__name__", "[unknown name]")
        call.__name__ = f"{operator.__name__}_of_{name}_wrt_argnum_{argnum}"
        call.__doc__ = f"    {operator.__name__} of function {name} with respect to argument number {argnum}."
        return call

    return of


def conjugated(value: Any) -> Any:
    return tree.map(lambda v: anp.conj(v) if traced(v) else onp.conj(v), value)


def floats(x: Any) -> Any:
    """Return Python's and NumPy's integers as floats, since integers have no gradient."""
    return tree.map(lambda v: float(v) if type(v) in (int, onp.int64) else v, x)


def core_make_vjp(fun: Any, x: Any) -> Any:
    if not tree.leaves(x):
        return (lambda g: x), fun(x)
    y, pull = derived(ad.vjp, lambda v: tree.map(as_float, fun(v)), floats(x))

    def vjp(g: Any) -> Any:
        g = tree.map(lambda v, w: (v + onp.zeros(w.shape)).astype(w.dtype), g, y)
        return plain(conjugated(derived(pull, conjugated(g))[0]))

    return vjp, plain(y)


def derived(transform: Any, *args: Any) -> Any:
    """Call a transform, with autograd's error for a function that has no rule."""
    try:
        return transform(*args)
    except ad.errors.NoGradientError as error:
        raise NotImplementedError(str(error)) from error


def as_float(y: Any) -> Any:
    """Return results of comparisons as floats, whose derivative is 0."""
    return y.astype(float) if builtins.isinstance(y, Tensor) and y.dtype.kind in "biu" else y


def core_make_jvp(fun: Any, x: Any) -> Any:
    def jvp(v: Any) -> Any:
        y, t = derived(ad.jvp, fun, (floats(x),), (floats(v),))
        return plain(y), plain(t)

    return jvp


make_vjp, make_jvp = named(core_make_vjp), named(core_make_jvp)


@named
def grad(fun: Any, x: Any) -> Any:
    """
    Returns a function which computes the gradient of `fun`.
    """
    vjp, y = core_make_vjp(fun, x)
    if onp.size(y) != 1 or not builtins.isinstance(
        y, (Tensor, onp.ndarray, onp.generic, float, int, complex)
    ):
        raise TypeError("Grad only applies to real scalar-output functions.")
    if onp.iscomplexobj(y if not traced(y) else y.detach().numpy()):
        raise TypeError("Grad only applies to real scalar-output functions.")
    return vjp(onp.ones(onp.shape(y)))


@named
def elementwise_grad(fun: Any, x: Any) -> Any:
    vjp, y = core_make_vjp(fun, x)
    if y.dtype.kind == "c":
        raise TypeError("Elementwise_grad only applies to real-output functions.")
    return vjp(onp.ones(onp.shape(y)))


@named
def holomorphic_grad(fun: Any, x: Any) -> Any:
    if onp.asarray(x).dtype.kind != "c":
        warnings.warn("Input to holomorphic_grad is not complex", stacklevel=2)
    return elementwise_of(lambda v: anp.real(fun(v)), x)


def elementwise_of(fun: Any, x: Any) -> Any:
    vjp, y = core_make_vjp(fun, x)
    return vjp(onp.ones(onp.shape(y)))


@named
def deriv(fun: Any, x: Any) -> Any:
    return core_make_jvp(fun, x)(tree.map(lambda v: onp.ones_like(v) if not traced(v) else v * 0 + 1, x))[1]


@named
def jacobian(fun: Any, x: Any) -> Any:
    return plain(conjugated(ad.jacrev(lambda v: anp.array(fun(v)), argnums=0)(x)))


@named
def hessian(fun: Any, x: Any) -> Any:
    return jacobian(jacobian(fun))(x)


@named
def value_and_grad(fun: Any, x: Any) -> Any:
    vjp, y = core_make_vjp(fun, x)
    if onp.size(y) != 1:
        raise TypeError("value_and_grad only applies to real scalar-output functions.")
    return y, vjp(onp.ones(onp.shape(y)))


@named
def grad_and_aux(fun: Any, x: Any) -> Any:
    g, aux = ad.grad(fun, has_aux=True)(x)
    return plain(g), plain(aux)


@named
def make_hvp(fun: Any, x: Any) -> Any:
    return core_make_vjp(grad(fun), x)


def make_ggnvp(fun: Any, g: Any = lambda x: 1.0 / 2 * anp.sum(x**2, axis=-1), f_argnum: int = 0) -> Any:
    """Return the product with JᵀHJ, for the Jacobian J of ``fun`` and the Hessian H of ``g``."""

    @named
    def product(fun: Any, x: Any) -> Any:
        f_vjp, f_x = core_make_vjp(fun, x)
        return lambda v: f_vjp(core_make_jvp(grad(g), f_x)(core_make_jvp(fun, x)(v)[1])[1])

    return product(fun, f_argnum)


def hessian_tensor_product(fun: Any, argnum: int = 0) -> Any:
    def directed(*args: Any, **kwargs: Any) -> Any:
        *args, v = args
        return anp.tensordot(grad(fun, argnum)(*args, **kwargs), v, onp.ndim(v))

    return grad(directed, argnum)


def tensor_jacobian_product(fun: Any, argnum: int = 0) -> Any:
    def directed(*args: Any, **kwargs: Any) -> Any:
        *args, v = args
        return anp.tensordot(v, fun(*args, **kwargs), onp.ndim(v))

    return jacobian(directed, argnum)


def grad_named(fun: Any, name: str) -> Any:
    import inspect

    return grad(fun, inspect.getfullargspec(fun).args.index(name))


def flatten(value: Any) -> Any:
    if traced(value):
        return ad.tree.ravel(value)
    flat, back = ad.tree.ravel(value)
    return plain(flat), lambda v: plain(back(v))


class Primitive(extend.primitive):
    """With the deprecated methods of autograd's."""

    def defgrad(self, rule: Any, argnum: int = 0) -> None:
        extend.defvjp(self, rule, argnums=[argnum])

    def defvjp(self, rule: Any, argnum: int = 0) -> None:
        def made(y: Any, *args: Any) -> Any:
            return lambda g: rule(g, y, None, None, *args)

        extend.defvjp(self, made, argnums=[argnum])

    def defvjp_is_zero(self, argnums: Any = (0,)) -> None:
        extend.defvjp(self, *[None for _ in argnums], argnums=argnums)


class Joined:
    """``r_`` or ``c_`` of arrays and tensors."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, key: Any) -> Any:
        return getattr(anp if traced(key) else onp, self.name)[key]


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None:
        return onp.where(condition)
    if builtins.isinstance(condition, bool) and not builtins.isinstance(x, onp.ndarray):
        return x if condition else y
    return both(onp.where, anp.where)(condition, x, y)


def make_diagonal(d: Any, offset: int = 0, axis1: int = -1, axis2: int = -2) -> Any:
    return d[..., None] * onp.eye(d.shape[-1])


def const_graph(fun: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("adjoint has ad.compile instead")


# Containers --------------------------------------------------------------------------------------


def maker(kind: Any) -> Any:
    """Return a type whose instances are those of a built-in container."""

    class Maker(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return kind(*args, **kwargs)

        def __instancecheck__(cls, value: Any) -> bool:
            return builtins.isinstance(value, kind)

    return Maker(kind.__name__, (), {})


aglist, agdict, agtuple = map(maker, (builtins.list, builtins.dict, builtins.tuple))


def aginstance(value: Any, kinds: Any) -> bool:
    kinds = kinds if builtins.isinstance(kinds, builtins.tuple) else (kinds,)
    more = (Tensor,) if onp.ndarray in kinds else ()
    return builtins.isinstance(value, (*kinds, *more))


# Vector spaces and checks ------------------------------------------------------------------------


class VSpace:
    """The space of a value: a tree of real and complex arrays."""

    def __init__(self, value: Any) -> None:
        self.like = tree.map(
            lambda v: onp.zeros(onp.shape(v), getattr(v, "dtype", type(v)))[()], floats(value)
        )
        leaves = tree.leaves(self.like)
        self.iscomplex = any(onp.iscomplexobj(v) for v in leaves)
        self.size = sum(onp.size(v) * (2 if onp.iscomplexobj(v) else 1) for v in leaves)

    def _map(self, f: Any) -> Any:
        return tree.map(f, self.like)

    def zeros(self) -> Any:
        return self._map(lambda v: onp.zeros_like(v)[()])

    def ones(self) -> Any:
        return self._map(lambda v: (onp.ones_like(v) * (1 + 1j if onp.iscomplexobj(v) else 1))[()])

    def randn(self) -> Any:
        def draw(v: Any) -> Any:
            x = onp.array(onp.random.randn(*onp.shape(v)))
            if onp.iscomplexobj(v):
                x = x + 1j * onp.random.randn(*onp.shape(v))
            return x.astype(onp.asarray(v).dtype)[()]

        return self._map(draw)

    def standard_basis(self) -> Any:
        flat, back = ad.tree.ravel(self.like)
        for unit in (1, 1j) if self.iscomplex else (1,):
            for i in range(flat.size):
                yield plain(back(unit * onp.eye(flat.size)[i]))

    def add(self, x: Any, y: Any) -> Any:
        return tree.map(lambda a, b: a + b, x, y)

    mut_add = add

    def scalar_mul(self, x: Any, a: Any) -> Any:
        return tree.map(lambda v: v * a, x)

    def covector(self, x: Any) -> Any:
        return conjugated(x)

    def inner_prod(self, x: Any, y: Any) -> Any:
        pairs = zip(tree.leaves(x), tree.leaves(y), strict=True)
        terms = [anp.sum(anp.real(anp.conj(a) * b)) for a, b in pairs]
        return plain(sum(terms[1:], terms[0]))

    def __eq__(self, other: Any) -> bool:
        def facts(v: Any) -> Any:
            return onp.shape(v), onp.iscomplexobj(v)

        a, b = tree.flatten(self.like), tree.flatten(other.like)
        return a[1] == b[1] and builtins.list(map(facts, a[0])) == builtins.list(map(facts, b[0]))

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._map(lambda v: (onp.shape(v), onp.asarray(v).dtype.name)))


def scalar_close(a: Any, b: Any) -> bool:
    return abs(a - b) < 1e-6 or abs(a - b) / abs(a + b) < 1e-6


def check_equivalent(x: Any, y: Any) -> None:
    x, y = plain(x), plain(y)
    a, b = VSpace(x), VSpace(y)
    assert a == b, f"VSpace mismatch:\nx: {a}\ny: {b}"
    v = a.randn()
    assert scalar_close(a.inner_prod(x, v), a.inner_prod(y, v)), f"Value mismatch:\nx: {x}\ny: {y}"


def numeric(f: Any, x: Any, v: Any, eps: float = 1e-6) -> Any:
    s = VSpace(x)
    up, down = (plain(f(s.add(x, s.scalar_mul(v, h)))) for h in (eps / 2, -eps / 2))
    return tree.map(lambda a, b: (onp.asarray(a) - onp.asarray(b)) / eps, up, down)


@named
def check_grads(f: Any, x: Any, modes: Any = ("fwd", "rev"), order: int = 2) -> None:
    """Compare derivatives along a random direction with central differences, to an order."""
    modes, x, name = modes or ("fwd", "rev"), floats(x), f.__name__
    v = VSpace(x).randn()
    y = plain(f(x))
    expected = numeric(f, x, v)
    if "fwd" in modes:
        check_equivalent(core_make_jvp(f, x)(v)[1], expected)
    if "rev" in modes:
        u = VSpace(y).randn()
        vjp, _ = core_make_vjp(f, x)
        back = conjugated(vjp(conjugated(u)))
        assert VSpace(back) == VSpace(x)
        exact, number = VSpace(x).inner_prod(v, back), VSpace(y).inner_prod(u, expected)
        assert scalar_close(number, exact), (
            f"Derivative (VJP) check of {name} failed with arg {x}:\nanalytic: {exact}\nnumeric:  {number}"
        )
    for mode in modes if order > 1 else ():

        def derivative(x: Any, w: Any, mode: str = mode) -> Any:
            return core_make_jvp(f, x)(w)[1] if mode == "fwd" else core_make_vjp(f, x)[0](w)

        derivative.__name__ = ("jvp_" if mode == "fwd" else "vjp_") + name
        w = VSpace(x if mode == "fwd" else y).randn()
        check_grads(derivative, (0, 1), modes, order - 1)(x, w)


def quick_grad_check(fun: Any, x: Any, more: Any = (), **options: Any) -> None:
    check_grads(lambda v: fun(v, *more), order=1)(x)


def combo_check(fun: Any, *args: Any, **kwargs: Any) -> Any:
    def check(*choices: Any, **options: Any) -> None:
        keys = [[(k, v) for v in values] for k, values in options.items()]
        for chosen in itertools.product(*choices):
            for pairs in itertools.product(*keys):
                check_grads(fun, *args, **kwargs)(*chosen, **builtins.dict(pairs))

    return check


# Modules -----------------------------------------------------------------------------------------


def install() -> None:
    """Make the modules of autograd."""
    numpy = space("autograd.numpy", onp, anp, ("linalg", "fft", "random"))
    numpy.linalg = space("autograd.numpy.linalg", onp.linalg, anp.linalg)
    numpy.fft = space("autograd.numpy.fft", onp.fft, anp.fft)
    numpy.random = space("autograd.numpy.random", onp.random, onp.random)
    numpy.numpy_boxes = numpy
    numpy.r_, numpy.c_, numpy.where, numpy.make_diagonal = Joined("r_"), Joined("c_"), where, make_diagonal
    numpy.__version__ = onp.__version__
    numpy.linalg.T, numpy.linalg._dot = lambda x: x.swapaxes(-1, -2), lambda x, y: x @ y

    def module(name: str, **names: Any) -> Any:
        found = types.ModuleType(name)
        vars(found).update(names)
        sys.modules[name] = found
        return found

    import scipy.integrate
    import scipy.linalg
    import scipy.signal
    import scipy.special
    import scipy.stats

    stats = {}
    for key in dir(scipy.stats):
        ours, theirs = getattr(ad.scipy.stats, key, None), getattr(scipy.stats, key)
        if ours is not None and hasattr(theirs, "rvs"):
            stats[key] = space(f"autograd.scipy.stats.{key}", theirs, ours)
            stats[key].__dict__.setdefault("rvs", theirs.rvs)
    parts = {
        key: space(f"autograd.scipy.{key}", getattr(scipy, key), getattr(ad.scipy, key, None))
        for key in ("special", "linalg", "integrate", "signal")
    }
    parts["stats"] = module("autograd.scipy.stats", **stats)
    rules = {
        "primitive": Primitive, "defvjp": extend.defvjp, "defjvp": lambda *a, **k: None, "vspace": VSpace,
        "notrace_primitive": lambda f: f, "isbox": traced, "Box": Tensor,
        "primitive_vjps": {},
    }  # fmt: skip
    checks = {
        "check_grads": check_grads, "combo_check": combo_check, "check_equivalent": check_equivalent,
        "scalar_close": scalar_close,
    }  # fmt: skip
    containers = {"list": aglist, "dict": agdict, "tuple": agtuple, "isinstance": aginstance, "type": type}
    module(
        "autograd",
        __path__=[],
        numpy=numpy,
        scipy=module("autograd.scipy", **parts),
        core=module("autograd.core", make_vjp=core_make_vjp, make_jvp=core_make_jvp, **rules),
        tracer=module("autograd.tracer", **rules),
        extend=module("autograd.extend", **rules),
        test_util=module("autograd.test_util", **checks),
        builtins=module("autograd.builtins", **containers),
        misc=module("autograd.misc", flatten=flatten, const_graph=const_graph),
        util=module("autograd.util", quick_grad_check=quick_grad_check),
        wrap_util=module("autograd.wrap_util", unary_to_nary=named),
        **containers,
        grad=grad, value_and_grad=value_and_grad, elementwise_grad=elementwise_grad, deriv=deriv,
        holomorphic_grad=holomorphic_grad, jacobian=jacobian, hessian=hessian, make_vjp=make_vjp, make_jvp=make_jvp,
        make_hvp=make_hvp, make_ggnvp=make_ggnvp, hessian_tensor_product=hessian_tensor_product,
        hessian_vector_product=hessian_tensor_product, tensor_jacobian_product=tensor_jacobian_product,
        vector_jacobian_product=tensor_jacobian_product, grad_and_aux=grad_and_aux, grad_named=grad_named,
        checkpoint=ad.checkpoint, primitive=Primitive,
    )  # fmt: skip


install()
