"""Find the causes of missing and bad gradients in a recorded step, and describe them in sentences."""

from __future__ import annotations

import functools
import linecache
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adjoint.core.node import LEAF, Node
from adjoint.core.tensor import Tensor
from adjoint.inspect.names import Names, listed
from adjoint.inspect.watch import Flow, Place, Pulled, Watch, array_in
from adjoint.ops.piecewise import zero_rule
from adjoint.optim import Optimizer
from adjoint.words import count

__all__ = ["Finding", "findings_of", "shown_place"]

DEAD = 0.95  # a ReLU is reported as dead if at least this fraction of its outputs is zero
SATURATED = 0.9  # a sigmoid is reported if more than this fraction of its outputs is saturated
TINY, HUGE = 1e-8, 1e6  # limits of a gradient per element: relative to the largest one, and absolute


@dataclass
class Finding:
    """One problem that ``explain`` found.

    Parameters
    ----------
    kind : str
        A word for the cause: "detached", "no_grad", "cast", "no_derivative", "numbers", "unused", "frozen",
        "not_a_leaf", "not_registered", "not_in_optimizer", "replaced", "dead", "saturated", "zero",
        "vanishing", "exploding" or "not_finite".
    sentence : str
        What happened, why, and what to do.
    parameters : list of str
        The names of the affected parameters.
    file : str
        The file of the line that causes the problem; "" if there is no such line.
    line : int
        The line in the file.

    Examples
    --------
    >>> from adjoint.inspect import Finding
    >>> Finding("unused", "w is not used.", ["w"]).text()
    'w is not used.'
    """

    kind: str
    sentence: str
    parameters: list[str] = field(default_factory=list)
    file: str = ""
    line: int = 0

    def text(self) -> str:
        """Return the sentence that describes the finding, with the line of code below it if there is one."""
        code = linecache.getline(self.file, self.line).strip() if self.file else ""
        return f"{self.sentence}\n    {code}" if code else self.sentence


@functools.lru_cache(maxsize=4096)
def shown_place(place: Place) -> str:
    """Return a place in the source code as "file:line".

    The path is relative if the file is in the current directory or below it.
    """
    file, line, _ = place
    if not file:
        return "(no line)"
    near = os.path.splitdrive(file)[0] == os.path.splitdrive(os.getcwd())[0]  # drives of Windows
    inside = os.path.relpath(file) if near and os.path.isabs(file) and os.path.exists(file) else file
    return f"{file if inside.startswith('..') else inside}:{line}"


def _finding(kind: str, sentence: str, names: Iterable[str] = (), place: Place | None = None) -> Finding:
    file, line, _ = place or ("", 0, "")
    return Finding(kind, sentence, list(names), file, line)


def findings_of(
    watch: Watch, roots: Sequence[Any], names: Names, optimizers: Sequence[Optimizer]
) -> list[Finding]:
    """Return the problems in the step that ``watch`` has recorded, the worst first.

    ``roots`` are the tensors or nodes on which backward was called.  ``names`` has the parameters, and
    ``optimizers`` are the optimisers that should update them.
    """
    case = WatchedStep(watch, roots, names)
    found = case.not_finite()
    held = {id(p) for o in optimizers for p in o.params}
    found += case.missing(held if optimizers else None)
    found += case.held_results()
    found += case.unregistered()
    found += case.updates(optimizers)
    if not any(f.kind == "not_finite" for f in found):
        found += case.zeros()
        found += case.sizes()
    found += case.activations({f.line for f in found})
    return found


