"""Initial value problems: ``solve_ivp`` and ``odeint``.

In eager code SciPy chooses the steps, and the solution is one node of the graph (``ode_node``).  Inside
``ad.compile``, the steps are a loop of the compiled program (``traced_ode``), or SciPy chooses them at each
call (``ode_chosen``).  There, arrays have a fixed number of rows, one for each step, and some rows are unused
(``ode_rows``).  The same holds inside ``ad.vmap`` if each element has its own steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint.config import special
from adjoint.core.batched import Batched
from adjoint.core.convert import array_of, asarray
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import enclosing, tracing
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.core.user_code import warn
from adjoint.errors import DTypeError, InputError, ShapeError
from adjoint.ops.join import concat
from adjoint.ops.reduce import floating
from adjoint.scipy.batches import batch_of
from adjoint.scipy.fallback import refuse_options, scipy_module
from adjoint.scipy.ode_chosen import ChosenRows
from adjoint.scipy.ode_node import Path, Problem, events_of
from adjoint.scipy.ode_plain import PLAIN, refused_method, solve_plain
from adjoint.scipy.ode_rows import Rows, check_at_call, columns, fixed_result
from adjoint.scipy.ode_steps import like_event
from adjoint.scipy.runge_kutta import METHODS, method_of
from adjoint.scipy.traced_ode import MOST, Steps
from adjoint.tracebacks import door
from adjoint.typing import ArrayLike

__all__ = ["odeint", "solve_ivp"]

_Ends = tuple[Tensor, Tensor, Tensor]  # the start, the end and the initial values


_problem_doc = SharedDoc("""
    Parameters
    ----------
    fun : callable
        The right-hand side, ``fun(t, y, *args)``.  It returns one derivative for each unknown; one number is
        broadcast.
    t_span : pair of array_like
        The times at which to start and to end.
    y0 : array_like
        The initial values, a vector.
    method : {"RK45", "DOP853", "RK23", "Radau", "BDF", "LSODA"}, optional
        SciPy's name of a method; "Radau" is for stiff problems.  "BDF" and "LSODA" have no derivatives, and
        raise an error for tensors that require grad and inside transforms.
    t_eval : array_like, optional
        The times at which to return the solution; by default the ends of the steps.
    dense_output : bool, optional
        Whether the result has a function ``sol(t)``, which returns the solution at any times.
    events : callable or sequence of callable, optional
        Functions ``event(t, y, *args)`` whose zeros are found, with SciPy's attributes ``terminal`` and
        ``direction``.  Gradients flow through the times and states of events.
    vectorized : bool, optional
        Accepted as in SciPy, without effect.
    args : tuple, optional
        Further arguments of the function; gradients flow to tensors among them.
    **options : optional
        SciPy's options ``rtol``, ``atol``, ``first_step`` and ``max_step``; ``jac`` is used
        only by "BDF" and "LSODA", because the Jacobian is known.  If ``jac_sparsity`` is given, "Radau" and
        "BDF" get it as a sparse matrix, with the pattern that adjoint finds.  Inside ``ad.compile`` also
        ``max_steps``, the largest number of attempted steps, 1,000 by default, and ``max_events``, how often
        an event that is not terminal may occur, 16 by default.
    tfirst : bool, optional
        Whether the function is ``func(t, y, *args)``.
    rtol : float, optional
        The relative tolerance.
    atol : float, optional
        The absolute tolerance.

    Returns
    -------
    OdeResult
        SciPy's result; ``y`` is a tensor with a column for each time, and ``t``, ``t_events`` and
        ``y_events`` are tensors.
    """)


@_problem_doc
def solve_ivp(
    fun: Callable[..., Any],
    t_span: Sequence[Any],
    y0: ArrayLike,
    method: str = "RK45",
    t_eval: ArrayLike | None = None,
    dense_output: bool = False,
    events: Any = None,
    vectorized: bool = False,
    args: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """Solve an initial value problem.

    SciPy chooses the steps.  Gradients flow to the initial values, to both ends of the time span, to
    ``t_eval`` and to all tensors that the function uses.

    Notes
    -----
    Shapes inside ``ad.compile`` and ``ad.vmap`` cannot depend on values, so they are larger than needed.
    Unused times and states of events are NaN.  Without ``t_eval``, unused columns at the end repeat the last
    time and state, so that ``y[:, -1]`` is the state at the end.  With ``t_eval``, columns after a terminal
    event or a failure are NaN.  ``status`` and ``success`` may be tensors, and SciPy's counts ``nfev``,
    ``njev`` and ``nlu`` are missing.

    Inside ``ad.vmap``, only the elements that fail have the status -1.

    Raises
    ------
    InputError
        If the method or an option is not supported, or ``args`` is not a tuple.
    ShapeError
        If the right-hand side returns an array of another shape, or an event more than one number.
    DTypeError
        If the initial values are complex and the method is Radau.
    ConvergenceError
        If more than ``max_steps`` steps are needed inside ``ad.compile``.
    ArgumentError
        If a time is outside of the time span, or an event occurs more than ``max_events`` times.

    Examples
    --------
    >>> import adjoint as ad
    >>> def end(rate):
    ...     return ad.scipy.integrate.solve_ivp(lambda t, y: -rate * y, (0.0, 1.0), [1.0], rtol=1e-9).y[0, -1]
    >>> round(float(ad.grad(end)(2.0)), 6)  # of exp(-rate)
    -0.135335
    """
    if method not in (*METHODS, *PLAIN):
        raise refused_method(method)
    most = options.pop("max_steps", MOST), options.pop("max_events", None)
    further = _further("solve_ivp", args)
    options = _options_of_solve_ivp(method, further, options)
    f = _right_hand_side(fun, further)
    watched = _watched(events, further)
    wanted = None if t_eval is None else floating("solve_ivp", t_eval)
    ends = _in_double(*t_span, y0)
    if method in PLAIN:
        return solve_plain(method, f, ends, wanted, dense_output, watched, options)
    return _solved(method, f, ends, wanted, dense_output, watched, options, most)


def _watched(events: Any, further: Any) -> list[Any]:
    functions = [] if events is None else [events] if callable(events) else list(events)
    return [_with_args(e, further, k) for k, e in enumerate(functions)]


def _solved(
    method: str,
    f: Any,
    ends: _Ends,
    wanted: Any,
    dense_output: bool,
    watched: Any,
    options: Any,
    most: Any,
) -> Any:
    """Return the result of ``solve_ivp`` by a method with derivatives.

    ``wanted`` are the times of ``t_eval``, ``watched`` the events, and ``most`` the limits inside
    ``ad.compile``.
    """
    if method_of(method).implicit and ends[-1].dtype.kind == "c":
        raise DTypeError(f"solve_ivp: {method} needs real initial values, but they are {ends[-1].dtype}.")
    if special.count or enclosing.get() is not None:
        own = dense_output or wanted is not None
        rows = _in_rows(f, ends, method, watched, [] if wanted is None else [wanted], own, most, options)
        if rows is not None:
            return fixed_result(rows, wanted, dense_output, watched)
    problem = Problem(f, *ends, method)
    if wanted is not None:
        problem.check_times(wanted)
    dense = dense_output or bool(watched) or wanted is not None
    result = problem.run(watched, options, dense)
    if problem.batch is None or result.status != -1:
        return _eager(problem, result, wanted, dense, dense_output, watched)
    # an element of the batch failed, which ends the solution with common steps: solve each one separately
    rows = ChosenRows(f, *ends, method, watched, options).in_batch(problem.batch, None)
    return fixed_result(rows, wanted, dense_output, watched)


def _eager(
    problem: Problem, result: Any, wanted: Tensor | None, dense: bool, dense_output: bool, events: list[Any]
) -> Any:
    """Return ``result``, SciPy's result, with differentiable tensors in place of arrays.

    ``wanted`` is the argument ``t_eval`` of ``solve_ivp``.  ``dense`` says whether the stages for values
    inside the steps are needed.  The other arguments are as in ``solve_ivp``.
    """
    path = Path(problem, *problem.recorded(dense))
    found = events_of(result, path, events) if events else []
    times, states = path.times, rec.matrix_transpose(path.states)
    if result.status == 1:  # a terminal event ends the last step
        ends = [e for e in found if e[0].shape[0]]
        last = min(ends, key=lambda e: abs(float(array_of(e[0][-1].detach())) - result.t[-1]))
        times = concat([times[:-1], last[0][-1:]])
        states = concat([states[:, :-1], rec.matrix_transpose(last[1][-1:])], axis=-1)
    if wanted is not None and result.status:
        value, end = array_of(wanted.detach()), float(array_of(times[-1].detach()))
        wanted = wanted[np.flatnonzero(value <= end if problem.forwards else value >= end)]
    if wanted is not None:
        times, states = wanted, rec.matrix_transpose(path(wanted))
    result.t, result.y = times, states
    result.t_events = [t for t, _ in found] if events else None
    result.y_events = [y for _, y in found] if events else None
    result.sol = door(lambda t: columns(path, floating("sol", t))) if dense_output else None
    return result


def _options_of_solve_ivp(method: str, further: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options for SciPy's ``solve_ivp``; raise if one is not supported.

    ``given`` are the user's options, and ``further`` are further arguments of the function ``jac``.
    """
    options = {k: v for k, v in given.items() if k != "jac"}
    known = {"rtol", "atol", "first_step", "max_step", "jac_sparsity"}
    if method in PLAIN:
        options, known = dict(given), known | {"jac", "jac_sparsity", "lband", "uband", "min_step"}
        if callable(jac := given.get("jac")):
            options["jac"] = lambda t, y: jac(t, y, *further)
    advice = "Pass rtol= and atol= for the accuracy, first_step= and max_step= for the steps."
    refuse_options("solve_ivp", set(options) - known, advice)
    return options


