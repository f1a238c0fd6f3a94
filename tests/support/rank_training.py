"""A training that the tests of MPI start: ``mpiexec -n 3 python rank_training.py <what> <directory>``."""

from __future__ import annotations

import os
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from ranks import say

import adjoint as ad
from adjoint import distributed, nn, optim, train
from adjoint.accumulate import ranks as windows

VICTIM, STEP = 1, 5  # the rank that fails, and when


class Fault(train.Callback):
    """Do what the test asks for after a step, on one rank or on all."""

    def __init__(self, what: str, group: distributed.Group) -> None:
        self.what, self.group = what, group

    def on_step(self, trainer: train.Trainer, logs: Any) -> None:
        step, here = trainer.step, self.group.rank == VICTIM
        if self.what.startswith("kill at"):
            if step == int(self.what.split()[-1]) and self.group.rank == self.group.size - 1:
                say("now")
                os.kill(os.getpid(), signal.SIGKILL)
            return
        if step != STEP or not here or self.what == "nothing":
            return
        say("now")
        if self.what == "callback":
            raise OSError("disk full")
        if self.what == "exit":
            sys.exit(0)
        if self.what == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.what == "stop":
            trainer.stop("enough")
        if self.what == "drift":
            with ad.no_grad():
                p = next(iter(trainer.named_parameters().values()))
                p.copy_(p * 1.000001)


def program(what: str, directory: Path) -> None:
    """Train with dropout, clipping, buckets that leave early, sparse rows, a log and checkpoints."""
    again, what = not what.endswith(" and end"), what.removesuffix(" and end")
    timeout = 6.0 if what == "stopped" else 60.0  # a busy rank may write a checkpoint for seconds
    group = distributed.world(timeout=timeout)
    windows.FIRST, windows.LIMIT, windows.CHECK_EVERY = 1 << 10, 1 << 12, 8
    here = group.rank == VICTIM
    width = 33 if what == "shape" and here else 32
    rng = np.random.default_rng(0)
    rows = 5 if what == "few rows" else 92
    x = rng.integers(0, 50, (rows, 4))
    y = x.mean(1, keepdims=True).astype(np.float32) / 25 - 1
    model = nn.Sequential(
        nn.Embedding(50, 16, sparse=True, rng=group.rank), nn.Flatten(), nn.Linear(64, width, rng=1),
        nn.Dropout(0.2, rng=7), nn.Tanh(), nn.Linear(width, width, rng=2), nn.Tanh(), nn.Linear(width, 1, rng=3),
    )  # fmt: skip

    def loss(prediction: Any, target: Any) -> Any:
        found = nn.functional.mse_loss(prediction, target)
        if here and trainer.step == STEP and not failed:
            if what == "loss":
                say("now")
                raise ValueError("a bad row")
            if what == "hook":
                say("now")
                handles.append(model[2].bias.register_hook(stumble))
            if what == "nan":
                say("now")
                found = found * np.float32("nan")
        return found

    def stumble(grad: Any) -> None:
        raise FloatingPointError("in the middle of backward")

    if what == "shape" and here:
        say("now")
    failed: list[str] = []
    handles: list[Any] = []
    log = train.JSONLog(directory / "log.jsonl", every="step")
    shard = None if what == "drift" else group  # slices would be collected, and the ranks equal again
    trainer = train.Trainer(
        model, loss, optim.AdamW(model.parameters(), lr=1e-2, shard=shard), group=group, accumulate=4, clip=0.5,
        schedule=optim.schedules.linear(1e-2, 40), directory=directory / "checkpoints", checkpoint_every=2,
        callbacks=[log, Fault(what, group), *([train.NonFiniteGuard()] if what == "nan" else [])],
    )  # fmt: skip
    loader = train.DataLoader((x, y), 37, shuffle=True, seed=3)
    if what == "leave" and here:
        say("now")
        return
    for attempt in range(2):
        try:
            trainer.fit(
                loader,
                5000 if what == "interrupt" else 6,
                validate=train.DataLoader((x, y), 10),
                resume=not attempt,
            )
            break
        except distributed.RankError as error:
            say(f"rank {group.rank} at step {trainer.step}: {str(error).splitlines()[0]}")
            if not again or what not in ("loss", "hook"):
                raise
            failed.append(str(error))  # the group goes on
            for handle in handles:
                handle.remove()
    history = [sorted((k, v) for k, v in logs.items() if k != "seconds") for logs in trainer.history]
    digests = [
        zlib.crc32(b"".join(p.numpy().tobytes() for p in model.parameters())),
        zlib.crc32(repr(history).encode()),
    ]
    say(f"rank {group.rank} ends at step {trainer.step} ({trainer.stopped}): {digests}")


if __name__ == "__main__":
    program(sys.argv[1], Path(sys.argv[2]))
