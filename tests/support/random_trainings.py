"""Random trainings with callbacks, interruptions and failures, beside the same training without them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import nn, optim, train

F = nn.functional
DATA = np.random.default_rng(0)
X = DATA.normal(size=(28, 4)).astype(np.float32)
Y = DATA.normal(size=(28, 2)).astype(np.float32)


class Noise(nn.Module):
    """Adds noise of a generator of its own, and counts its calls."""

    def __init__(self, own: bool) -> None:
        self.rng = np.random.default_rng(5) if own else ad.random.default_rng(5)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        return x + 0.1 * ad.asarray(self.rng.normal(size=x.shape)).astype(np.float32) if self.training else x


class Count(nn.Module):
    """Writes into a buffer, also in evaluation mode."""

    def __init__(self) -> None:
        self.register_buffer("seen", np.zeros(4, np.float32))

    def forward(self, x: Any) -> Any:
        with ad.no_grad():
            self.seen.copy_(self.seen + x.detach().sum(0))
        return x * 0.5


class Stop(train.Callback):
    """Ends a run after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, trainer: Any, logs: Any) -> None:
        if trainer.step == self.at:
            trainer.stop()


class Fails(train.Callback):
    """Raises before the update of some steps, or after them, once each."""

    def __init__(self, at: set[int], where: str) -> None:
        self.at, self.where = set(at), where

    def before_update(self, trainer: Any, logs: Any) -> None:
        self._raise("before", trainer.step + 1)

    def on_step(self, trainer: Any, logs: Any) -> None:
        self._raise("after", trainer.step)

    def _raise(self, where: str, step: int) -> None:
        if where == self.where and step in self.at:
            self.at.discard(step)
            raise FloatingPointError("meant")


class FailingLoss:
    """A loss that raises in the call after ``left`` others."""

    def __init__(self, loss: Any) -> None:
        self.loss, self.left = loss, -1

    def __call__(self, *args: Any) -> Any:
        found = self.loss(*args)
        if self.left >= 0:
            self.left -= 1
            if self.left < 0:
                raise FloatingPointError("meant")
        return found


def squares(model: Any) -> Any:
    return sum(((p**2).sum() for p in model.parameters()), start=ad.tensor(np.float32(0)))


