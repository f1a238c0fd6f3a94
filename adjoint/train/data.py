"""DataLoader: batches from arrays, sequences or iterables; shuffled by seed, resumable, prefetched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, ShapeError

__all__ = ["DataLoader", "pad_collate", "stack_collate"]


def stack_collate(samples: Sequence[Any]) -> Any:
    """Put samples of one shape into arrays: field by field if they are tuples or dictionaries."""
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(stack_collate([s[i] for s in samples]) for i in range(len(first)))
    if isinstance(first, Mapping):
        return {k: stack_collate([s[k] for s in samples]) for k in first}
    return np.stack([np.asarray(s) for s in samples])


def pad_collate(samples: Sequence[Any], value: float = 0) -> tuple[Any, Any]:
    """Put sequences of different lengths into one array, padded, and return the lengths beside it.

    The lengths are the weights of the batch: a trainer that accumulates weighs by them.

    >>> padded, lengths = pad_collate([[1, 2, 3], [4]])
    >>> padded.tolist(), lengths.tolist()
    ([[1, 2, 3], [4, 0, 0]], [3, 1])
    """
    rows = [np.asarray(s) for s in samples]
    lengths = np.array([len(r) for r in rows])
    out = np.full((len(rows), int(lengths.max(initial=0)), *rows[0].shape[1:]), value, rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out, lengths


class DataLoader:
    """Batches of a data set, epoch after epoch.

    ``data`` is an array or a tuple of arrays of one length, a sequence of samples, or an iterable
    (which is taken as it comes).  The order of an epoch is a function of ``seed`` and the number of the
    epoch alone, so ``state_dict`` is two numbers, and loading it goes on at the same batch.

    >>> loader = DataLoader(np.arange(5), batch_size=2)
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        prefetch: int = 0,
    ) -> None:
        if batch_size < 1 or prefetch < 0:
            raise ArgumentError("batch_size must be at least 1 and prefetch at least 0.")
        self.data, self.batch_size, self.shuffle, self.seed = data, batch_size, shuffle, seed
        self.drop_last, self.prefetch = drop_last, prefetch
        self.arrays = _arrays(data) if collate is None else None
        self.collate = collate or stack_collate
        self.sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        if shuffle and not self.sized:
            raise InputError("an iterable comes in its own order: shuffle=True needs a sequence or arrays.")
        self.epoch = 0
        self.position = 0  # batches of this epoch that were handed out

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        n = self._count()
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def _count(self) -> int:
        if not self.sized:
            raise InputError("the length of an iterable is not known beforehand.")
        return len(self.arrays[0]) if self.arrays is not None else len(self.data)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the present epoch that are left; at its end the next one begins."""
        batches = self._batches(self.epoch, self.position)
        for batch in _ahead(batches, self.prefetch) if self.prefetch else batches:
            self.position += 1
            yield batch
        self.epoch, self.position = self.epoch + 1, 0

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        if not self.sized:
            yield from self._stream(start)
            return
        n = self._count()
        order = np.random.default_rng((self.seed, epoch)).permutation(n) if self.shuffle else np.arange(n)
        for i in range(start, len(self)):
            chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
            if self.arrays is None:
                yield self.collate([self.data[int(j)] for j in chosen])
            else:
                picked = tuple(a[chosen] for a in self.arrays)
                yield picked if isinstance(self.data, tuple) else picked[0]

    def _stream(self, start: int) -> Iterator[Any]:
        samples: list[Any] = []
        done = 0
        for sample in self.data:
            samples.append(sample)
            if len(samples) == self.batch_size:
                done += 1
                if done > start:
                    yield self.collate(samples)
                samples = []
        if samples and not self.drop_last and done >= start:
            yield self.collate(samples)

    def state_dict(self) -> dict[str, int]:
        """Return where the loader is."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self.seed = int(state["seed"])


def _arrays(data: Any) -> tuple[Any, ...] | None:
    """Return the arrays of a data set that is made of arrays; None if it is of another kind."""
    parts = data if isinstance(data, tuple) else (data,)
    if not parts or not all(isinstance(p, (np.ndarray, Tensor)) for p in parts):
        return None
    arrays = tuple(np.asarray(p) for p in parts)
    lengths = [len(a) for a in arrays]
    if len(set(lengths)) != 1:
        raise ShapeError(f"the arrays of a data set have one length, but these have {lengths}.")
    return arrays


def _ahead(batches: Iterable[Any], depth: int) -> Iterator[Any]:
    """Make batches in a thread, up to ``depth`` ahead; errors pass, leaving early stops the thread."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(item: tuple[str, Any]) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not put(("batch", batch)):
                    return
            put(("end", None))
        except BaseException as error:
            put(("error", error))

    worker = threading.Thread(target=work, name="adjoint-prefetch", daemon=True)
    worker.start()
    try:
        while True:
            kind, item = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item
    finally:
        stop.set()
        worker.join()
