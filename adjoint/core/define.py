"""``define``: make an op from one record, and add it to every namespace."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.core.batching import BATCH_RULES
from adjoint.core.docstrings import SharedDoc
from adjoint.core.eager import eager_of
from adjoint.core.kernels import with_kernel, with_kernel_of_rule
from adjoint.core.methods import install
from adjoint.core.namespace import dyn, raw, rec
from adjoint.core.native import primitive
from adjoint.core.op import KINDS, OPS, Op, RuleFunction, names_read
from adjoint.core.record import evaluate
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError

__all__ = ["UFUNCS", "define"]

UFUNCS: dict[Any, Callable[..., Any]] = {}  # NumPy's ufuncs to the eager functions of ops


_fields = SharedDoc("""
    Parameters
    ----------
    name : str
        The name of the op.  It must be unique.
    forward : callable
        Computes the op on plain arrays: ``forward(*arrays, **params)``.
    *rules : callable or None
        One per array argument: ``rule(xp, g, out, *arrays, **params)`` returns the gradient of the argument,
        before un-broadcasting.  None where no gradient flows.
    saves : str or sequence of str
        The arguments and outputs whose values the rules read, by the names that the rules use.
    reads : sequence of str, optional
        For each rule, the names of the arguments and outputs whose values it reads.  The default is every
        name that occurs in its code, even if the rule uses only the shape.
    kind : str
        "elementwise", "linear", "bilinear" or "general".
    params : sequence of str
        The names of the parameters that are not arrays.
    arity : int or None
        The number of array arguments: by default one per rule.  None for any number.
    outputs : int
        The number of arrays that the forward returns.  ``g`` and ``out`` are tuples if there are several.
    joint : callable, optional
        One rule for all arguments: ``joint(xp, g, out, *arrays, wanted, **params)`` returns a list.
    fused : bool or callable
        True if the forward gets the namespace first: ``forward(xp, *arrays, **params)``.  Or a separate
        function of this form, if ``forward`` is a faster version for plain arrays.
    lower : bool or callable
        How native code computes the op: ``lower(xp, *arrays, **params)``, written with primitives
        (``core/native.py``).  True if the op is an elementwise primitive itself, with the dtypes of its
        ufunc.  A fused op needs none; without either, compiled programs call ``forward``.
    phrase : callable, optional
        The text of a faster call of NumPy than that of ``forward``, for compiled programs that NumPy runs:
        ``phrase(i, target, *texts)`` returns Python expressions that are assigned to the variable ``target``
        one after the other, or None.  ``i`` has the arguments, results and parameters; ``texts`` has the text
        of each argument.
    memory : str
        "view" if the result is a view of the first argument, "new" if it never is.  Ufuncs and operators
        always return new arrays.
    jvp : callable, optional
        The derivative along tangents, if it does not follow from the kind and the rules.
    batch : callable or str, optional
        How ``vmap`` evaluates the op: "leading" if the forward accepts any number of leading axes in all
        arguments, "elementwise" if the arguments broadcast, or a function (``core/batching.py``).
        Elementwise and fused ops have a default.
    shape : callable, optional
        Returns the shapes and dtypes of the results without running the forward (``core/infer.py``).  For
        ops whose forward is expensive.
    method : bool, str or sequence of str
        True to add a tensor method with the op's name.  Or the names of the methods and operators to add.
    holomorphic : bool
        Whether the rule is the derivative of a holomorphic function.  If True, the engine conjugates complex
        gradients.  If False, the rule must handle complex arguments itself.
    ufunc : ufunc, optional
        The NumPy ufunc that runs this op when it is called with tensors, if it is not ``forward`` itself.
    domain : object, optional
        The interval in which the op is smooth, or one interval per argument.  Tests sample from it.
    reference : callable or str
        What tests compare the op's values with: a function, "module:name", or "formula" for the function in
        ``testing/references.py``.  The default is NumPy's function of the same name.
    doc : str
        The first line of the docstring of the returned function.
    reason : str
        Why no gradient flows, for an op without a gradient.
    literals : bool
        Whether the forward or the rules inspect Python numbers among the arguments.
    selects : bool
        Whether some elements may have no influence on the output, as in ``where``.  Their gradient is zero,
        even if the derivatives of the ops that computed them are infinite or NaN.
    places : bool
        Whether the op has one argument whose gradient is zeros, with ``g`` at the index ``params["key"]``.
    pure : bool
        Whether the op has no side effects and the same inputs always give the same outputs.
    costly : bool
        Whether the forward is a ufunc of one argument that is slow enough to divide a large array among
        threads.
    sparsity : str or tuple of int
        Which elements of the arguments an element of the result depends on: "move" (one element), "scatter"
        (it is a sum of elements, each of which is added once), "axis" (all along the parameter ``axis``), a
        tuple of axes, "contract", or another rule of ``sparsity/rules.py``.  Elementwise ops need none; any
        other op without one depends on all elements.
    unread : sequence of int
        The indices of outputs that no rule reads; they are not saved.
    kernel : str
        What eager mode computes by compiled kernels for large arrays, if llvmlite is installed: "forward" or
        "all", the forward and the rules (``core/kernels.py``).

    Returns
    -------
    Callable
        The op as a function of tensors, arrays and numbers.

    Raises
    ------
    ArgumentError
        If the name is in use, or the arguments contradict each other.
    """)


@_fields
def define(
    name: str,
    forward: Callable[..., Any],
    *rules: RuleFunction | None,
    saves: str | Sequence[str] = "",
    reads: Sequence[str] | None = None,
    kind: str = "elementwise",
    params: Sequence[str] = (),
    arity: int | None = -1,
    outputs: int = 1,
    joint: RuleFunction | None = None,
    fused: bool | Callable[..., Any] = False,
    lower: bool | Callable[..., Any] = False,
    phrase: Callable[..., Any] | None = None,
    memory: str = "",
    jvp: RuleFunction | None = None,
    batch: Callable[..., Any] | str | None = None,
    shape: Callable[..., Any] | None = None,
    method: bool | str | Sequence[str] = False,
    holomorphic: bool = True,
    ufunc: Any = None,
    domain: Any = None,
    reference: Callable[..., Any] | str = "",
    doc: str = "",
    reason: str = "",
    literals: bool = False,
    selects: bool = False,
    places: bool = False,
    pure: bool = True,
    costly: bool = False,
    sparsity: str | tuple[int, ...] = "",
    unread: Sequence[int] = (),
    kernel: str = "",
) -> Callable[..., Tensor]:
    """Define an op and return its eager function.

    >>> import numpy as np, adjoint as ad
    >>> cube = ad.define("cube_example", lambda x: x * x * x,
    ...                  lambda xp, g, y, x: g * 3 * x * x, saves="x")
    >>> x = ad.tensor(2.0, requires_grad=True)
    >>> cube(x).backward(); x.grad
    tensor(12., dtype=float64)
    """
    arity = len(rules) if arity == -1 else arity
    args, out = _checked_names(name, kind, rules, joint, arity, saves)
    op = Op(
        name=name, forward=functools.partial(forward, raw) if fused is True else forward,
        fused=forward if fused is True else fused or None,
        lower=_native_form(name, forward, fused, lower, ufunc), phrase=phrase, memory=memory,
        arg_names=args, out_name=out, params=tuple(params),
        saves_args=tuple(a in saves for a in args), saves_out=out in saves,
        reads=_reads(rules, reads, args, out) if saves else (), unread=frozenset(unread), sparsity=sparsity,
        batch=_batch_rule(name, kind, fused, batch), methods=_methods(name, method),
        rules=rules, joint=joint, jvp=jvp, shape=shape, kind=kind, arity=arity, outputs=outputs,
        holomorphic=holomorphic, literals=literals, selects=selects, places=places, pure=pure, costly=costly,
        domain=domain, reference=reference, doc=doc, reason=reason,
    )  # fmt: skip
    if kernel:
        _add_kernels(op, kernel)
    _install(op, forward, ufunc)
    return op.eager


def _add_kernels(op: Op, parts: str) -> None:
    """Let the forward of an op run kernels, and with ``parts`` "all" also its rules."""
    if parts not in ("forward", "all") or op.lower is None:
        raise ArgumentError(
            f'define {op.name!r}: kernel must be "forward" or "all" and requires a native form (lower or '
            f"fused), but got {parts!r}."
        )
    op.plain, op.forward = op.forward, with_kernel(op.forward, op.lower)
    if parts == "forward":
        return
    op.rules = tuple([None if rule is None else with_kernel_of_rule(rule) for rule in op.rules])
    op.joint = None if op.joint is None else with_kernel_of_rule(op.joint)


def _native_form(name: str, forward: Any, fused: Any, lower: Any, ufunc: Any) -> Callable[..., Any] | None:
    """Return the native form of the op ``name``, or None; the arguments are those of ``define``."""
    if lower is not True:
        return lower or (forward if fused is True else fused) or None
    if not isinstance(ufunc or forward, np.ufunc):
        raise ArgumentError(f"define {name!r}: lower=True requires a NumPy ufunc, as forward or ufunc.")
    return primitive(name, ufunc or forward)


def _methods(name: str, method: bool | str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the tensor methods of the op ``name``; raise if tensors have one of them already.

    ``method`` is the argument of ``define``: True for the op's own name, or names.
    """
    names = (name,) if method is True else (method,) if isinstance(method, str) else tuple(method or ())
    for each in names:
        if any(each in vars(cls) for cls in Tensor.__mro__ if cls is not object):
            raise ArgumentError(
                f"define {name!r}: tensors already have an attribute {each!r}.\n"
                "  Choose another name for the method."
            )
    return names


