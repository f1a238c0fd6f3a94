"""SciPy's optimisers with exact derivatives: ``minimize``, ``root`` and ``least_squares``.

The unknowns are a tree of tensors, which is converted to a flat float64 array for SciPy.  SciPy gets
gradients, Jacobians and Hessian products from adjoint instead of finite differences.  The result is SciPy's
result object, with ``x`` as a tree and ``x_flat`` as SciPy's flat array.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree, words
from adjoint.config import no_grad
from adjoint.core.convert import asarray, tensor
from adjoint.core.docstrings import SharedDoc
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import (
    ArgumentError,
    DTypeError,
    InputError,
    MissingExtraError,
    ShapeError,
    TransformError,
)
from adjoint.hints import add_hints
from adjoint.transforms.flat_tree import FlatTree, joined_flat
from adjoint.transforms.inputs import Place, as_function, name_of
from adjoint.transforms.matrix import hessian, hvp, jacobian
from adjoint.transforms.reverse import value_and_grad
from adjoint.typing import Tree

__all__ = ["least_squares", "minimize", "root"]
__dir__ = sorted(__all__).copy


_WITHOUT_GRADIENT = ("nelder-mead", "powell", "cobyla", "cobyqa")
_WITH_PRODUCT = ("newton-cg", "trust-ncg", "trust-krylov", "trust-constr")
_WITH_HESSIAN = ("dogleg", "trust-exact")
_KRYLOV = {"fatol": np.inf, "xtol": 1.49012e-8}  # a relative tolerance, as that of the method "hybr"


_solver_doc = SharedDoc("""
    Parameters
    ----------
    x0 : tree
        The starting point: a tensor, an array, a number or a tree of them.
    args : sequence, optional
        Further arguments of ``f``.
    method : str, optional
        SciPy's name of the method.
    **options : optional
        Other arguments of SciPy's function.

    Returns
    -------
    OptimizeResult
        SciPy's result, with ``x`` as a tree like ``x0``.

    Raises
    ------
    InputError
        If a derivative is given.
    """)


@_solver_doc
def minimize(
    f: Callable[..., Any],
    x0: Tree,
    args: Sequence[Any] = (),
    method: str | None = None,
    *,
    sparse: bool = False,
    **options: Any,
) -> Any:
    """Minimise a function with ``scipy.optimize.minimize`` and exact derivatives.

    SciPy gets the derivatives that the method uses: the gradient, and the Hessian or its products with
    vectors.

    Parameters
    ----------
    f : callable
        A function ``f(x, *args)`` that returns one real number.
    sparse : bool, optional
        Whether the Hessian, and for "trust-constr" also the Jacobians and Hessians of constraints that are
        dictionaries, are sparse matrices.  For the methods "trust-constr", "newton-cg", "trust-ncg" and
        "trust-krylov".
    **options : optional
        Other arguments of SciPy's function.  Functions in constraints that are dictionaries are called with
        the tree, and their Jacobians are exact.  ``callback(x)`` is called with the tree.  Bounds are those
        of the flat array, ``ad.tree.ravel(x0)[0]``.

    >>> result = ad.interop.scipy.minimize(lambda p: (p["a"] - 3) ** 2 + (p["b"] + 1) ** 2,
    ...                                    {"a": 0.0, "b": 0.0}, method="Newton-CG")
    >>> result.x
    {'a': tensor(3., dtype=float64), 'b': tensor(-1., dtype=float64)}
    """
    optimize = _optimize("minimize")
    given = _Vectors("minimize", f, x0, args)
    _refuse_derivatives("minimize", options, "jac", "hess", "hessp")
    name = method.lower() if isinstance(method, str) else ""
    if sparse and not takes_sparse(method):
        raise ArgumentError(
            f"minimize: the method {method!r} does not use a sparse Hessian.\n"
            f"  Use one of {', '.join(map(repr, _WITH_PRODUCT))}, or sparse=False."
        )
    if "constraints" in options:
        exact = sparse and name == "trust-constr"
        options["constraints"] = _constraints(given, options["constraints"], exact)
    if options.get("callback") is not None:
        options["callback"] = _callback(given, options["callback"])
    if name in _WITHOUT_GRADIENT:
        function: Callable[..., Any] = given.value
    else:
        function, options["jac"] = given.value_and_gradient, True
    if sparse and name == "trust-constr":
        options["hess"] = given.sparse_hessian
    elif name in _WITH_PRODUCT:
        options["hessp"] = given.sparse_product if sparse else given.hessian_product
    elif name in _WITH_HESSIAN:
        options["hess"] = given.hessian
    return given.restored(optimize.minimize(function, given.start, method=method, **options))


@_solver_doc
def root(
    f: Callable[..., Any],
    x0: Tree,
    args: Sequence[Any] = (),
    method: str = "hybr",
    *,
    sparse: bool = False,
    **options: Any,
) -> Any:
    """Find a root with ``scipy.optimize.root`` and the exact Jacobian.

    The methods "hybr" and "lm" use the Jacobian.  ``ad.root`` returns a root through which gradients flow.

    Parameters
    ----------
    f : callable
        A function ``f(x, *args)`` that returns as many numbers as ``x`` has.
    sparse : bool, optional
        Whether to use the method "krylov" with the factors of the sparse Jacobian, which make its steps those
        of Newton's method.

    >>> import adjoint as ad, numpy as np
    >>> ad.interop.scipy.root(lambda x: x ** 3 - 8.0, np.array([1.0])).x
    tensor([2.], dtype=float64)
    """
    optimize = _optimize("root")
    given = _Vectors("root", f, x0, args)
    _refuse_derivatives("root", options, "jac")
    if sparse:
        if method not in ("hybr", "krylov"):
            raise ArgumentError(
                f"root: the method {method!r} does not use a sparse Jacobian.\n"
                "  Use 'krylov' with sparse=True, or sparse=False."
            )
        method, own = "krylov", dict(options.get("options") or {})
        factors = _factors(given)
        newton = lambda a, b, **_: (factors @ b, 0)  # in place of an iteration
        own["jac_options"] = {"inner_M": factors, "method": newton, **(own.get("jac_options") or {})}
        options["options"] = own if options.get("tol") is not None else {**_KRYLOV, **own}
    elif method in ("hybr", "lm"):
        options["jac"] = given.jacobian

    def values(x: Any) -> Any:
        found = given.values(x)
        _check_equations(given, found.size, method == "lm")
        return found

    return given.restored(optimize.root(values, given.start, method=method, **options))


def _check_equations(given: _Vectors, count: int, more: bool = False) -> None:
    """Raise unless there are as many equations as unknowns, or more, if ``more`` is true."""
    unknowns = given.start.size
    if count < unknowns or (count > unknowns and not more):
        f = "the function" if isinstance(given.f, Programs) else name_of(given.f)
        raise ShapeError(
            f"root: {f} must return as many numbers as x0 has, {unknowns}, but returned {count}.\n"
            "  Use least_squares for a system with more or fewer equations than unknowns."
        )


@_solver_doc
def least_squares(
    f: Callable[..., Any], x0: Tree, args: Sequence[Any] = (), *, sparse: bool = False, **options: Any
) -> Any:
    """Minimise a sum of squares with ``scipy.optimize.least_squares`` and the exact Jacobian.

    Parameters
    ----------
    f : callable
        A function ``f(x, *args)`` that returns the residuals: a tensor or a tree of them.
    sparse : bool, optional
        Whether SciPy gets the Jacobian as a sparse matrix, which the methods "trf" and "dogbox" accept.

    >>> import adjoint as ad, numpy as np
    >>> t = np.linspace(0, 1, 5)
    >>> fit = ad.interop.scipy.least_squares(
    ...     lambda p: p["a"] * t + p["b"] - (2 * t + 1), {"a": 0.0, "b": 0.0})
    >>> round(fit.x["a"].item(), 6)
    2.0
    """
    optimize = _optimize("least_squares")
    given = _Vectors("least_squares", f, x0, args)
    _refuse_derivatives("least_squares", options, "jac")
    for name, least in (("method", "'trf' or 'dogbox'"), ("tr_solver", "'lsmr'")):
        if sparse and options.get(name) in ("lm", "exact"):
            raise ArgumentError(
                f"least_squares: {name}={options[name]!r} does not use a sparse Jacobian.\n"
                f"  Use {least} with sparse=True, or sparse=False."
            )
    matrix = given.sparse_jacobian if sparse else given.jacobian
    return given.restored(optimize.least_squares(given.values, given.start, jac=matrix, **options))


def _factors(given: _Vectors) -> Any:
    """Return the inverse of the sparse Jacobian as a linear operator, which SciPy updates after each step."""
    from scipy.sparse.linalg import LinearOperator, splu

    class Factors(LinearOperator):  # type: ignore[misc]
        """The inverse of the Jacobian at the point of the last update; that before if it is singular."""

        solve: Callable[[Any], Any]

        def update(self, x: Any, _: Any) -> None:
            matrix = given.sparse_jacobian(x).tocsc()
            _check_equations(given, matrix.shape[0])
            with contextlib.suppress(RuntimeError):  # singular
                self.solve = splu(matrix).solve

        def _matvec(self, v: Any) -> Any:
            return self.solve(v)

    found = Factors(np.float64, (given.start.size,) * 2)
    found.solve = np.array
    found.update(given.start, None)
    return found


def _optimize(name: str) -> Any:
    try:
        import scipy.optimize
    except ImportError:
        raise MissingExtraError(f"ad.interop.scipy.{name}", "SciPy", "scipy") from None
    return scipy.optimize


def _refuse_derivatives(name: str, options: dict[str, Any], *names: str) -> None:
    for n in names:
        if n in options:
            raise InputError(
                f"{name}: do not pass {n}=: adjoint computes it.  To use your own, call SciPy directly."
            )


def takes_sparse(method: str | None) -> bool:
    """Return whether ``minimize`` uses a sparse Hessian with this method."""
    return isinstance(method, str) and method.lower() in _WITH_PRODUCT


def methods_of(name: str, method: str | None, sparse: bool) -> list[str]:
    """Return the names of the methods of ``_Vectors`` that a solver of SciPy calls.

    ``name`` is the function, such as "minimize", ``method`` the method that the user chose, and ``sparse``
    says whether it gets sparse matrices.
    """
    chosen = method.lower() if isinstance(method, str) else ""
    if name != "minimize":
        matrix = "sparse_jacobian" if sparse else "jacobian"
        return ["values"] + [matrix] * (sparse or name == "least_squares" or chosen in ("hybr", "lm"))
    product = "sparse_hessian" if sparse else "hessian_product"
    more = [product] * (chosen in _WITH_PRODUCT) + ["hessian"] * (chosen in _WITH_HESSIAN)
    return ["value" if chosen in _WITHOUT_GRADIENT else "value_and_gradient", *more]


class Programs:
    """The objective of a solver inside ``ad.compile``: programs that were traced before SciPy runs.

    ``methods`` maps the names of methods of ``_Vectors`` to programs that replace them.
    """

    def __init__(self, methods: dict[str, Callable[..., Any]]) -> None:
        self.methods = methods

    def __call__(self, *_: Any) -> Any:
        """Do nothing.  Only ``methods`` are called."""


class OfElement:
    """The objective of a solver for one element of a ``vmap``; it uses values of that ``vmap``.

    Parameters
    ----------
    f : callable
        The function.
    name : str
        Its name.
    """

    def __init__(self, f: Callable[..., Any], name: str) -> None:
        self.f, self.__name__ = f, name

    def __call__(self, *x: Any) -> Any:
        """Return the function's result."""
        return self.f(*x)


