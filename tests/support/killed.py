"""Kill trainings at random points with SIGKILL, resume them, and compare the end with one that was left alone.

    python tests/support/killed.py --seed 0 --kills 8

A point is the n-th call or return, of Python or of C, inside the steps or inside the writing of checkpoints, so the
same seed kills at the same places, between any two of them: in the middle of an update, of a micro-batch, of a log's
line, before and after each rename.  Each run is a forked child; some are killed again after they were resumed.
Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.optim import schedules

RNG = np.random.default_rng(0)
X = RNG.normal(size=(26, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.1).astype(np.float32)


class Points:
    """Counts the calls and returns of each phase, and kills this process at one of them."""

    def __init__(self, kill: tuple[str, int] | None) -> None:
        self.phase = "step"
        self.counts = {"step": 0, "save": 0}
        self.kill = kill

    def __call__(self, *_: Any) -> None:
        self.counts[self.phase] += 1
        if self.kill == (self.phase, self.counts[self.phase]):
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, work: Callable[[], Any]) -> Any:
        write = train.Checkpoints.write

        def saving(*args: Any, **options: Any) -> Any:
            self.phase = "save"
            try:
                return write(*args, **options)
            finally:
                self.phase = "step"

        train.Checkpoints.write = saving  # type: ignore[method-assign]
        sys.setprofile(self)
        try:
            return work()
        finally:
            sys.setprofile(None)


def model_of() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 8, rng=0), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3, rng=7), nn.Linear(8, 1, rng=1)
    )


class Average(train.Callback):
    """An average of the weights that lives in the checkpoints."""

    def __init__(self, model: nn.Module) -> None:
        self.ema = optim.EMA(model.parameters(), decay=0.9)

    def on_step(self, trainer: Any, logs: Any) -> None:
        self.ema.update()

    def state_dict(self) -> dict[str, Any]:
        return self.ema.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.ema.load_state_dict(state)


def l2(model: nn.Module) -> Any:
    return sum(((p**2).sum() for p in model.parameters()), start=ad.tensor(np.float32(0)))


def trainer_run(directory: Path) -> Any:
    """The trainer with all that has a state: pieces of batches, generators, schedules, averages, logs, the best."""
    model = model_of()
    plateau = schedules.Plateau(0.02, factor=0.5, patience=0, threshold=0.3)
    weight = schedules.warmup(schedules.Plateau(1e-2, factor=0.5, patience=0, monitor="fit"), 3)
    loss = train.compose({"fit": (nn.functional.mse_loss, "learned"), "l2": (l2, weight)})
    average = Average(model)
    trainer = train.Trainer(
        model,
        loss,
        optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.02),
        schedule=schedules.warmup(plateau, 4),
        accumulate=2,  # pieces of one row have no variance
        clip=0.5,
        callbacks=[
            average,
            train.EarlyStopping("val_loss", patience=50),
            train.BestCheckpoint(directory / "best"),
            train.JSONLog(directory / "steps.jsonl", "step"),
            train.CSVLog(directory / "epochs.csv"),
            train.GradientFlow(every=2),
        ],
        metrics={"error": lambda p, t: abs(p - t).mean()},
        directory=directory / "run",
        checkpoint_every=2,
        keep=2,
        term_norms=2,
    )
    loader = train.DataLoader((X, Y), 7, shuffle=True, seed=3, prefetch=2)
    trainer.fit(loader, epochs=3, validate=[(X, Y)], resume=True)
    return [
        model.state_dict(), loss.state_dict(), trainer.optimizer.state_dict(), average.ema.state_dict(),
        plateau.state_dict(), weight.state_dict(), loader.state_dict(), trainer.callbacks[-1].state_dict(),
        [{k: v for k, v in h.items() if k != "seconds"} for h in trainer.history], trainer.step,
    ]  # fmt: skip


def logs_of(directory: Path) -> Any:
    steps = [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    lines = (directory / "epochs.csv").read_text().splitlines()
    place = lines[0].split(",").index("seconds")
    rows = [line.split(",") for line in lines]
    return steps, [row[:place] + row[place + 1 :] for row in rows]


def loop_run(directory: Path) -> Any:
    """A loop of one's own: windows over batches of different sizes, saved when they are half full."""
    model = model_of()
    rng = np.random.default_rng(5)
    params = dict(model.named_parameters())
    optimiser = optim.SGD(params.values(), lr=0.05, momentum=0.9)
    accumulator = ad.GradientAccumulator(params, accumulation_steps=3, max_grad_norm=1.0)
    schedule = schedules.warmup(schedules.cosine(0.05, 20), 3)
    ema = optim.EMA(params.values(), decay=0.8)
    loader = train.DataLoader((X, Y), 6, shuffle=True, seed=1)
    checkpoints = train.Checkpoints(directory / "run", keep=2)
    parts = {"optimiser": optimiser, "accumulator": accumulator, "ema": ema, "loader": loader}
    dropout: Any = model[3]
    done = 0
    latest = checkpoints.latest()
    if latest is not None:
        weights, state, _ = checkpoints.read(latest)
        model.load_state_dict(weights)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        rng.bit_generator.state, dropout.rng.state = state["rng"], state["dropout"]
        done = state["done"]
    while done < 14:
        for x, y in loader:
            noisy = x + 0.1 * rng.standard_normal(x.shape, dtype=np.float32)
            with accumulator.micro_batch(weight=len(x)):
                nn.functional.mse_loss(model(noisy), y).backward()
            if accumulator.should_update():
                optimiser.lr = schedule(done)
                accumulator.apply(optimiser)
                ema.update()
            done += 1
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"rng": rng.bit_generator.state, "dropout": dropout.rng.state, "done": done}
            checkpoints.write(done, model.state_dict(), state)
            if done == 14:
                break
    return [model.state_dict(), {name: part.state_dict() for name, part in parts.items()}, done]