def _batch_rule(
    name: str, kind: str, fused: Any, batch: Callable[..., Any] | str | None
) -> Callable[..., Any] | None:
    """Return the batch rule of the op ``name``: ``batch``, or the default for its kind."""
    if batch is None:
        batch = "elementwise" if kind == "elementwise" else "fused" if fused else None
    if isinstance(batch, str) and batch not in BATCH_RULES:
        names = ", ".join(map(repr, BATCH_RULES))
        raise ArgumentError(f"define {name!r}: batch must be one of {names} or a function, not {batch!r}.")
    return BATCH_RULES[batch] if isinstance(batch, str) else batch


def _checked_names(
    name: str,
    kind: str,
    rules: tuple[RuleFunction | None, ...],
    joint: RuleFunction | None,
    arity: int | None,
    saves: str | Sequence[str],
) -> tuple[tuple[str, ...], str]:
    """Check the arguments of ``define``; return the names of the op's arguments and of its output.

    The names are those of the parameters of the rules.
    """
    if kind not in KINDS:
        raise ArgumentError(f"define {name!r}: kind must be one of {', '.join(KINDS)}, not {kind!r}.")
    if name in OPS:
        raise ArgumentError(
            f"define {name!r}: an op of this name exists already.\n"
            "  Choose another name; in a notebook, define the op in a cell of its own and run it once."
        )
    if not rules and joint is None:
        raise ArgumentError(
            f"define {name!r}: no rule was given.\n"
            "  Give one per array argument, or None for an argument to which no gradient flows."
        )
    args, out = _names(name, rules, joint, arity)
    unknown = set(saves) - set(args) - {out}
    if unknown:
        raise ArgumentError(
            f"define {name!r}: saves contains {', '.join(sorted(unknown))}, but the names in the rules are "
            f"{', '.join(args)} for the arguments and {out} for the output."
        )
    return args, out