class TracedSparse:
    """A sparse derivative that ``ad.compile`` traces: it returns the elements, and keeps their pattern.

    Parameters
    ----------
    derivative : callable
        It returns a ``SparseArray`` for a tensor.
    """

    def __init__(self, derivative: Callable[..., Any]) -> None:
        self.derivative = derivative
        self.pattern: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the elements of the derivative at ``x``."""
        found = self.derivative(x)
        self.pattern = found.pattern
        entries: Tensor = found.data
        return entries


def traced_methods(f: Callable[..., Any], flat: FlatTree) -> dict[str, Callable[..., Any]]:
    """Return a dictionary of functions of flat tensors, which ``ad.compile`` traces in place of ``_Vectors``.

    The keys are the names of the methods of ``_Vectors`` that they replace.  ``f`` is a function of a tree,
    and ``flat`` converts between the tree and flat tensors.
    """
    scalar = lambda x: _one_number(f, f(flat.unflatten(x)))
    vector = lambda x: joined_flat([*map(asarray, _leaves(f(flat.unflatten(x))))], np.dtype(np.float64))
    return {
        "value": scalar,
        "value_and_gradient": value_and_grad(scalar),
        "hessian": hessian(scalar),
        "sparse_hessian": TracedSparse(hessian(scalar, sparse=True)),
        "hessian_product": lambda x, d: hvp(scalar, (x,), (d,))[0],
        "values": vector,
        "jacobian": jacobian(vector),
        "sparse_jacobian": TracedSparse(jacobian(vector, sparse=True)),
    }


def _one_number(f: Callable[..., Any], value: Any) -> Any:
    """Return ``value``, the result of the objective ``f``; raise if it has several elements."""
    if isinstance(value, Tensor) and value.size != 1:
        raise ShapeError(
            f"minimize: {name_of(f)} must return one number, but returned shape {value.shape}.\n"
            "  Reduce it (y.sum(), y.mean()), or use least_squares for residuals."
        )
    return value


def _leaves(result: Any) -> list[Any]:
    """Return the leaves in the order of ``tree.ravel``."""
    leaves, structure = tree.flatten(result)
    return [leaves[i] for i in tree.ravel_order(structure)]


class _Vectors:
    """A function of a tree and its derivatives, converted to functions of a flat float64 array for SciPy.

    ``value``, ``value_and_gradient``, ``hessian`` and ``hessian_product`` are for functions that return one
    number, ``values`` and ``jacobian`` for functions that return several.
    """

    def __init__(self, name: str, f: Callable[..., Any], x0: Any, args: Sequence[Any]) -> None:
        self.name = name
        self.f = as_function(name, f)
        if not isinstance(args, (tuple, list)):
            raise InputError(f"{name}: args must be a tuple of arguments, but got {type(args).__name__}.")
        self.args = tuple(args)
        self.flat = FlatTree(name, x0, np.float64)
        self.start = _owned(self.flat.flatten([t.detach() for t in self.flat.first]))
        if isinstance(f, Programs):
            self.__dict__.update(f.methods)

    def tree_of(self, x: Any) -> Any:
        """Return the tree whose elements are the flat array ``x``."""
        return self.flat.unflatten(tensor(np.asarray(x, np.float64)))

    def scalar(self, x: Any) -> Tensor:
        """Return the result of the function for the tree ``x``, as a tensor with one element."""
        return _one_number(self.f, self.f(x, *self.args))

    def value(self, x: Any) -> float:
        """Return the value of the function at the flat array ``x`` as a float."""
        with no_grad():
            value = self.scalar(self.tree_of(x))
        if not isinstance(value, (Tensor, np.ndarray, np.generic, float)) or np.size(value) != 1:
            got = words.a(type(value).__name__)
            raise ShapeError(f"{self.name}: {name_of(self.f)} must return one number, but returned {got}.")
        return float(value)

    def value_and_gradient(self, x: Any) -> tuple[float, Any]:
        """Return the value as a float and the gradient as a flat array."""
        with no_grad():
            value, gradient = value_and_grad(_renamed(self.scalar, self.f))(self.tree_of(x))
            return float(value), self._flat(gradient)

    def hessian_product(self, x: Any, direction: Any) -> Any:
        """Return the product of the Hessian at ``x`` and the flat array ``direction``."""
        with no_grad():
            along = self.tree_of(direction)
            (product,) = hvp(_renamed(self.scalar, self.f), (self.tree_of(x),), (along,))
            return self._flat(product)

    def hessian(self, x: Any) -> Any:
        """Return the Hessian as a matrix."""
        with no_grad():
            flat = lambda v: self.scalar(self.flat.unflatten(v))
            return _owned(hessian(_renamed(flat, self.f))(tensor(np.asarray(x, np.float64))))

    @functools.cached_property
    def sparse_hessian(self) -> Any:
        """A function of a flat array that returns the Hessian as a matrix of SciPy."""
        return self.sparse(hessian, lambda v: self.scalar(self.flat.unflatten(v)), self.f)

    @functools.cached_property
    def sparse_product(self) -> Any:
        """A function of flat arrays x and d that returns the product of the sparse Hessian at x with d.

        Solvers call it with several directions at one point, so the Hessian of the last point is kept.
        """
        last: list[Any] = [None, None]

        def product(x: Any, direction: Any) -> Any:
            if last[0] is None or not np.array_equal(last[0], x):
                last[:] = np.array(x), self.sparse_hessian(x)
            return last[1] @ direction

        return product

    @functools.cached_property
    def sparse_jacobian(self) -> Any:
        """A function of a flat array that returns the Jacobian as a matrix of SciPy."""
        return self.sparse(jacobian, self.vector(self.f, self.args), self.f)

    def sparse(self, transform: Callable[..., Any], f: Callable[..., Any], original: Any) -> Any:
        """Return a derivative as a function of flat arrays with a matrix of SciPy, without gradients.

        ``f`` is a function of flat tensors with the name of ``original``.
        """
        whole = transform(_renamed(f, original), sparse=True)
        found: list[Any] = [] if isinstance(self.f, OfElement) else [whole]

        def matrix(*given: Any) -> Any:
            arrays = [np.asarray(x, np.float64) for x in given]
            with no_grad():
                if not found:  # a program cannot contain values of a vmap
                    found.append(whole.fixed(*arrays))
                entries = found[0](*arrays)
            return entries.constant() if hasattr(entries, "constant") else entries

        return matrix

    def _flat(self, gradients: Any) -> Any:
        return _owned(self.flat.flatten(tree.leaves(gradients)))

    def _outputs(self, result: Any, f: Callable[..., Any]) -> Tensor:
        result = tree.map(lambda v: asarray(v) if isinstance(v, (np.ndarray, np.inexact)) else v, result)
        leaves, structure = tree.flatten(result)
        for i, leaf in enumerate(leaves):
            place = Place(structure, i, f"the result of {name_of(f)}")
            if not isinstance(leaf, Tensor):
                raise TransformError(f"{self.name}: {place} is {words.a(type(leaf).__name__)}, not a tensor.")
            if not differentiable(leaf.dtype) or leaf.dtype.kind == "c":
                raise DTypeError(f"{self.name}: {place} is {leaf.dtype}, but real floats are expected.")
        if not leaves:
            raise TransformError(f"{self.name}: {name_of(f)} returned no tensors.")
        return joined_flat(_leaves(result), np.dtype(np.float64))

    def vector(self, f: Callable[..., Any], args: Sequence[Any]) -> Callable[[Tensor], Tensor]:
        """Return ``f(tree, *args)``, a function of a tree, as a function of flat tensors."""
        return lambda v: self._outputs(f(self.flat.unflatten(v), *args), f)

    def several(self, f: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Any]:
        """Return two functions of a flat array: one returns the values of ``f``, the other the Jacobian.

        ``f(tree, *args)`` is a function of a tree.
        """
        vector = self.vector(f, args)

        def values(x: Any, *_: Any) -> Any:
            with no_grad():
                return _owned(vector(tensor(np.asarray(x, np.float64))))

        def matrix(x: Any, *_: Any) -> Any:
            with no_grad():
                return _owned(jacobian(vector)(tensor(np.asarray(x, np.float64))))

        return values, matrix

    def values(self, x: Any) -> Any:
        """Return the values of the function at the flat array ``x`` as one flat array."""
        return self.several(self.f, self.args)[0](x)

    def jacobian(self, x: Any) -> Any:
        """Return the Jacobian of ``values`` at the flat array ``x`` as a matrix."""
        return self.several(self.f, self.args)[1](x)

    def restored(self, result: Any) -> Any:
        """Return SciPy's result with ``x`` as a tree, and SciPy's flat solution as ``x_flat``."""
        result.x_flat = result.x
        result.x = self.tree_of(result.x)
        return result


def _owned(t: Tensor) -> Any:
    """Return a copy of a tensor as a contiguous, writable float64 array, as SciPy requires."""
    return np.array(t.numpy(), dtype=np.float64, order="C", copy=True)


def _renamed(f: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return a function that calls ``f`` and has the name of ``original``, for error messages."""

    def call(*x: Any) -> Any:
        return f(*x)

    call.__name__ = name_of(original)
    return call


