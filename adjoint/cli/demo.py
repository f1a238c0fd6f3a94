"""``adjoint demo``: train a classifier of handwritten digits, check its gradient and report the training."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import inspect, nn, optim, train
from adjoint.cli.target import check_writable
from adjoint.errors import FileError, MissingExtraError, install_command
from adjoint.optim import schedules

__all__ = ["demo"]

EPOCHS = 15
BATCH = 64
PIECES = 2  # micro-batches per batch; the sum of their gradients is the gradient of the batch


def demo(
    *,
    path: str = "curve.png",
    page: str = "report.html",
    as_json: bool = False,
    epochs: int = EPOCHS,
    compile: bool = False,
) -> str:
    """Train the classifier, write a plot to ``path`` and a report to ``page``, and return a summary.

    With ``as_json`` the summary is JSON, and no progress is printed.
    """
    began = time.perf_counter()
    path = _writable(path)
    check_writable(page, "demo: the page", "Give another path: adjoint demo --report PATH.")
    train_set, test_set = _digits()
    model = nn.Sequential(
        nn.Linear(64, 128, rng=0), nn.ReLU(), nn.Linear(128, 128, rng=1), nn.ReLU(), nn.Linear(128, 10, rng=2)
    )
    gap = _gradient_check(train_set)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    trainer = train.Trainer(
        model,
        nn.functional.cross_entropy,
        optimizer,
        schedule=schedules.one_cycle(4e-3, epochs * -(-len(train_set[0]) // BATCH)),
        accumulate=PIECES,
        clip=5.0,
        metrics={"accuracy": lambda p, t: (p.argmax(-1) == t).astype(np.float64).mean()},
        callbacks=inspect.Recorder(),
        progress=False if as_json else "auto",
        compile=compile,
    )
    loader = train.DataLoader(train_set, BATCH, shuffle=True, seed=1)
    history = trainer.fit(loader, epochs, validate=train.DataLoader(test_set, 512))
    facts = {
        "gradient_check": gap,
        "train_loss": history[-1]["loss"],
        "test_loss": history[-1]["val_loss"],
        "test_accuracy": history[-1]["val_accuracy"],
        "gradient_norm_first": history[0]["grad_norm"],
        "gradient_norm_last": history[-1]["grad_norm"],
        "parameters": sum(p.size for p in model.parameters()),
        "steps": trainer.step,
        "seconds": round(time.perf_counter() - began, 2),
        "picture": _draw(history, path),
        "report": str(inspect.report(trainer, page, title="Handwritten digits")),
    }
    return json.dumps(facts) if as_json else _report(facts)


def _digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return (images, labels) for training and for the test: the 8×8 digits of scikit-learn, split 4 : 1."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("the demo's data", "scikit-learn", "demo") from None
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = (data.data[order] / 16.0).astype(np.float32), data.target[order]
    cut = len(y) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def _gradient_check(data: tuple[Any, Any]) -> float:
    """Return the relative difference between a directional derivative of the loss and finite differences."""
    model = nn.Sequential(nn.Linear(64, 16, rng=3), nn.Tanh(), nn.Linear(16, 10, rng=4)).astype(np.float64)
    x, y = ad.tensor(data[0][:32].astype(np.float64)), ad.tensor(data[1][:32])
    params = dict(model.named_parameters())
    rng = np.random.default_rng(0)
    direction = {k: rng.normal(size=p.shape) for k, p in params.items()}

    def loss(shift: float) -> Any:
        moved = {k: p + shift * direction[k] for k, p in params.items()}
        return nn.functional.cross_entropy(nn.functional_call(model, moved, x), y)

    grads = ad.backward(loss(0.0))
    exact = sum(float((grads[p].numpy() * direction[k]).sum()) for k, p in params.items())
    step = 1e-5
    with ad.no_grad():
        numeric = (loss(step).item() - loss(-step).item()) / (2 * step)
    return abs(exact - numeric) / abs(numeric)


def _writable(path: str) -> str:
    """Return the path of the plot, with ".png" if it has no ending; raise if it cannot be written.

    This is called before the training, so that the training is not lost.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return path  # no plot is drawn without matplotlib
    kinds = Figure().canvas.get_supported_filetypes()
    if not os.path.splitext(path)[1] and not os.path.isdir(path):
        path += ".png"
    kind = os.path.splitext(path)[1][1:].lower()
    if kind not in kinds and not os.path.isdir(path):
        raise FileError(
            f"demo: the file of --picture must end in one of {', '.join(sorted(kinds))}, but is {path!r}."
        )
    check_writable(path, "demo: the picture", "Give another path: adjoint demo --picture PATH.")
    return path


def _draw(history: list[dict[str, float]], path: str) -> str | None:
    """Plot loss, accuracy and gradient norm over the epochs to the file ``path``; return ``path``.

    ``history`` has the metrics of each epoch.  Return None if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return None
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    figure.suptitle(f"Digits: test accuracy {history[-1]['val_accuracy']:.2%} after epoch {len(history)}")
    epochs = range(1, len(history) + 1)
    panels = {
        "loss": ("loss", "val_loss"),
        "accuracy": ("accuracy", "val_accuracy"),
        "gradient norm": ("grad_norm",),
    }
    for axes, (label, names) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for name in names:
            curve = "test" if name.startswith("val_") else "training"
            axes.plot(epochs, [h[name] for h in history], marker=".", label=curve)
        axes.set(xlabel="epoch", ylabel=label, yscale="log" if label == "loss" else "linear")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
    figure.savefig(path, dpi=110)
    return path


def _report(facts: dict[str, Any]) -> str:
    picture = facts["picture"]
    return "\n".join(
        [
            f"gradient check   relative difference {facts['gradient_check']:.0e} to finite differences",
            f"training         {facts['steps']} steps of {BATCH} examples in {PIECES} micro-batches, "
            f"{facts['parameters']:,} parameters",
            f"loss             {facts['train_loss']:.4f} training, {facts['test_loss']:.4f} test",
            f"test accuracy    {facts['test_accuracy']:.2%}",
            f"gradient norm    {facts['gradient_norm_first']:.4g} in the first epoch, "
            f"{facts['gradient_norm_last']:.4g} in the last, on average",
            f"time             {facts['seconds']} s",
            f"picture          {picture}" if picture else f"picture          none: {install_command('plot')}",
            f"report           {facts['report']}: open it in a browser",
        ]
    )
