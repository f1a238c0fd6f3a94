"""``DataLoader``: batches of arrays, sequences or iterables, with shuffling, resuming and prefetching."""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adjoint import tree
from adjoint.core.shapes import whole_number
from adjoint.core.tensor import Tensor
from adjoint.distributed.order import share
from adjoint.errors import ArgumentError, InputError, ShapeError, WorkerError
from adjoint.tracebacks import door
from adjoint.words import count

if TYPE_CHECKING:
    from adjoint.distributed.group import Group

__all__ = ["DataLoader", "Padded", "Share", "pad_collate", "stack_collate"]


class Padded(NamedTuple):
    """Sequences of different lengths in one array, and their lengths.

    If the targets of a batch are padded, a trainer uses the sum of their lengths as the weight of the batch.

    Parameters
    ----------
    values : ndarray
        The padded sequences.
    lengths : ndarray
        The lengths of the sequences.
    """

    values: Any
    lengths: Any


def stack_collate(samples: Sequence[Any]) -> Any:
    """Stack samples of equal shapes into arrays.

    Parameters
    ----------
    samples : sequence
        The samples.  Fields of tuples and dictionaries are stacked separately.

    Returns
    -------
    ndarray, tuple or dict
        The batch, with the structure of the samples.

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> x, y = stack_collate([(1.0, 2), (3.0, 4)])
    >>> x.tolist(), y.tolist()
    ([1.0, 3.0], [2, 4])
    """
    return _by_field(samples, _stacked)


def pad_collate(samples: Sequence[Any], value: float = 0) -> Any:
    """Pad sequences of different lengths into one array; return the array and the lengths.

    Without ``weight=``, a trainer uses the sum of the lengths as the weight of a batch if the targets (the
    last field) are padded, with a target per token.  Otherwise it uses the number of sequences.

    Parameters
    ----------
    samples : sequence
        The samples.  Fields of tuples and dictionaries are padded separately; a field with one number per
        sample is stacked.
    value : float
        The value of the padding.

    Returns
    -------
    Padded, tuple or dict
        Arrays and lengths, with the structure of the samples.

    Raises
    ------
    ShapeError
        If the shapes differ in more than the first axis.

    Examples
    --------
    >>> padded, lengths = pad_collate([[1, 2, 3], [4]])
    >>> padded.tolist(), lengths.tolist()
    ([[1, 2, 3], [4, 0, 0]], [3, 1])
    """
    return _by_field(samples, lambda field: _padded(field, value))


def _by_field(samples: Sequence[Any], collate: Callable[[list[Any]], Any]) -> Any:
    if not len(samples):
        raise InputError("a batch must have at least one sample, but the list of samples is empty.")
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(_by_field([s[i] for s in samples], collate) for i in range(len(first)))
    if isinstance(first, Mapping):
        return {k: _by_field([s[k] for s in samples], collate) for k in first}
    return collate([np.asarray(s) for s in samples])


def _stacked(rows: list[Any]) -> Any:
    shapes = {r.shape for r in rows}
    if len(shapes) > 1:
        raise ShapeError(
            "the samples of a batch must have the same shape, but have the shapes "
            f"{', '.join(map(str, sorted(shapes)))}.\n"
            "  Use collate=train.pad_collate for sequences of different lengths."
        )
    return np.stack(rows)