def _further(op: str, args: Any) -> tuple[Any, ...]:
    """Return ``args``, the further arguments of a user's function, as a tuple; raise if it is one value."""
    try:
        return () if args is None else tuple(args)
    except TypeError:
        raise InputError(
            f"{op}: args must be a tuple, but is {type(args).__name__}.  Pass args=(value,)."
        ) from None


def _right_hand_side(fun: Callable[..., Any], further: tuple[Any, ...]) -> Callable[[Any, Any], Tensor]:
    """Return a function f(t, y) that calls ``fun(t, y, *further)`` and returns a tensor of the shape of y."""

    def f(t: Any, y: Any) -> Tensor:
        found = fun(t, y, *further)
        slope = found if isinstance(found, Tensor) else asarray(found)
        if slope._data.shape == y._data.shape:
            return slope
        if slope.size == 1:  # SciPy broadcasts one number
            return rec.broadcast_to(rec.reshape(slope, shape=()), shape=y.shape)
        raise ShapeError(
            f"solve_ivp: the right-hand side must return one derivative for each unknown, with shape "
            f"{y.shape}, but its result has shape {slope.shape}."
        )

    return f


def _in_double(*values: Any) -> _Ends:
    """Return ``values``, the start, the end and the initial values, as tensors in double precision."""
    found = [floating("solve_ivp", v) for v in values]
    start, end, first = [t.astype(np.result_type(t.dtype, np.float64)) for t in found]
    if first.ndim != 1:
        raise ShapeError(f"solve_ivp: the initial values must be a vector, but have shape {first.shape}.")
    return start, end, first