RUNS = {"trainer": trainer_run, "loop": loop_run}


def digest(value: Any) -> str:
    """A digest of nested state, every bit of its arrays included."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            found.update(b"[")
            for item in value:
                add(item)
        elif isinstance(value, (ad.Tensor, np.ndarray)):
            found.update(np.asarray(value).tobytes())
        else:
            found.update(repr(value).encode())

    add(value)
    return found.hexdigest()


def in_child(run: str, directory: Path, kill: tuple[str, int] | None) -> dict[str, Any] | None:
    """Run in a forked child; return what it ended with, or None if it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(read)
            points = Points(kill)
            result = points.watch(lambda: RUNS[run](directory))
            with os.fdopen(write, "w") as out:
                json.dump({"digest": digest(result), "points": points.counts}, out)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as answers:
        text = answers.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.WEXITSTATUS(status) == 0, f"{run} in {directory} failed"
    return json.loads(text)


def killed(run: str, seed: int, kills: int, directory: Path) -> Iterator[dict[str, Any]]:
    """Kill one run after the other, each at its points; yield where it was and what it gave."""
    rng = np.random.default_rng(seed)
    straight = in_child(run, directory / "straight", None)
    assert straight is not None
    logs = logs_of(directory / "straight") if run == "trainer" else None
    for i in range(kills):
        place = directory / str(i)
        points = []
        # every third is killed twice; one that has been resumed may be done before its second point
        for _ in range(2 if i % 3 == 2 else 1):
            phase = ("step", "save")[int(rng.integers(2))]
            points.append((phase, int(rng.integers(1, straight["points"][phase]))))
        deaths = sum(in_child(run, place, point) is None for point in points)
        end = in_child(run, place, None)
        assert end is not None
        same = end["digest"] == straight["digest"]
        same_logs = run != "trainer" or logs_of(place) == logs
        left = [path.name for path in place.rglob(".*")]
        yield {"points": points, "deaths": deaths, "same": same, "same_logs": same_logs, "left": left}
        shutil.rmtree(place)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", choices=sorted(RUNS), default="trainer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=8)
    options = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # thousands of fsyncs wait for a disk
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        found = list(killed(options.run, options.seed, options.kills, Path(directory)))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