def _constraints(given: _Vectors, constraints: Any, sparse: bool) -> Any:
    """Return the constraints for SciPy: dictionaries get functions of flat arrays and exact Jacobians.

    Other constraints are returned unchanged.  ``given`` converts between trees and flat arrays.  If
    ``sparse``, the Jacobians and also the Hessians are sparse.
    """
    if isinstance(constraints, (list, tuple)):
        return [_constraints(given, c, sparse) for c in constraints]
    if not isinstance(constraints, dict):
        return constraints  # functions in SciPy's own objects are called with flat arrays
    f, args = constraints["fun"], constraints.get("args", ())
    values, matrix = given.several(f, args)
    if sparse:
        vector, upper = given.vector(f, args), 0.0 if constraints.get("type", "").lower() == "eq" else np.inf
        return _optimize("minimize").NonlinearConstraint(
            values, 0.0, upper, jac=given.sparse(jacobian, vector, f),
            hess=given.sparse(hessian, lambda x, v: (v * vector(x)).sum(), f),
        )  # fmt: skip
    return {**constraints, "fun": values, "jac": matrix, "args": ()}


def _callback(given: _Vectors, callback: Callable[..., Any]) -> Callable[..., Any]:
    as_function("minimize: callback", callback)
    try:
        if set(inspect.signature(callback).parameters) == {"intermediate_result"}:
            return callback  # SciPy passes its own result to a parameter of this name
    except (TypeError, ValueError):
        pass
    return lambda x, *rest: callback(given.tree_of(x), *rest)


add_hints(__name__)