def _install(op: Op, forward: Callable[..., Any], ufunc: Any) -> None:
    """Register an op: in the op table, the namespaces, the methods of tensors and the table of ufuncs."""
    if op.costly and not isinstance(forward, np.ufunc):
        raise ArgumentError(f"define {op.name!r}: costly=True requires a NumPy ufunc as forward.")
    op.eager = _named(op)
    OPS[op.name] = op
    setattr(raw, op.name, op.forward)
    setattr(rec, op.name, op.eager)
    setattr(dyn, op.name, _dynamic(op))
    install(Tensor, op, op.eager)
    for u in (forward, ufunc) if ufunc is not forward else (forward,):
        if type(u).__name__ == "ufunc":
            UFUNCS.setdefault(u, op.eager)  # a user's op does not replace np.sin


def _dynamic(op: Op) -> Callable[..., Any]:
    def call(*args: Any, **params: Any) -> Any:
        return evaluate(op, args, params)

    return call


def _names(
    name: str, rules: tuple[RuleFunction | None, ...], joint: RuleFunction | None, arity: int | None
) -> tuple[tuple[str, ...], str]:
    """Return the names of the op's arguments and of its output: the parameters of its first rule.

    ``joint`` is the rule for all arguments, if there is one, and ``arity`` the number of arguments, if given.
    """
    count = 1 if arity is None else arity
    unnamed = tuple("xyzw"[:count]), "out"
    first = joint or next((r for r in rules if r is not None), None)
    if first is None:
        return unnamed
    found, variadic = _positional(first)
    if len(found) < 3 + count:
        if variadic:
            return unnamed  # rule(xp, g, *_), which reads nothing else
        raise ArgumentError(
            f"define {name!r}: a rule must have the parameters (xp, g, out, {count} arrays, **params), but "
            f"this one has ({', '.join(found)})."
        )
    return tuple(found[3 : 3 + count]), found[2]


