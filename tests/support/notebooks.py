"""A notebook that trains, profiles and reports, run by a kernel."""

from __future__ import annotations

from typing import Any

import pytest

CELLS = (
    """import numpy as np, adjoint as ad, tempfile, os
from adjoint import nn, optim, train
x = np.ones((8, 2), "f"); net = nn.Linear(2, 1, rng=0); recorder = ad.inspect.Recorder()
optimizer = optim.SGD(net.parameters(), lr=0.1)
trainer = train.Trainer(net, nn.functional.mse_loss, optimizer, callbacks=recorder)
history = trainer.fit(train.DataLoader((x, x[:, :1]), 4), 2)""",
    "ad.tensor(x)",
    "history",
    """w = ad.tensor([1.0, 2.0], requires_grad=True)
with ad.inspect.profile() as p:
    (w * w).sum().backward()
p""",
    """ad.inspect.report(trainer, os.path.join(tempfile.mkdtemp(), "report.html"), title="in a notebook")""",
)


def executed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook with its outputs."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(page, timeout=120, kernel_name="python3").execute()
    return page