class WatchedStep:
    """A recorded step, with its graph and its flows: the ops that ran, with their inputs and outputs.

    The methods search for one kind of problem each, and return a list of findings.
    """

    def __init__(self, watch: Watch, roots: Sequence[Any], names: Names) -> None:
        self.watch = watch
        self.names = names
        self.flows = watch.flows
        self.roots = roots
        nodes = [r._node if isinstance(r, Tensor) else r for r in roots]
        self.start = [n for n in nodes if type(n) is Node]
        self.reached = self._leaves()
        self.makers: dict[int, Flow] = {id(t): f for f in self.flows for t in f.outputs}
        self.used = self._used()
        made = {t._node.seq: t for f in self.flows for t in f.outputs if type(t._node) is Node}
        self.root_ids = {id(made[n.seq]) for n in self.start if n.seq in made}
        self.root_ids |= {id(r) for r in roots if isinstance(r, Tensor)}
        self.toward = self._toward_root()
        self.flow_of = {
            t._node.seq: f for f in self.flows for t in f.outputs if type(t._node) is Node
        }  # by the sequence number of the node

    def _leaves(self) -> set[int]:
        """Return the ids of the leaves that a backward from the roots reaches."""
        order, seen = list(self.start), set(self.start)
        found = {id(r) for r in self.roots if isinstance(r, Tensor) and r._node is LEAF}
        for node in order:
            for parent in node.parents:
                if type(parent) is Node and parent not in seen:
                    seen.add(parent)
                    order.append(parent)
                elif isinstance(parent, Tensor):
                    found.add(id(parent))
        return found

    def _used(self) -> set[int]:
        return {id(t) for f in self.flows for t in f.inputs} | {id(t) for t, _, _ in self.watch.escapes}

    def _toward_root(self) -> set[int]:
        """Return the ids of all tensors from which a root was computed, inside or outside the graph."""
        found = set(self.root_ids)
        for flow in reversed(self.flows):
            if any(id(t) in found for t in flow.outputs):
                found.update(id(t) for t in flow.inputs)
        return found

    def _from(self, t: Tensor) -> set[int]:
        """Return the ids of ``t`` and of all tensors computed from it, inside or outside the graph."""
        found = {id(t)}
        for flow in self.flows:
            if any(id(i) in found for i in flow.inputs):
                found.update(id(o) for o in flow.outputs)
        return found

    def at(self, flow: Flow) -> str:
        """Return the name, module and line of an op as text: "'relu' in layers.0 (ReLU) at net.py:5"."""
        _, dot, path = self.watch.module_path(flow.scope).partition(".")
        kind = type(self.watch.scopes[flow.scope].module).__name__ if dot else ""
        return f"{flow.name!r}{f' in {path} ({kind})' if dot else ''} at {shown_place(flow.place)}"

    # No gradient -------------------------------------------------------------------------------

    def missing(self, held: set[int] | None) -> list[Finding]:
        """Return a finding for each reason why parameters get no gradient.

        ``held`` has the ids of the parameters of all known optimisers, or is None if there is no optimiser.
        Parameters that no optimiser has need no gradient, unless the user passed them.
        """
        groups: dict[Any, tuple[str, str, Place | None, list[str]]] = {}
        for name, p in self.names.wanted.values():
            if id(p) in self.reached and p._node is LEAF:
                continue
            if held is not None and id(p) not in held and not self.names.explicit:
                continue
            kind, why, place = self._why(p)
            group = groups.setdefault((kind, why, place), (kind, why, place, []))
            group[3].append(name)
        return [
            _finding(kind, f"{listed(own)} {why.format(**_agreeing(own))}", own, place)
            for kind, why, place, own in groups.values()
        ]

    def _why(self, p: Tensor) -> tuple[str, str, Place | None]:
        if p._node is None:
            why = "{get} no gradient: requires_grad is False.  Call requires_grad_() to train {it}."
            return "frozen", why, None
        if not self.roots:
            return "unused", "{get} no gradient: no backward ran.", None
        if id(p) in self.toward:
            cut = self._cut(p)
            if cut is not None:
                return cut
        mine = self._from(p)
        for t, how, place in self.watch.escapes:
            if id(t) in mine:
                for f in self.flows:  # an argmax, for example, whose result is then used as an index
                    cuts = f.cause and any(id(i) in mine for i in f.inputs)
                    if cuts and id(t) in self._from(f.outputs[0]):
                        return f.cause, "{get} no gradient: " + self._cut_sentence(f), f.place
                why = (
                    f"{{get}} no gradient: {how} at {shown_place(place)} converts a tensor to numbers, "
                    "which are not differentiated.  Compute with the tensor."
                )
                return "numbers", why, place
        if id(p) not in self.used:
            return "unused", "{get} no gradient: no op of this step reads {it}.", None
        flow = next(f for f in reversed(self.flows) if any(id(t) in mine for t in f.inputs))
        why = (
            "{get} no gradient: the loss does not depend on {it}.  The last op that uses {it}, or a value "
            f"computed from {{it}}, is {self.at(flow)}."
        )
        return "unused", why, flow.place

    def _cut(self, p: Tensor) -> tuple[str, str, Place] | None:
        """Find why no gradient reaches a parameter: the first op after it whose result is not in the graph.

        Return the kind of cause, a sentence about it, and the source line of the op; None if there is no such
        op between the parameter and the root, the tensor of the backward call.
        """
        mine = {id(p)}
        for flow in self.flows:
            if not any(id(t) in mine for t in flow.inputs):
                continue
            mine.update(id(t) for t in flow.outputs)
            if not any(id(t) in self.toward for t in flow.outputs):
                continue
            if flow.cause:
                return flow.cause, "{get} no gradient: " + self._cut_sentence(flow), flow.place
            for i, t in enumerate(flow.inputs):
                if id(t) in mine and flow.op is not None and t._node is not None and not flow.op.smooth(i):
                    why = (
                        f"{{get}} no gradient: {self.at(flow)} has no derivative in {flow.op.arg_name(i)!r}."
                    )
                    return "no_derivative", why, flow.place
        return None

    def _cut_sentence(self, flow: Flow) -> str:
        if flow.cause == "detached":
            return f"detach() at {shown_place(flow.place)} cuts the graph."
        if flow.cause == "no_grad":
            return f"{self.at(flow)} runs under no_grad(), so it is not recorded."
        if flow.cause == "cast":
            return f"the cast to {flow.outputs[0].dtype} at {shown_place(flow.place)} has no derivative."
        reason = flow.op.reason if flow.op is not None and flow.op.reason else "it has no derivative"
        return f"{self.at(flow)} stops the gradient: {reason}."

    def held_results(self) -> list[Finding]:
        """Report variables that are not leaves, but results of ops that ran before this step.

        Such variables are usually meant as parameters.
        """
        first = min((f.outputs[0]._node.seq for f in self.flows if _recorded(f)), default=0)
        used = {id(t) for f in self.flows for t in f.inputs}
        found = []
        for name, t in self.names.results.items():
            if t._node.seq < first and id(t) in used and id(t) not in self.makers:
                found.append(
                    _finding(
                        "not_a_leaf",
                        f"{name} is not a leaf but the result of {t._node.name!r} before this step, so "
                        "backward() sets no .grad for it.\n  Update parameters in place: "
                        f"with ad.no_grad(): {name} -= rate * {name}.grad.",
                        [name],
                    )
                )
        return found

    def unregistered(self) -> list[Finding]:
        """Report plain lists and dictionaries with modules or parameters, which the model does not see."""
        return [_finding("not_registered", why, [path]) for path, why in self.names.unregistered()]

    # The optimiser -----------------------------------------------------------------------------

    def updates(self, optimizers: Sequence[Optimizer]) -> list[Finding]:
        """Report parameters that get a gradient but are not in an optimiser."""
        if not optimizers:
            return []
        held = {id(p): p for o in optimizers for p in o.params}
        trained = {k: v for k, v in self.names.wanted.items() if v[1]._node is LEAF and k in self.reached}
        missing = [(name, p) for k, (name, p) in trained.items() if k not in held]
        strangers = [p for k, p in held.items() if k not in self.names.wanted and k not in self.used]
        found, left = [], []
        for name, p in missing:
            old = next((s for s in strangers if s.shape == p.shape), None)
            if old is None:
                left.append(name)
                continue
            strangers = [s for s in strangers if s is not old]
            found.append(name)
        out = []
        if found:
            out.append(
                _finding(
                    "replaced",
                    f"{listed(found)} will not be updated: the optimiser has different tensors of the same "
                    "shapes, which the step does not use.\n  The parameters were replaced, or belong to "
                    "another model.  Create the optimiser from the parameters that are trained.",
                    found,
                )
            )
        if left:
            out.append(
                _finding(
                    "not_in_optimizer",
                    f"{listed(left)} will not be updated: the optimiser does not have "
                    f"{'it' if len(left) == 1 else 'them'}.  Pass all parameters to the optimiser, or call "
                    "requires_grad_(False) on those that are not trained.",
                    left,
                )
            )
        return out

    # Values that are not finite ------------------------------------------------------------------

    def not_finite(self) -> list[Finding]:
        """Report the op that returned the first NaN or inf, if the loss or a gradient is not finite."""
        loss = [self._value(r) for r in self.roots]
        bad_loss = any(v is not None and not np.isfinite(v).all() for v in loss)
        bad = {k: t for k, (t, _, norm) in self.watch.leaves.items() if not math.isfinite(norm)}
        if not bad_loss and not bad:
            return []
        if bad_loss:
            forward = self._first_bad_flow()
            if forward is not None:
                return [forward]
        for step in self.watch.pulled:
            if step.norm is None or not math.isfinite(step.norm):
                continue
            if any(n is not None and not math.isfinite(n) for n in step.onward):
                flow = self.flow_of.get(step.seq)
                place = None if flow is None else flow.place
                op = repr(step.name) if flow is None else self.at(flow)
                own = [self.names.of(t) for t in bad.values()]
                why = _infinite_slope(flow)
                return [
                    _finding(
                        "not_finite",
                        f"The gradient of {listed(own)} is not finite: the backward of {op} is the first to "
                        f"return NaN or inf.{why}",
                        own,
                        place,
                    )
                ]
        return []

    def _value(self, root: Any) -> Any:
        if isinstance(root, Tensor):
            return array_in(root)
        flow = self.flow_of.get(root.seq)
        return None if flow is None else array_in(flow.outputs[0])

    def _first_bad_flow(self) -> Finding | None:
        """Report the first op on the path to the loss that returned NaN; if none did, the first with inf."""
        on_the_way = [f for f in self.flows if any(id(t) in self.toward for t in f.outputs)]
        for nan in (True, False):
            for flow in on_the_way:
                if "bad" not in flow.stats or (nan and not flow.stats["nan"]):
                    continue
                given = [array_in(t) for t in flow.inputs]
                is_bad = np.isnan if nan else lambda a: ~np.isfinite(a)
                wrong = [
                    i
                    for i, a in enumerate(given)
                    if a is not None and a.dtype.kind in "fc" and is_bad(a).any()
                ]
                if not wrong:
                    return self._bad_flow(flow, given, self._earlier_inf(on_the_way, flow))
                source = flow.inputs[wrong[0]]
                if id(source) not in self.makers:
                    name, what = self.names.of(source), "NaN" if nan else "inf"
                    return _finding(
                        "not_finite",
                        f"{name} contains {what} before the step; {self.at(flow)} is the first op that reads "
                        "it.",
                        [name],
                        flow.place,
                    )
        return None

    def _earlier_inf(self, flows: list[Flow], until: Flow) -> Flow | None:
        for flow in flows:
            if flow is until:
                return None
            if "bad" in flow.stats:
                return flow
        return None

    def _bad_flow(self, flow: Flow, given: list[Any], earlier: Flow | None) -> Finding:
        what = "NaN" if flow.stats["nan"] else "inf"
        said = (
            f"The loss is not finite: {self.at(flow)} is the first op to return {what}, in "
            f"{flow.stats['bad']} of {flow.outputs[0].size} elements.{_ranges(given)}"
        )
        if earlier is not None:
            said += f"  The first infinity was returned by {self.at(earlier)}."
        return _finding("not_finite", said, (), flow.place)

    # Zero, tiny and huge gradients ---------------------------------------------------------------

    def zeros(self) -> list[Finding]:
        """Report why the gradients of parameters are zero in every element."""
        empty = [
            (name, p)
            for k, (name, p) in self.names.wanted.items()
            if k in self.watch.leaves and self.watch.leaves[k][2] == 0.0 and p.size
        ]
        if not empty:
            return []
        groups: dict[Any, tuple[Flow | None, str, list[str]]] = {}
        for name, p in empty:
            step = self._where_it_vanished(p)
            flow = None if step is None else self._source_of_zeros(self.flow_of.get(step.seq), p)
            key = None if flow is None else (flow.name, flow.place)
            groups.setdefault(key, (flow, "" if flow is None else flow.name, []))[2].append(name)
        return [self._zero_finding(*group) for group in groups.values()]

    def _where_it_vanished(self, p: Tensor) -> Pulled | None:
        """Return the backward step that got a nonzero gradient and passed only zeros on towards ``p``."""
        toward: set[Any] = {id(p)}
        last: Pulled | None = None
        for step in reversed(self.watch.pulled):
            keys = [id(q) if isinstance(q, Tensor) else q for q in step.parents]
            mine = [i for i, key in enumerate(keys) if key in toward]
            if not mine:
                continue
            toward.add(step.seq)
            if step.norm and all(step.onward[i] in (0.0, None) for i in mine):
                last = step
        return last

    def _source_of_zeros(self, flow: Flow | None, p: Tensor) -> Flow | None:
        """Return the ReLU that made an input of ``flow`` all zeros, or ``flow`` itself if there is none.

        A product with this input, for example, passes on a gradient of zeros.
        """
        for t in () if flow is None else flow.inputs:
            maker = self.makers.get(id(t))
            if t is not p and maker is not None and maker.stats.get("off") == 1.0 and maker.name == "relu":
                return maker
        return flow

    def _zero_finding(self, flow: Flow | None, op: str, names: list[str]) -> Finding:
        what = f"The gradient of {listed(names)} is zero"
        if flow is None:
            return _finding("zero", f"{what}: the gradient of the loss is zero.", names)
        at = self.at(flow)
        share = flow.stats.get("off", 0.0)
        if op == "relu" and share == 1.0:
            why = f"all inputs of {at} are negative, so its output is constant"
            advice = "Lower the learning rate or raise the bias, or use gelu"
            return _finding("dead", f"{what}: {why}.  {advice}.", names, flow.place)
        if op in ("sigmoid", "tanh") and share > SATURATED:
            why = f"{at} is saturated in {share:.0%} of its elements.  Scale its input down"
            return _finding("saturated", f"{what}: {why}.", names, flow.place)
        if flow.op is not None and set(flow.op.rules) == {zero_rule}:
            return _finding(
                "no_derivative",
                f"{what}: the derivative of {at} is zero everywhere.  ad.straight_through passes "
                "gradients through it.",
                names,
                flow.place,
            )
        return _finding("zero", f"{what}: the backward of {at} returns only zeros.", names, flow.place)

    def sizes(self) -> list[Finding]:
        """Report gradients that are very large, or very small compared with those of other parameters."""
        sizes = {}
        for k, (name, p) in self.names.wanted.items():
            if k in self.watch.leaves and self.watch.leaves[k][2] > 0:
                sizes[name] = (self.watch.leaves[k][2] / math.sqrt(p.size), p)
        found = []
        huge = [name for name, (size, _) in sizes.items() if size > HUGE]
        if huge:
            found.append(self._grown(huge, max(sizes[n][0] for n in huge)))
        top = max((size for size, _ in sizes.values()), default=0.0)
        tiny = [name for name, (size, _) in sizes.items() if size < TINY * top and not huge]
        if tiny:
            found.append(self._shrunk(tiny, min(sizes[n][0] for n in tiny), top))
        return found

    def _factors(self) -> dict[tuple[str, Place], list[float]]:
        """Return the factors by which backward steps changed the norm of the gradient.

        The keys are the name and the place of the op.  Each list has one factor per call.
        """
        found: dict[tuple[str, Place], list[float]] = defaultdict(list)
        for step in self.watch.pulled:
            flow = self.flow_of.get(step.seq)
            for q, n in zip(step.parents, step.onward, strict=True):
                if flow is not None and step.norm and n and not isinstance(q, Tensor):
                    found[flow.name, flow.place].append(n / step.norm)
        return found

    def _grown(self, names: list[str], size: float) -> Finding:
        factors = self._factors()
        worst = max(factors, key=lambda k: _log(factors[k]), default=None)
        why = ""
        if worst is not None and _log(factors[worst]) > 1:
            each = 10 ** (_log(factors[worst]) / len(factors[worst]))
            why = (
                f"  Most of the growth is in {worst[0]!r} at {shown_place(worst[1])}: "
                f"{count(len(factors[worst]), 'call')}, a factor of {each:.2g} each."
            )
        place = None if worst is None or not why else worst[1]
        return _finding(
            "exploding",
            f"The gradient of {listed(names)} explodes: {size:.1e} per element.{why}\n"
            "  Clip gradients, normalise between layers, or lower the scale of the weights or of the loss.",
            names,
            place,
        )

    def _shrunk(self, names: list[str], size: float, top: float) -> Finding:
        factors = self._factors()
        worst = min(factors, key=lambda k: _log(factors[k]), default=None)
        why, place = "", None
        if worst is not None and _log(factors[worst]) < -1:
            place = worst[1]
            each = 10 ** (_log(factors[worst]) / len(factors[worst]))
            why = (
                f"  Most of the decrease is in {worst[0]!r} at {shown_place(worst[1])}: "
                f"{count(len(factors[worst]), 'call')}, a factor of {each:.2g} each."
            )
        return _finding(
            "vanishing",
            f"The gradient of {listed(names)} vanishes: {size:.1e} per element, others have {top:.1e}.{why}\n"
            "  Use ReLU or GELU, a norm, or residual connections.",
            names,
            place,
        )

    def activations(self, told: set[int]) -> list[Finding]:
        """Report ReLUs with mostly zero outputs and saturated sigmoids and tanhs on the path to the loss.

        Ops on the lines ``told`` are skipped, because other findings report these lines.
        """
        found: dict[Any, Finding] = {}
        for flow in self.flows:
            share = flow.stats.get("off", 0.0)
            size = flow.outputs[0].size
            dead = flow.name == "relu" and share >= DEAD
            flat = flow.name != "relu" and share > SATURATED
            if size < 8 or not (dead or flat) or flow.place[1] in told:
                continue
            if not any(id(t) in self.toward for t in flow.outputs) or flow.outputs[0]._node is None:
                continue
            at = self.at(flow)
            said = (
                f"{share:.1%} of the outputs of {at} are zero: most units are dead.  Lower the learning rate "
                "or raise the bias, or use gelu."
                if dead
                else f"{at} is saturated in {share:.0%} of its elements, where its derivative is nearly "
                "zero.  Scale its input down."
            )
            found.setdefault(
                (flow.name, flow.place), _finding("dead" if dead else "saturated", said, (), flow.place)
            )
        return list(found.values())


def _recorded(flow: Flow) -> bool:
    return type(flow.outputs[0]._node) is Node


def _log(factors: list[float]) -> float:
    """Return log10 of the product of ``factors``; those that are not positive and finite are ignored."""
    return sum(math.log10(f) for f in factors if f > 0 and math.isfinite(f))


def _agreeing(names: list[str]) -> dict[str, str]:
    """Return the words of a sentence about ``names`` that depend on how many names there are.

    The value of the key "get" is "gets" or "get", and that of "it" is "it" or "them".
    """
    return {"get": "gets", "it": "it"} if len(names) == 1 else {"get": "get", "it": "them"}


def _infinite_slope(flow: Flow | None) -> str:
    if flow is None or flow.op is None or flow.op.kind != "elementwise":
        return ""
    return _ranges([array_in(t) for t in flow.inputs])


def _ranges(arrays: list[Any]) -> str:
    """Return a sentence with the smallest and largest value of each input of an op, or "" if none is real."""
    real = [a for a in arrays if a is not None and a.size and a.dtype.kind in "fiu" and not np.isnan(a).all()]
    said = " and ".join(f"from {np.nanmin(a):.3g} to {np.nanmax(a):.3g}" for a in real)
    return f"  Its inputs range {said}." if said else ""