def _positional(rule: RuleFunction) -> tuple[list[str], bool]:
    """Return the names of a rule's positional parameters, and whether the last one is ``*rest``."""
    code = getattr(rule, "__code__", None)
    if code is None:
        parameters = inspect.signature(rule).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        return names, any(p.kind is p.VAR_POSITIONAL for p in parameters)
    names = list(code.co_varnames[: code.co_argcount])
    variadic = bool(code.co_flags & inspect.CO_VARARGS)
    if variadic:
        names.append(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    return names, variadic


def _reads(
    rules: tuple[RuleFunction | None, ...], reads: Sequence[str] | None, args: tuple[str, ...], out: str
) -> tuple[tuple[frozenset[int], bool], ...]:
    found = []
    for i, rule in enumerate(rules):
        if rule is None:
            names: frozenset[str] = frozenset()
        elif reads is not None:
            names = frozenset(reads[i])
        else:
            own = _positional(rule)[0][2 : 3 + len(args)]
            seen = names_read(rule, own)
            names = frozenset(n for n, o in zip((out, *args), own, strict=False) if o in seen)
        found.append((frozenset(j for j, a in enumerate(args) if a in names), out in names))
    return tuple(found)


def _named(op: Op) -> Callable[..., Any]:
    eager = eager_of(op)
    eager.__name__ = eager.__qualname__ = op.name
    eager.__module__ = "adjoint"
    eager.__doc__ = _documented(op, op.doc or f"Apply the op {op.name!r}.")
    return eager


_DOC = """{summary}

Parameters
----------
{names} : array_like
    {arguments}

Returns
-------
Tensor
    {result}
"""


def _documented(op: Op, summary: str) -> str:
    """Return ``summary`` with the sections ``Parameters`` and ``Returns`` added, for an elementwise op.

    For other ops, return it unchanged.
    """
    if op.kind != "elementwise" or op.params or not op.arity or op.outputs != 1:
        return summary
    one = op.arity == 1
    result = "The result for each element" + (f", with the shape of ``{op.arg_names[0]}``." if one else ".")
    if not op.differentiable:
        result += "\n    It has no gradient" + (f", because {op.reason}." if op.reason else ".")
    return _DOC.format(
        summary=summary,
        names=", ".join("xyzw"[: op.arity]),
        arguments="The argument." if one else "The arguments, which are broadcast against each other.",
        result=result,
    )