def _in_rows(
    f: Callable[[Any, Any], Any],
    ends: tuple[Tensor, Tensor, Tensor],
    name: str,
    events: list[Any],
    wanted: list[Tensor],
    between: bool,
    most: tuple[int, int | None],
    options: dict[str, Any],
) -> Rows | None:
    """Solve a problem inside ``ad.compile`` or ``ad.vmap``, with a fixed number of rows for the steps.

    Return None if the problem can be solved as in eager code.  ``ends`` are the start, the end and the
    initial values.  ``wanted`` are the times at which the solution is computed, and ``between`` says whether
    values inside the steps are needed.  ``most`` has the largest numbers of steps and of events.
    """
    implicit = method_of(name).implicit
    if tracing.get() is not None:
        if implicit or events:
            return ChosenRows(f, *ends, name, events, options).in_program(*most)
        return Steps(f, *ends, method_of(name), name, most=most[0], **options)
    start, end, first = ends
    times = [start, end, *wanted]
    batch = batch_of("solve_ivp", lambda y: [g(start, y) for g in (f, *events)], *times, first)
    own = between and any(isinstance(t._data, Batched) for t in times)
    if batch is None or not (implicit or events or own):
        return None
    return ChosenRows(f, *ends, name, events, options).in_batch(batch, most[1])