def _padded(rows: list[Any], value: float) -> Any:
    if all(r.ndim == 0 for r in rows):
        return np.stack(rows)
    shapes = {r.shape[1:] if r.ndim else None for r in rows}
    if len(shapes) > 1:
        raise ShapeError(
            "pad_collate: samples may differ only in the length of the first axis, but have the shapes "
            f"{', '.join(map(str, sorted({r.shape for r in rows})))}."
        )
    lengths = np.array([len(r) for r in rows])
    dtype = np.result_type(*rows)
    if dtype.kind in "iub" and not float(value).is_integer():  # an integer array cannot store 0.5 or NaN
        dtype = np.result_type(dtype, float)
    out = np.full((len(rows), int(lengths.max()), *rows[0].shape[1:]), value, dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return Padded(out, lengths)


class Share(NamedTuple):
    """The pieces of a batch that belong to one rank.

    Parameters
    ----------
    rows : int
        The number of rows of the whole batch.
    pieces : list of (int, object)
        The index of each piece among the pieces of all ranks, and the piece.  A piece without rows is None.
    chosen : object
        The indices of the samples of the whole batch, or the samples.
    """

    rows: int
    pieces: list[tuple[int, Any]]
    chosen: Any = ()

    def parts(self, loader: DataLoader) -> Iterator[Any]:
        """Yield this rank's pieces of the batch; a piece without rows is yielded as an empty batch."""
        for _, piece in self.pieces:
            yield loader.empty(self.chosen) if piece is None else piece


Cut = Callable[[Callable[[Any], Any], Any], Share]  # called with the arguments make and chosen of _share


def _share(group: Group, pieces: int, make: Callable[[Any], Any], chosen: Any) -> Share:
    """Divide a batch into ``pieces`` pieces, and return the pieces that this rank of ``group`` processes.

    ``chosen`` are the indices of the samples of the batch, or the samples.  ``make`` is a function that
    returns a batch of some of them.
    """
    found = []
    for j in range(*share(pieces, group.size, group.rank)):
        start, stop = share(len(chosen), pieces, j)
        found.append((j, make(chosen[start:stop]) if stop > start else None))
    return Share(len(chosen), found, chosen)


class DataLoader:
    """Iterate over a data set in batches, epoch after epoch.

    The order of an epoch depends only on ``seed`` and the number of the epoch, so ``state_dict`` is a few
    numbers.  The first iteration after ``load_state_dict`` continues at the saved batch.  Every other
    iteration starts at the first batch of the epoch.  The epoch advances when an iteration is finished.  An
    iterator yields each batch only once: after an interrupted loop, the next loop continues with the next
    batch.

    Parameters
    ----------
    data : array, tuple, dict, sequence or iterable
        The samples: the rows of an array, or of a table of pandas or polars; the rows of a tuple or a
        dictionary of columns of equal length; or the elements of any other sequence or iterable.
    batch_size : int
        The number of samples per batch.
    shuffle : bool
        Whether the order is random.
    seed : int
        The seed of the order.
    drop_last : bool
        Whether an incomplete last batch is dropped.
    collate : callable, optional
        A function that makes a batch from a list of samples.  The default has the effect of
        ``stack_collate``, but slices arrays without copying each sample.
    prefetch : int
        The number of batches that a thread prepares in advance.

    Examples
    --------
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
        for name, value, low in (("batch_size", batch_size, 1), ("prefetch", prefetch, 0), ("seed", seed, 0)):
            if whole_number("DataLoader", name, value) < low:
                raise ArgumentError(f"DataLoader: {name} must be at least {low}, but is {value}.")
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
            if not isinstance(flag, (bool, np.bool_)):
                raise InputError(f"DataLoader: {name} must be True or False, not {flag!r}.")
        self.data, self.batch_size, self.shuffle, self.seed = data, batch_size, shuffle, seed
        self.drop_last, self.prefetch = drop_last, prefetch
        self.columns = _columns(data)
        self.collate = collate or stack_collate
        arrays = self.columns is not None and all(isinstance(c, np.ndarray) for c in self.columns.values())
        self._cut = arrays and collate is None  # batches are slices of arrays
        self.sized = self.columns is not None or (hasattr(data, "__len__") and hasattr(data, "__getitem__"))
        if shuffle and not self.sized:
            raise InputError("DataLoader: shuffle=True needs arrays or a sequence, not a plain iterable.")
        if not self.sized and not isinstance(data, Iterable):
            raise InputError(f"DataLoader: data must be arrays, a sequence or an iterable, not {data!r}.")
        self.epoch = 0
        self.position = 0  # batches of this epoch that were yielded
        self._goes_on = False  # whether the next iteration starts at ``position``, because it was loaded
        self._once = isinstance(data, Iterator)  # whether the data can be iterated over only once
        self._taken = 0  # the number of batches read from an iterator
        self._left: deque[tuple[str, Any]] = deque()  # batches prefetched from an iterator, not yet yielded
        self._before: _Ahead | None = None  # the thread of the last loop; it may still be reading data

    def __repr__(self) -> str:
        size = count(self._count(), "sample") if self.sized else "an iterable"
        return f"DataLoader({size}, batch_size={self.batch_size}, shuffle={self.shuffle}, seed={self.seed})"

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        n = self._count()
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def _count(self) -> int:
        if not self.sized:
            raise InputError(
                "DataLoader: an iterable has no len(), because the number of its batches is not known.\n"
                "  Pass arrays or a list to use len()."
            )
        return len(self.data if self.columns is None else next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the current epoch, then advance to the next epoch."""
        return self._moving()

    def shares(self, group: Group, pieces: int | None = None) -> Iterator[Any]:
        """Yield this rank's pieces of the batches of the current epoch, then advance to the next epoch.

        A batch of n rows is cut at n·j // pieces for each j, independent of the number of ranks.  Each rank
        gets the same number of pieces, and every row is used once per epoch.  If a batch has fewer rows than
        pieces, some pieces are empty.

        Parameters
        ----------
        group : Group
            The ranks.
        pieces : int, optional
            The number of pieces of a batch, a multiple of the number of ranks.  The default is the number
            of ranks.

        Returns
        -------
        iterator
            The pieces of this rank, each with the structure of a batch.

        Raises
        ------
        ArgumentError
            If ``pieces`` is not a multiple of the number of ranks.

        Examples
        --------
        >>> from adjoint import distributed
        >>> rows = lambda group: [piece.tolist() for piece in DataLoader(np.arange(7), 5).shares(group)]
        >>> distributed.simulate(2, rows)
        [[[0, 1], [5]], [[2, 3, 4], [6]]]
        """
        count = group.size if pieces is None else whole_number("shares", "pieces", pieces)
        if count < 1 or count % group.size:
            raise ArgumentError(
                f"shares: pieces must be a multiple of the number of ranks, {group.size}, but is {count}."
            )
        return (part for batch in self.cut(group, count) for part in batch.parts(self))

    def cut(self, group: Group, pieces: int) -> Iterator[Share]:
        """Yield this rank's share of each batch of the current epoch, then advance to the next epoch.

        Parameters
        ----------
        group : Group
            The ranks.
        pieces : int
            The number of pieces of a batch.

        Returns
        -------
        iterator of Share
            One share per batch.
        """
        return self._moving(partial(_share, group, pieces))

    @door
    def _moving(self, cut: Cut | None = None) -> Iterator[Any]:
        """Yield the remaining batches of the current epoch; increment ``position`` at each one.

        At the end, increment ``epoch``.  If ``cut`` is given, yield its result for each batch instead of the
        batch.
        """
        epoch, position = self.epoch, self.position if self._goes_on else 0
        self._goes_on = False
        self.position = position
        for batch in self._from(epoch, position, cut=cut):
            position += 1
            self.epoch, self.position = epoch, position
            yield batch
        self.epoch, self.position = epoch + 1, 0

    def whole(self, start: int = 0, step: int = 1) -> Iterator[Any]:
        """Return an iterator over the batches of the current epoch, without changing the position.

        Parameters
        ----------
        start : int
            The index of the first batch.
        step : int
            The interval between the batches: 2 yields every second batch.

        Returns
        -------
        iterator
            The batches.
        """
        if self.sized:
            return self._from(self.epoch, start, step)
        return itertools.islice(self._from(self.epoch, 0), start, None, step)

    @door
    def _from(self, epoch: int, start: int, step: int = 1, cut: Cut | None = None) -> Iterator[Any]:
        before, self._before = self._before, None
        batches = self._batches(epoch, range(start, len(self), step) if self.sized else start, before, cut)
        if not self.prefetch:
            yield from batches
            return
        ahead = _Ahead(batches, self.prefetch)
        try:
            yield from ahead
        finally:
            ahead.stopped.set()
            # Reading a sample of a sequence is fast, so wait for the thread here.  An iterator may block for
            # long, so the thread is joined only when the next loop over the same iterator starts.
            if self.sized:
                ahead.worker.join()
            elif self._once:
                self._before = ahead

    def _batches(
        self, epoch: int, which: range | int, before: _Ahead | None, cut: Cut | None
    ) -> Iterator[Any]:
        """Yield the batches of an epoch with the indices in the range ``which``.

        For an iterable without a length, ``which`` is the number of batches to skip, and ``before`` has the
        batches that were prefetched for an interrupted iteration.  If ``cut`` is given, yield its result for
        each batch instead of the batch.
        """
        if isinstance(which, int):
            yield from self._stream(which, before, cut)
            return
        n = self._count()
        order = np.random.default_rng((self.seed, epoch)).permutation(n) if self.shuffle else np.arange(n)
        for i in which:
            chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
            yield self._made(chosen) if cut is None else cut(self._made, chosen)

    def _made(self, chosen: Any) -> Any:
        """Return a batch of the samples with the indices ``chosen``."""
        return self._sample(chosen) if self._cut else self.collate([self._sample(int(j)) for j in chosen])

    def empty(self, chosen: Any) -> Any:
        """Return a batch without samples, but with the structure of a batch of the samples ``chosen``."""
        batch = self._made(chosen[:1]) if self.sized else self.collate(chosen[:1])
        return tree.map(lambda a: a[:0], batch)

    def _sample(self, index: Any) -> Any:
        """Return the sample with an index; for an array of indices, return the samples as a batch.

        The result is a tuple, a dictionary or one array, like the data.
        """
        if self.columns is None:
            return self.data[index]
        found = {name: column[index] for name, column in self.columns.items()}
        if isinstance(self.data, Mapping):
            return found
        return tuple(found.values()) if isinstance(self.data, tuple) else found[0]

    def _stream(self, start: int, before: _Ahead | None, cut: Cut | None) -> Iterator[Any]:
        made = self.collate if cut is None else partial(cut, self.collate)
        if before is not None:
            self._left.extendleft(reversed(before.rest()))
        handed_out = self._taken - sum(kind == "batch" for kind, _ in self._left)
        done = min(handed_out, start)  # an iterator has already passed these batches: do not skip them again
        while self._left:
            kind, item = self._left.popleft()
            if kind == "error":
                raise item
            done += 1
            if done > start:
                yield item
        samples: list[Any] = []
        for sample in self.data:
            samples.append(sample)
            if len(samples) == self.batch_size:
                done += 1
                self._taken += self._once
                if done > start:
                    yield made(samples)
                samples = []
        if samples and not self.drop_last and done >= start:
            self._taken += self._once
            yield made(samples)

    def state_dict(self) -> dict[str, int]:
        """Return a dictionary with the epoch, the position in it, and the settings of the loader."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, **self._form()}

    def next_place(self) -> dict[str, int]:
        """Return the state at the start of the next iteration, in the format of ``state_dict``."""
        return {**self.state_dict(), "position": self.position if self._goes_on else 0}

    def _form(self) -> dict[str, int]:
        """Return the settings that must be equal when a saved position is loaded."""
        form = {"batch_size": self.batch_size, "shuffle": int(self.shuffle), "drop_last": int(self.drop_last)}
        if self.sized:
            form["samples"] = self._count()
        return {**form, "seed": self.seed} if self.shuffle else form

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue the next iteration at a saved position.

        Parameters
        ----------
        state : mapping
            The result of ``state_dict()``.

        Raises
        ------
        ArgumentError
            If the settings or the number of samples differ.
        """
        if not isinstance(state, Mapping) or not {"epoch", "position"} <= set(state):
            raise ArgumentError(
                "DataLoader: the state of a loader must have the keys 'epoch' and 'position'.\n"
                "  Pass the value that state_dict() returned."
            )
        place = [whole_number("DataLoader", name, state[name]) for name in ("epoch", "position")]
        if min(place) < 0:
            raise ArgumentError(f"DataLoader: epoch and position must not be negative, but are {place}.")
        other = [f"{k} {state.get(k)}, not {v}" for k, v in self._form().items() if state.get(k) != v]
        if other:
            raise ArgumentError(
                f"DataLoader: the state was saved by a loader with different settings: {', '.join(other)}.\n"
                "  Create the loader with the settings of the saved one."
            )
        self.epoch, self.position = place
        self._goes_on = True


def _columns(data: Any) -> dict[Any, Any] | None:
    """Return the columns (arrays) of a data set by name or index, or None for a sequence of samples."""
    if _is_array(data):
        named: dict[Any, Any] = {0: data}
    elif isinstance(data, Mapping):
        named = dict(data)
    elif isinstance(data, tuple):
        named = dict(enumerate(data))
    else:
        return None
    columns = {k: np.asarray(v) if _is_array(v) else v for k, v in named.items()}
    for name, column in columns.items():
        sequence = hasattr(column, "__len__") and hasattr(column, "__getitem__")
        if not sequence or isinstance(column, (str, bytes)) or getattr(column, "shape", None) == ():
            raise InputError(
                f"DataLoader: a tuple or a dictionary must consist of columns, but element {name!r} is "
                f"{column!r:.60}.\n"
                "  Pass a list for separate samples."
            )
    lengths = {k: len(v) for k, v in columns.items()}
    if len(set(lengths.values())) != 1:
        listed = list(lengths.values()) if isinstance(data, tuple) else lengths
        raise ShapeError(
            f"DataLoader: all columns must have the same length, but the lengths are {listed or 'none'}.\n"
            "  Pass a list for separate samples."
        )
    return columns


def _is_array(data: Any) -> bool:
    """Return whether data are one array: of NumPy or adjoint, or a table or column of pandas or polars."""
    return isinstance(data, (np.ndarray, Tensor)) or hasattr(data, "to_numpy")


class _Ahead:
    """An iterator over batches that a thread prepares in advance, at most ``depth`` of them."""

    def __init__(self, batches: Iterable[Any], depth: int) -> None:
        self.batches = batches
        self.ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
        self.stopped = threading.Event()
        self.unsent: list[tuple[str, Any]] = []
        self.process = os.getpid()
        # the thread runs in a copy of the context, so that modes such as no_grad apply in it
        run = copy_context().run
        self.worker = threading.Thread(target=run, args=(self._work,), name="adjoint-prefetch", daemon=True)
        self.worker.start()

    def _work(self) -> None:
        try:
            for batch in self.batches:
                if not self._put(("batch", batch)):
                    return
            self._put(("end", None))
        except BaseException as error:
            self._put(("error", error))

    def _put(self, item: tuple[str, Any]) -> bool:
        while not self.stopped.is_set():
            try:
                self.ready.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        self.unsent.append(item)
        return False

    def __iter__(self) -> Iterator[Any]:
        while True:
            if os.getpid() != self.process:  # the thread exists only in the parent process
                raise WorkerError(
                    "DataLoader: the process was forked during a loop with prefetch=, and the child has no "
                    "thread that prepares batches.\n  Start a new loop in the child, or use prefetch=0."
                )
            kind, item = self.ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item

    def rest(self) -> list[tuple[str, Any]]:
        """Wait until the stopped thread ends; return (kind, batch or error) of the items not yet yielded."""
        self.worker.join()
        made = [*self.ready.queue, *self.unsent]  # not get(): in a forked child its lock may never be free
        return [item for item in made if item[0] != "end"]
