"""What a trainer and a loader say to those who hold them otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from messages import raised
from test_train import X, Y, model_of, trainer_of

import adjoint as ad
from adjoint import errors, nn, optim, train

pytest.importorskip("safetensors")

MSE = nn.functional.mse_loss


class Returns(nn.Module):
    def __init__(self, form: Any) -> None:
        self.layer, self.form = nn.Linear(3, 1, rng=0, dtype=np.float64), form

    def forward(self, x: Any) -> Any:
        return self.form(self.layer(x))


def with_class(**options: Any) -> Any:
    model = model_of()
    given = {"loss": MSE, "optimizer": optim.SGD(model.parameters()), **options}
    return train.Trainer(model, **given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trainer_of(model_of(), accumulate_steps=2), "Trainer: accumulate_steps= is called accumulate= in adjoint."),
        (lambda: trainer_of(model_of(), lr_scheduler=None), "Trainer: lr_scheduler= is called schedule= in adjoint."),
        (lambda: trainer_of(model_of(), epochs=2), "Trainer has no argument epochs=: pass it to trainer.fit(loader, epochs=…)."),
        (lambda: train.DataLoader(X, collate_fn=np.stack), "DataLoader: collate_fn= is called collate= in adjoint."),
        (
            lambda: train.DataLoader(X, num_workers=2),
            "DataLoader has no argument num_workers=: batches are made in this process; prefetch=2 makes the next batches in a thread.",
        ),
        (lambda: trainer_of(model_of()).fit([(X, Y)], epoch=2), "fit: epoch= is called epochs= in adjoint."),
        (
            lambda: trainer_of(model_of()).fit([(X, Y)], steps=2),
            "fit has no argument steps=.  It accepts loader, epochs, validate, resume.",
        ),
        (lambda: train.EarlyStopping(min_delta=0.1), "EarlyStopping: min_delta= is called delta= in adjoint."),
        (
            lambda: train.CSVLog("log.csv", when="step"),
            "CSVLog has no argument when=.  It accepts path, every.",
        ),
        (lambda: with_class(loss=nn.MSELoss), "Trainer: loss is the class MSELoss.  Pass an instance: MSELoss(…)."),
        (
            lambda: with_class(optimizer=optim.Adam),
            "Trainer: the optimiser is the class Adam.  Pass an instance: Adam(model.parameters(), …).",
        ),
        (
            lambda: with_class(callbacks=train.EarlyStopping),
            "Trainer: a callback is the class EarlyStopping.  Pass an instance: EarlyStopping(…).",
        ),
        (lambda: with_class(callbacks=3), "Trainer: callbacks must be instances of Callback, not 3."),
        (
            lambda: trainer_of(model_of()).fit([(X, Y)], validate=(X, Y)),
            "fit(validate=…): a batch must be a pair (inputs, targets), but the loader contains "
            "arrays.\n"
            "  Use DataLoader((X, Y), batch_size), or [(X, Y)] for a single batch.  For other "
            "batches pass Trainer(…, compute=function), where the function takes (model, batch).",
        ),
        (
            lambda: trainer_of(model_of()).fit([(X, Y)], validate=3),
            "fit(validate=…): a loader must be iterable, not an int.",
        ),
        (
            lambda: trainer_of(Returns(lambda y: (y, y))).predict(X),
            "predict: the model must return a tensor with a row per input, but returned a tuple.\n"
            "  For such a model, call model.eval(), then call the model inside `with ad.no_grad():`.",
        ),
        (
            lambda: trainer_of(Returns(lambda y: y.sum())).predict(X),
            "predict: the model must return a tensor with a row per input, but returned one "
            "number.\n"
            "  For such a model, call model.eval(), then call the model inside `with ad.no_grad():`.",
        ),
        (
            lambda: trainer_of(model_of()).predict({"x": X}),
            "predict: the inputs must be one array with a row per input, not a dict.\n"
            "  For other inputs, call model.eval(), then call the model inside `with ad.no_grad():`.",
        ),
    ],
)  # fmt: skip
def test_messages(make: Any, message: str) -> None:
    with pytest.raises(errors.InputError) as info:
        make()
    assert str(info.value) == message


@pytest.mark.parametrize("inputs", [train.DataLoader((X, Y)), [(X, Y)], (X, Y), "text", 3.0, None])
def test_what_is_no_array_of_inputs(inputs: Any) -> None:
    with pytest.raises(errors.InputError, match="predict: the inputs must be one array with a row per input"):
        trainer_of(model_of()).predict(inputs)


def test_what_is_fine() -> None:
    trainer = trainer_of(model_of(), callbacks=None)
    expected = trainer.predict(X)
    for inputs in (X.tolist(), list(X), ad.tensor(X)):
        np.testing.assert_array_equal(trainer.predict(inputs), expected)
    trainer.fit(((X, Y), (X, Y)), validate=((X, Y),))
    model = model_of()
    whole = train.Trainer(
        model, optimizer=optim.SGD(model.parameters()), compute=lambda m, x: (m(ad.asarray(x)) ** 2).mean()
    )
    whole.fit([X], validate=[X])  # with compute a batch may be an array


def callback_with(name: str) -> train.Callback:
    return type("Mine", (train.Callback,), {name: lambda *args: None})()


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("on_epoch_end", ".  The hook is named on_epoch."),
        ("on_batch_end", ".  The hook is named on_step."),
        ("on_train_end", ".  The hook is named on_end."),
        ("on_steps", ".  The hook is named on_step."),
        ("before_updates", ".  The hook is named before_update."),
        (
            "on_train_begin",
            ", because there are no hooks at the start of steps or epochs.\n  The hooks are before_update, "
            "identity, on_end, on_epoch, on_restart, on_resume, on_step, save.",
        ),
    ],
)
def test_a_hook_that_would_never_be_called_is_refused(name: str, rest: str) -> None:
    assert raised(lambda: trainer_of(model_of(), callbacks=[callback_with(name)])) == (
        f"Trainer: Mine.{name} is never called{rest}"
    )


@pytest.mark.parametrize("name", ["on_epoch", "on_step", "on_stop", "on_click", "restore", "before_all"])
def test_methods_of_ones_own_are_fine(name: str) -> None:
    trainer_of(model_of(), callbacks=[callback_with(name)])


def test_numbers_of_a_validation_that_is_not_made_are_refused_before_training(tmp_path: Any) -> None:
    for follower, name in (
        (train.EarlyStopping(), "EarlyStopping monitors 'val_loss'"),
        (train.BestCheckpoint(tmp_path, "val_error"), "BestCheckpoint monitors 'val_error'"),
        (optim.schedules.Plateau(0.1, monitor="val_loss"), "Plateau monitors 'val_loss'"),
    ):
        given = {"callbacks": [follower]} if isinstance(follower, train.Callback) else {"schedule": follower}
        trainer = trainer_of(model_of(), metrics={"error": lambda p, t: abs(p - t).mean()}, **given)
        assert raised(lambda trainer=trainer: trainer.fit([(X, Y)])) == (
            f"{name}, but there is no validation.  Pass fit(…, validate=loader), or use monitor="
            f"{name.partition('val_')[2].rstrip(chr(39))!r}."
        )
        assert trainer.step == 0
        trainer.fit([(X, Y)], validate=[(X, Y)])


class Validates(train.Callback):
    def on_epoch(self, trainer: Any, logs: Any) -> None:
        logs["val_loss"] = trainer.evaluate([(X, Y)])["loss"]


def test_a_callback_of_ones_own_may_validate() -> None:
    trainer = trainer_of(model_of(), callbacks=[Validates(), train.EarlyStopping()])
    assert "val_loss" in trainer.fit([(X, Y)])[0]


def test_messages_of_what_fit_and_its_metrics_are_given(tmp_path: Any) -> None:
    trainer = trainer_of(model_of(), directory=tmp_path)
    assert raised(lambda: trainer.fit([(X, Y)], resume="runs/1")) == (  # type: ignore[arg-type]
        "fit: resume must be True or False, not 'runs/1'.\n"
        "  Pass the path of the checkpoints to the trainer: Trainer(…, directory=path).  "
        "fit(resume=True) reads the newest one."
    )
    assert raised(lambda: trainer.fit(X, Y)).startswith(
        "fit: a batch must be a pair (inputs, targets), but the loader contains arrays"
    )
    empty = "Trainer: epoch 1 has no batches.\n  The data are empty, or fewer than batch_size with drop_last=True."
    assert raised(lambda: trainer.fit(train.DataLoader((X, Y), len(X) + 1, drop_last=True))) == empty
    assert raised(lambda: trainer.fit([])) == empty
    assert raised(lambda: trainer.fit(iter([]))).endswith(
        "An iterator can be used for only one epoch.  Use a DataLoader over a sequence."
    )
    for wrong in ("high", None):
        bad = trainer_of(model_of(), metrics={"error": lambda p, t, wrong=wrong: wrong})
        assert (
            raised(lambda bad=bad: bad.fit([(X, Y)]))
            == f"Trainer: 'error' must be one number per batch, not {wrong!r}."
        )


def test_several_inputs_are_told_from_rows() -> None:
    trainer = trainer_of(model_of())
    assert raised(lambda: trainer.fit([((X, X), Y)])) == (
        "Trainer: the inputs of a batch must be one array, but there are 2 arrays.\n"
        "  For several inputs pass compute=lambda model, batch: loss(model(*batch[0]), "
        "batch[1])."
    )
    rows = tuple(X), tuple(Y)  # as zip(*samples) gives them
    assert trainer.fit([rows])[0]["loss"] == trainer_of(model_of()).fit([(X, Y)])[0]["loss"]
    for flag in ({"shuffle": 3}, {"drop_last": "yes"}):
        ((name, value),) = flag.items()
        assert raised(lambda flag=flag: train.DataLoader(X, 2, **flag)) == (
            f"DataLoader: {name} must be True or False, not {value!r}."
        )


def test_a_file_in_the_place_of_a_directory_is_refused_before_training(tmp_path: Any) -> None:
    path = tmp_path / "run"
    path.write_text("notes")
    for make in (lambda: trainer_of(model_of(), directory=path), lambda: train.BestCheckpoint(path)):
        assert raised(make) == f"{path} is a file, but checkpoints need a directory."
    assert path.read_text() == "notes"


def test_a_loss_that_is_not_finite_warns_once_at_the_line_of_fit() -> None:
    trainer = trainer_of(model_of())
    with np.errstate(all="ignore"), pytest.warns(UserWarning, match="the loss is") as caught:
        trainer.fit([(X, Y), (X * np.nan, Y), (X, Y)], epochs=2)
    trainer.fit([(X, Y)], epochs=3)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert str(caught[0].message) == (
        "the loss is nan at step 2, epoch 1, and the weights were updated from it.\n"
        "  Lower the learning rate, clip gradients with clip=1.0, or find the op with "
        "ad.detect_anomaly().\n"
        "  Pass Trainer(…, callbacks=[train.NonFiniteGuard()]) to stop before such an update."
    )


@pytest.mark.oracle
def test_an_optimiser_of_pytorch_is_refused():
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)])
    with pytest.raises(errors.InputError) as info:
        train.Trainer(nn.Linear(2, 1), nn.functional.mse_loss, optimizer)
    assert str(info.value) == (
        "Trainer: an optimiser of PyTorch cannot update parameters of adjoint.\n"
        "  Use ad.optim.Adam(model.parameters(), …)."
    )