class Training:
    """A random training.  ``run`` trains without disturbances, ``disturbed`` with them."""

    def __init__(self, seed: int, compile: bool | None = None) -> None:
        r = self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.compile = bool(r.random() < 0.6) if compile is None else compile
        self.middle = [int(k) for k in r.choice(5, size=r.integers(0, 3), replace=False)]
        self.own = bool(r.random() < 0.5) and not self.compile
        self.kind = str(r.choice(["mse", "mean", "composed", "learned", "huber"]))
        self.optimizer = str(r.choice(["SGD", "Adam", "RMSprop", "AdamW"]))
        self.size = int(r.choice([8, 10, 12]))
        self.pieces = 1 if r.random() < 0.6 else int(r.integers(2, 4))
        self.clip = None if r.random() < 0.5 else 0.5
        self.term_norms = [None, 1, 2, 3][r.integers(4)]
        self.epochs = int(r.integers(1, 4))
        self.schedule = r.random() < 0.3
        self.options = bool(r.random() < 0.3)  # change hyper-parameters in the run
        self.nesterov = bool(r.random() < 0.5)
        self.validate = bool(r.random() < 0.3)
        self.metrics, self.computes, self.double, self.weighs, self.listed, self.freezes = (
            bool(b) for b in r.random(6) < 0.25
        )
        self.plateau = bool(r.random() < 0.3)
        self.failing: FailingLoss | None = None

    def model(self) -> Any:
        layers = [
            lambda: nn.BatchNorm1d(4), lambda: nn.Dropout(0.3, rng=2), lambda: Noise(self.own),
            lambda: nn.LayerNorm(4), Count,
        ]  # fmt: skip
        inner = [layers[k]() for k in self.middle]
        made = nn.Sequential(nn.Linear(4, 4, rng=0), nn.Tanh(), *inner, nn.Linear(4, 2, rng=1))
        return made.astype(self.dtype)

    @property
    def dtype(self) -> Any:
        return np.float64 if self.double else np.float32

    def loss(self) -> Any:
        if self.kind in ("composed", "learned"):
            weight = "learned" if self.kind == "learned" else lambda step: 1.0 / (1 + step)
            return train.compose({"fit": (F.mse_loss, weight), "l2": (squares, 1e-3)})
        return {"mse": F.mse_loss, "huber": F.huber_loss, "mean": lambda p, t: ((p - t) ** 2).mean()}[
            self.kind
        ]

    def trainer(self, callbacks: list[Any], **options: Any) -> Any:
        model, loss = self.model(), self.loss()
        params = [*model.parameters(), *(loss.parameters() if isinstance(loss, nn.Module) else ())]
        if not self.compile and not isinstance(loss, nn.Module):
            loss = self.failing = FailingLoss(loss)
        if self.options:
            callbacks = [Options(), *callbacks]
        if self.freezes:
            callbacks = [Freezes(), *callbacks]
        schedule: Any = (lambda step: 0.02 / (1 + step)) if self.schedule else None
        if self.plateau:
            schedule = optim.schedules.Plateau(0.02, patience=0, monitor="loss")
        if self.metrics:
            options["metrics"] = {"off": lambda p, t: abs(p - t).mean()}
        if self.weighs:
            options["weight"] = lambda batch: float(len(batch[0]))
        if self.computes and not isinstance(loss, nn.Module):
            fit, loss, options["metrics"] = loss, None, {}
            options["compute"] = lambda m, batch: (
                fit(m(ad.asarray(batch[0])), ad.asarray(batch[1])),
                {"one": 1.0},
            )
        given = (
            {"momentum": 0.5 * self.nesterov, "nesterov": self.nesterov} if self.optimizer == "SGD" else {}
        )
        return train.Trainer(
            model, loss, getattr(optim, self.optimizer)(params, lr=0.02, **given), accumulate=self.pieces, clip=self.clip,
            compile=self.compile, term_norms=self.term_norms, progress=False, callbacks=callbacks,
            schedule=schedule, **options,
        )  # fmt: skip

    def loader(self) -> Any:
        x, y = X.astype(self.dtype), Y.astype(self.dtype)
        if self.listed:
            return [(x[k : k + self.size], y[k : k + self.size]) for k in range(0, len(x), self.size)]
        return train.DataLoader((x, y), self.size, shuffle=True, seed=3)

    def fit(self, trainer: Any, loader: Any, **options: Any) -> Any:
        return trainer.fit(loader, self.epochs, validate=self.held_out(), **options)

    def held_out(self) -> Any:
        return [(X.astype(self.dtype), Y.astype(self.dtype))] if self.validate else None

    def bits(self, trainer: Any) -> dict[str, Any]:
        found = {name: v.tobytes() for name, v in trainer.model.state_dict().items()}
        found |= {f"loss.{k}": p.numpy().tobytes() for k, p in trainer.named_parameters().items()}
        for k, p in trainer.named_parameters().items():
            found |= {f"{k}:{n}": v.tobytes() for n, v in trainer.optimizer.state_of(p).items()}
        logs = [{k: v for k, v in h.items() if k != "seconds"} for h in trainer.history]
        return {**found, "history": repr(logs), "step": trainer.step}

    def run(self) -> dict[str, Any]:
        trainer = self.trainer([])
        self.fit(trainer, self.loader())
        return self.bits(trainer)

    def disturbed(self, directory: Path) -> dict[str, Any]:
        r = self.rng
        steps = self.epochs * -(-len(X) // self.size)
        stops = [*sorted(int(s) for s in r.integers(1, steps + 1, size=r.integers(0, 3))), 0]
        chosen = r.random(5) < (0.7, 0.5, 0.5, 0.5, 0.5)
        every = None if r.random() < 0.5 else int(r.integers(1, 4))
        for i, stop in enumerate(stops):
            fails = Fails(
                set(r.integers(1, steps + 1, size=2).tolist()), str(r.choice(["before", "after", "no"]))
            )
            watching = [
                ad.inspect.Recorder(every=int(r.integers(1, 3))), train.GradientFlow(), train.NonFiniteGuard(),
                train.CSVLog(directory / "log.csv", "step"), train.BestCheckpoint(directory / "best", "loss"),
            ]  # fmt: skip
            callbacks = [*(c for c, used in zip(watching, chosen, strict=True) if used), fails, Stop(stop)]
            # the first line of a log determines its columns, so no other callback may fail before it
            order = sorted(
                r.permutation(len(callbacks)), key=lambda k: not isinstance(callbacks[k], train.CSVLog)
            )
            trainer = self.trainer(
                [callbacks[k] for k in order], directory=directory / "run", checkpoint_every=every, keep=2
            )
            loader = self.loader()
            with contextlib.suppress(FloatingPointError):
                if self.failing is not None and r.random() < 0.5:
                    self.failing.left = int(r.integers(0, 20))
                if i and r.random() < 0.3:  # only load the checkpoint
                    trainer.fit(loader, 0, resume=True)
                    i = 0
                self.fit(trainer, loader, resume=bool(i))
            while trainer.stopped is None and trainer.epoch < self.epochs:  # one of the failures
                with contextlib.suppress(FloatingPointError):
                    self.fit(trainer, loader)
        return self.bits(trainer)


class Freezes(train.Callback):
    """Freezes a layer after some steps, and trains it after others."""

    def on_step(self, trainer: Any, logs: Any) -> None:
        trainer.model[0].requires_grad_(trainer.step % 5 != 2)


class Options(train.Callback):
    """Changes hyper-parameters by the step."""

    def on_step(self, trainer: Any, logs: Any) -> None:
        for group in trainer.optimizer.groups:
            changes: dict[str, Any] = {"weight_decay": 0.01 * (trainer.step % 3)}
            changes |= {"momentum": 0.5 * (trainer.step % 2), "nesterov": trainer.step % 4 == 1}
            changes |= {"amsgrad": trainer.step % 3 == 1, "centered": trainer.step % 4 == 1}
            group.hyper.update({k: v for k, v in changes.items() if k in group.hyper})


def check_training(seed: int, directory: Path, compile: bool | None = None) -> None:
    """Check that callbacks, checkpoints, failures and interruptions do not change a training."""
    expected = Training(seed, compile).run()
    training = Training(seed, compile)
    found = training.disturbed(directory)
    differ = [name for name in expected if found.get(name) != expected[name]]
    assert not differ and found.keys() == expected.keys(), (seed, differ, vars(training))
