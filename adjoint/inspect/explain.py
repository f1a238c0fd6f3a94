"""``explain``: report why parameters get no gradient, or a zero, huge or invalid one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.compiler.api.compile import Compiled
from adjoint.core.node import Node
from adjoint.core.tensor import Tensor, wrap, writes
from adjoint.errors import AdjointError, InputError, NoGradientError
from adjoint.grads.backward import backward
from adjoint.inspect.causes import Finding, findings_of
from adjoint.inspect.names import Names, in_block, of_function
from adjoint.inspect.watch import Watch
from adjoint.optim import Optimizer
from adjoint.transforms.inputs import name_of
from adjoint.transforms.rerun import Generators
from adjoint.words import a, count

__all__ = ["Explanation", "explain"]


def explain(
    function: Callable[..., Any] | None = None,
    *args: Any,
    parameters: Any = None,
    optimizer: Any = None,
    **kwargs: Any,
) -> Explanation:
    """Report why parameters get no gradient, or one that is zero, huge, tiny or not finite.

    ``explain(loss, *args)`` calls the function ``loss`` and differentiates its result.  Gradients, buffers of
    modules and random generators are restored afterwards, unless the function calls ``backward`` itself.
    Without a function, ``explain()`` returns a context manager for one training step; an exception raised
    inside it gets the findings as a note.  A step without problems has no findings.

    Parameters
    ----------
    function : callable, optional
        A function that returns a loss, or runs a whole training step.  None for the context manager.
    *args : object
        Arguments of the function.
    parameters : Module, tensor, or tree of tensors, optional
        The parameters that should get a gradient.  The default is those that the code of the function or
        ``with`` block names: leaves that require grad, and the parameters of modules.
    optimizer : Optimizer, optional
        The optimiser that should update the parameters.  The default is the optimisers that the code of the
        function or ``with`` block names.
    **kwargs : object
        Keyword arguments of the function.

    Returns
    -------
    Explanation
        The findings, which print as sentences.  ``bool(explanation)`` is False if there are none.

    Raises
    ------
    InputError
        If ``function`` is not callable, or returns no tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> print(ad.inspect.explain(lambda: (w.detach() ** 2).sum()).findings[0].kind)
    detached
    >>> bool(ad.inspect.explain(lambda: (w ** 2).sum()))
    False
    """
    found = Explanation(parameters, optimizer)
    if function is None:
        if args or kwargs:
            raise InputError(
                "explain: got arguments, but no function to call with them.\n"
                "  Pass the function first: ad.inspect.explain(loss, x, y)."
            )
        return found
    found._run(function, args, kwargs)
    return found


class Explanation:
    """The result of ``explain``: a list of findings, the worst first.

    Parameters
    ----------
    parameters : Module, tensor, or tree of tensors, optional
        The parameters that should get a gradient.
    optimizer : Optimizer, optional
        The optimiser that should update them.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> with ad.inspect.explain() as why:
    ...     loss = (w * 0.0).sum()
    ...     loss.backward()
    >>> [f.kind for f in why.findings]
    ['zero']
    """

    def __init__(self, parameters: Any = None, optimizer: Any = None) -> None:
        self.findings: list[Finding] = []
        self._given = parameters
        self._optimizers = [o for o in (optimizer,) if o is not None]
        self._watch = Watch(values=True, memory=False)
        self._quiet = np.errstate(all="ignore")
        self._line = 0

    def __enter__(self) -> Explanation:
        self._line = sys._getframe(1).f_lineno
        self._quiet.__enter__()
        self._watch.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._watch.__exit__(kind, error, trace)
        self._quiet.__exit__(kind, error, trace)
        frame = sys._getframe(1)
        variables = in_block(frame, self._line)
        names = Names(self._given, variables if self._given is None else {})
        optimizers = self._named_optimizers(variables)
        self._conclude(names, optimizers, None, {**frame.f_globals, **frame.f_locals})
        if isinstance(error, AdjointError) and self.findings:
            error.add_note(str(self))

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        return "\n".join(f.text() for f in self.findings) or "no problems found"

    def __repr__(self) -> str:
        if not self.findings:
            return "<Explanation: no problems found>"
        return f"<Explanation: {count(len(self.findings), 'finding')}>\n{self}"

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call the function, differentiate its result, and store the findings.

        Gradients, buffers and generators are restored, unless the function calls ``backward`` itself.
        """
        if not callable(function):
            raise InputError(
                "explain: the first argument must be a function that returns a loss, not "
                f"{a(type(function).__name__)}.\n"
                "  To explain a loss that your own code computes, put that code inside "
                "`with ad.inspect.explain() as why:`."
            )
        _check_arguments(function, args, kwargs)
        run = function._on_tensors if isinstance(function, Compiled) else function
        variables = of_function(function, args, kwargs)
        generators = Generators.of([function], [*args, *kwargs.values()])
        log: dict[int, tuple[Tensor, Any, Any, int]] = {}
        before = writes.get()
        root: Tensor | None = None
        try:
            with np.errstate(all="ignore"), self._watch:
                writes.set(log)
                try:
                    result = run(*args, **kwargs)
                finally:
                    writes.set(before)
                if not self._watch.roots:  # the function did not call backward itself
                    root = _root(result)
                    if root._node is not None:
                        backward(root, _seed(root), retain_graph=True)
        except NoGradientError:
            if not self._watch.roots:
                raise
        finally:
            if root is not None or not self._watch.roots:
                for t, data, node, version in log.values():
                    t._data, t._node, t._version = data, node, version
                if generators is not None:
                    generators.write(generators.states)
        names = Names(self._given, variables if self._given is None else {})
        around = {**getattr(function, "__globals__", {}), **variables}
        self._conclude(names, self._named_optimizers(variables), root, around)

    def _named_optimizers(self, variables: dict[str, Any]) -> list[Optimizer]:
        named = [v for v in variables.values() if isinstance(v, Optimizer)]
        return self._optimizers or list({id(o): o for o in named}.values())

    def _conclude(
        self, names: Names, optimizers: list[Optimizer], root: Tensor | None, variables: dict[str, Any]
    ) -> None:
        watch = self._watch
        roots: list[Any] = [root] if root is not None else list(watch.roots)
        called = {id(s.module): s.module for s in watch.scopes if s.parent < 0}
        names.add_modules(called.values(), variables)
        self.findings = findings_of(watch, roots, names, optimizers)
        self._watch = Watch(values=True, memory=False)  # release the recorded tensors


def _root(result: Any) -> Tensor:
    """Return the first tensor of a result that can be differentiated; raise if there is no tensor."""
    tensors = [t for t in tree.leaves(result) if isinstance(t, Tensor)]
    if not tensors:
        raise InputError(
            "explain: the function must return a loss, or call backward() itself, but it returned "
            f"{a(type(result).__name__)}."
        )
    return next((t for t in tensors if isinstance(t._node, Node) or t.requires_grad), tensors[0])


def _seed(root: Tensor) -> Tensor:
    return wrap(np.ones(root.shape, root.dtype))


def _check_arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise an error if the function does not take the arguments, which may be meant as ``parameters=``."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except ValueError:  # code in C without a signature
        return
    except TypeError as error:
        raise InputError(
            f"explain: {name_of(function)} does not take the arguments that follow it: {error}.\n"
            "  To choose the parameters that are explained, pass parameters=model."
        ) from None