def _with_args(event: Callable[..., Any], further: tuple[Any, ...], number: int) -> Any:
    """Return a function (t, y) that calls an event function with ``further`` arguments and returns a number.

    ``number`` is the index of the event, for errors.
    """

    def call(t: Any, y: Any) -> Tensor:
        value = asarray(event(t, y, *further))
        if value.size != 1:
            raise ShapeError(
                f"solve_ivp: event {number} must return one number, but its result has shape {value.shape}."
            )
        return rec.reshape(value, shape=())

    return like_event(event, call)


@_problem_doc
def odeint(
    func: Callable[..., Any],
    y0: ArrayLike,
    t: ArrayLike,
    args: Sequence[Any] = (),
    *,
    tfirst: bool = False,
    rtol: float = 1.49012e-8,
    atol: float = 1.49012e-8,
    **options: Any,
) -> Tensor:
    """Solve a system of differential equations at given times, by the method DOP853.

    Parameters
    ----------
    func : callable
        The right-hand side, ``func(y, t, *args)``.
    t : array_like
        The times, in order; the first one is that of the initial values.
    **options : optional
        ``hmax`` and ``h0``, the largest and the first step, and ``max_steps``, the largest number of
        attempted steps inside ``ad.compile``.  SciPy's options ``Dfun``, ``col_deriv``, ``ml``, ``mu``,
        ``mxstep`` and ``printmessg`` are not used, because they are about another method.

    Returns
    -------
    Tensor
        The values, with a row for each time.  If the solver fails, it warns as SciPy's does, and rows after
        the failure are NaN.

    Raises
    ------
    InputError
        If an option is not supported, or ``args`` is not a tuple.
    ShapeError
        If the right-hand side returns an array of another shape.
    ConvergenceError
        If more than ``max_steps`` steps are needed inside ``ad.compile``.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.scipy.integrate.odeint(lambda y, t: -y, [1.0], [0.0, 1.0])[:, 0].round(6)
    array([1.      , 0.367879])
    """
    options = _options_of_odeint(options)
    times, further = floating("odeint", t), _further("odeint", args)
    f = (lambda s, y: func(s, y, *further)) if tfirst else (lambda s, y: func(y, s, *further))
    start = floating("odeint", y0)
    start = rec.reshape(start, shape=(1,)) if start.ndim == 0 else start  # as SciPy does
    found = solve_ivp(f, (times[0], times[-1]), start, "DOP853", times, rtol=rtol, atol=atol, **options)
    check_at_call(asarray(found.status), _warn_of_failure)
    rows = rec.matrix_transpose(found.y)
    missing = times.shape[0] - rows.shape[0]
    return concat([rows, np.full((missing, rows.shape[1]), np.nan, rows.dtype)]) if missing else rows


def _warn_of_failure(status: Any) -> None:
    if np.any(status < 0):
        kind = scipy_module("integrate").ODEintWarning
        text = "odeint: the step size became too small.  The rows of later times are NaN."
        warn(text, kind)


def _options_of_odeint(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options for ``solve_ivp`` that correspond to options of SciPy's ``odeint``.

    Options that are specific to the method of SciPy's ``odeint`` are left out.
    """
    options = dict(given)
    for name in ("Dfun", "col_deriv", "ml", "mu", "mxstep", "printmessg"):
        options.pop(name, None)
    found = {"max_steps": options.pop("max_steps", MOST)}
    for name, other in {"hmax": "max_step", "h0": "first_step"}.items():
        if size := options.pop(name, 0):  # 0 means that the solver chooses
            found[other] = size
    refuse_options("odeint", [n for n in options if n != "full_output" or options[n]],
                   "Use solve_ivp, whose result reports on the solution.")  # fmt: skip
    return found
