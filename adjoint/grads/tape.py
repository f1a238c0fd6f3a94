"""``Tape``: record the operations inside a block, and differentiate them without changing any ``.grad``."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextvars import Token
from typing import Any

from adjoint import words
from adjoint.config import grad_mode, is_inference_mode_enabled, special, tapes
from adjoint.core.lifted import enclosing
from adjoint.core.node import Node
from adjoint.core.record import tracked
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import DTypeError, InputError, NoGradientError, TapeError
from adjoint.grads.backward import backward_on, inside_transform, seed_of, several_tensors
from adjoint.grads.store import Gradients
from adjoint.tracebacks import door
from adjoint.typing import ArrayLike

__all__ = ["Tape"]


class Tape:
    """Record the operations of a block, in this thread or task only.

    Operations before the block are constants to the tape.  Operations of transforms such as ``ad.grad``
    inside the block are recorded like others.  Leaves that require grad are watched automatically;
    ``watch`` adds other tensors.

    Parameters
    ----------
    persistent : bool
        Whether gradients can be taken more than once.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor(3.0)
    >>> with ad.Tape() as tape:
    ...     tape.watch(x)
    ...     y = x * x
    >>> tape.gradients(y)[x]
    tensor(6., dtype=float64)
    """

    def __init__(self, *, persistent: bool = False) -> None:
        self._persistent = persistent
        self._watched: dict[int, Tensor] = {}
        # Watched tensors that are results of operations.  Neither operations nor the tape keep them alive.
        self._watched_results: list[weakref.ref[Tensor]] = []
        self._recorded: set[int] = set()  # sequence numbers, so that the nodes are not kept alive
        self._tokens: tuple[Token[Any], Token[Any]] | None = None
        self._state = "new"

    def __enter__(self) -> Tape:
        if self._state != "new":
            raise TapeError(
                f"this tape is {self._state}: a tape can record only one block.  Make a new ad.Tape()."
            )
        if is_inference_mode_enabled():
            raise TapeError("a tape cannot record inside inference_mode().  Open the tape outside.")
        self._state = "recording"
        self._tokens = (tapes.set((*tapes.get(), self)), grad_mode.set(True))
        special.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._tokens is not None
        special.leave()
        tapes.reset(self._tokens[0])
        grad_mode.reset(self._tokens[1])
        self._tokens = None
        self._watched.clear()
        if self._state == "recording":
            self._state = "recorded"

    def watch(self, *tensors: Tensor) -> None:
        """Record operations on these tensors, and include their gradients in the store.

        Parameters
        ----------
        *tensors : Tensor
            Float or complex tensors, also results of operations from before the block.

        Raises
        ------
        TapeError
            If the tape is not recording.
        """
        if self._state != "recording":
            raise TapeError(f"watch: this tape is {self._state}.  Call watch() only inside `with tape:`.")
        for t in tensors:
            if not isinstance(t, Tensor):
                raise InputError(f"watch: a tape watches tensors, not {type(t).__name__}.")
            if not differentiable(t.dtype):
                raise DTypeError(f"watch: only float and complex tensors have gradients, not {t.dtype}.")
            if isinstance(t._node, Node):
                self._watched_results.append(weakref.ref(t))
                continue
            top = enclosing.get()
            if top is not None and not tracked(t):
                top.adopt(t)
            self._watched[id(t)] = t

    def watches(self, t: Tensor) -> bool:
        """Return whether ``watch`` was called for a tensor."""
        return id(t) in self._watched

    def add(self, node: Node) -> None:
        """Add a node that was recorded inside the block."""
        self._recorded.add(node.seq)

    @door
    def gradients(
        self,
        root: Tensor,
        inputs: Sequence[Tensor] | Tensor | None = None,
        gradient: ArrayLike | None = None,
        *,
        create_graph: bool | None = None,
    ) -> Gradients:
        """Differentiate a tensor that was computed inside the block.

        Parameters
        ----------
        root : Tensor
            The tensor to differentiate.
        inputs : Tensor or sequence of Tensor, optional
            The tensors whose gradients are returned.  The default is all leaves and watched tensors.
        gradient : array_like, optional
            The gradient of ``root``.  It may be omitted for a tensor of one element.
        create_graph : bool, optional
            Whether the gradients can be differentiated.  The default is True while another tape is
            recording and inside a transform such as ``ad.grad``, so that nesting gives higher derivatives.

        Returns
        -------
        Gradients
            The gradients by tensor.

        Raises
        ------
        TapeError
            If the tape was used before and is not persistent, or did not record ``root``.
        NoGradientError
            If ``root`` does not depend on one of the inputs.
        """
        self._check(root)
        seed = seed_of(root, gradient, "Tape.gradients()")
        targets = None if inputs is None else several_tensors("inputs", inputs)
        watched = [t for t in (reference() for reference in self._watched_results) if t is not None]
        others = grad_mode.get() and any(t is not self for t in tapes.get())
        create = others or inside_transform() if create_graph is None else create_graph
        store = backward_on(
            root,
            seed,
            targets,
            retain=self._persistent or create,
            create_graph=create,
            only=self._recorded,
            watched=watched,
        )
        for t in targets or ():
            if t not in store:
                raise NoGradientError(
                    f"Tape.gradients(): the root does not depend on an input of shape {t.shape}.\n"
                    "  Call tape.watch(x) before x is used, and compute with x inside the block."
                )
        if not self._persistent:
            self._state = "consumed"
            self._recorded = set()
            self._watched_results = []
        return store

    def _check(self, root: Any) -> None:
        """Raise if the tape cannot differentiate ``root``."""
        if self._state == "consumed":
            raise TapeError(
                "this tape is consumed: its gradients were taken, and its record was released.\n"
                "  Use ad.Tape(persistent=True) to take gradients more than once."
            )
        if self._state == "new":
            raise TapeError("this tape has recorded nothing.  Compute inside `with tape:` first.")
        node = root._node if isinstance(root, Tensor) else None
        if node is not None and not (isinstance(node, Node) and node.seq in self._recorded):
            raise TapeError(
                f"this tensor of shape {root.shape} was not computed inside this tape's block.\n"
                "  Compute it inside `with tape:`."
            )

    def __repr__(self) -> str:
        return f"<Tape, {self._state}, {words.count(len(self._recorded), 'operation')}>"
