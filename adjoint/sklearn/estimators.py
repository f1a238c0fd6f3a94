"""``Classifier`` and ``Regressor``: neural networks with the interface of scikit-learn."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Self

import numpy as np

from adjoint import nn, optim, train
from adjoint.config import no_grad
from adjoint.core.docstrings import SharedDoc
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, MissingExtraError
from adjoint.nn import functional
from adjoint.nn.module import Module
from adjoint.train.callbacks import Callback
from adjoint.words import count

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError("adjoint.sklearn", "scikit-learn", "sklearn") from error

__all__ = ["Classifier", "Regressor"]

_FLOATS = (np.float64, np.float32)
_ROWS = 4096  # the number of rows per call of the network in a prediction


_estimator_doc = SharedDoc("""
    Parameters
    ----------
    X : array of shape (n_samples, n_features)
        The inputs.
    y : array of shape (n_samples,) or (n_samples, n_outputs)
        The targets.
    sample_weight : array of shape (n_samples,), optional
        The weight of each sample in the mean of the losses.
    hidden : tuple of int
        The widths of the hidden layers of the default network.
    optimizer : callable, optional
        ``optimizer(parameters, lr=lr)``; by default ``optim.Adam``.
    lr : float
        The learning rate.
    epochs : int
        The number of passes over the data.
    batch_size : int
        The number of samples in each step.
    early_stopping : bool
        Whether to hold out samples, stop when the loss on them no longer falls, and keep the best weights.
    validation_fraction : float
        The fraction of the samples that early stopping holds out.
    patience : int
        The number of epochs without improvement after which training stops.
    warm_start : bool
        Whether ``fit`` continues from the weights of the previous call.
    random_state : int, RandomState or None
        The seed of the initial weights and of the order of samples.
    verbose : bool
        Whether to show a progress bar, or print a line for each epoch where there is no terminal.

    Returns
    -------
    self
        The fitted estimator.
    """)


class _Estimator(BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """Base class of the classifier and the regressor: the module, the training loop and its options."""

    def __init__(
        self,
        module: Module | Callable[[int, int], Module] | None = None,
        *,
        hidden: tuple[int, ...] = (64,),
        loss: Callable[..., Tensor] | None = None,
        optimizer: Callable[..., Any] | None = None,
        lr: float = 1e-2,
        epochs: int = 200,
        batch_size: int = 200,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.loss = loss
        self.optimizer = optimizer
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    # Training ------------------------------------------------------------------------------------

    @_estimator_doc
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network."""
        again = self.warm_start and hasattr(self, "module_")
        X, target, weight = self._validated(X, y, sample_weight, first=not again)
        rng = check_random_state(self.random_state)
        if not again:
            self._start(X, rng)
        held_out = None
        if self.early_stopping:
            X, held, target, held_target, weight, held_weight = train_test_split(
                X, target, weight, test_size=self.validation_fraction, random_state=rng, **self._split(target)
            )
            held_out = (held, held_target, held_weight)
        self._run(X, target, weight, self.epochs, rng, held_out)
        return self

    def _train_once(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> None:
        """Train for one epoch from the current weights; the first call creates the network."""
        first = not hasattr(self, "module_")
        X, target, weight = self._validated(X, y, sample_weight, first=first, classes=classes)
        rng = check_random_state(self.random_state)
        if first:
            self._start(X, rng)
        self._run(X, target, weight, 1, rng, None)

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool, classes: Any = None
    ) -> tuple[Any, Any, Any]:
        """Check inputs, targets and weights; return them as arrays, without samples of weight 0.

        ``first`` is True if a new network is trained, False if training continues.  ``classes`` has the
        labels of all classes, or is None if ``y`` has them all.
        """
        self._check_options()
        X, y = validate_data(self, X, y, reset=first, dtype=_FLOATS, **self._target_checks)
        weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        target = self._encode(y, X.dtype, first, classes)
        kept = weight > 0
        return (X, target, weight) if kept.all() else (X[kept], target[kept], weight[kept])

    def _check_options(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ArgumentError(
                    f"{type(self).__name__}: {name} must be a positive integer, but is {value!r}."
                )
        if not isinstance(self.hidden, (tuple, list)):
            raise ArgumentError(
                f"{type(self).__name__}: hidden must be a tuple of widths such as (64,), but is "
                f"{self.hidden!r}."
            )
        for name, example in (
            ("module", "nn.Linear"),
            ("loss", "nn.functional.mse_loss"),
            ("optimizer", "optim.AdamW"),
        ):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ArgumentError(
                    f"{type(self).__name__}: {name} must be callable, such as {example}, but is {value!r}."
                )

    def _start(self, X: Any, rng: np.random.RandomState) -> None:
        """Create the network for inputs with the width and dtype of ``X``, and its optimiser.

        ``rng`` draws the initial weights.
        """
        outputs = self._outputs()
        if isinstance(self.module, Module):
            net = copy.deepcopy(self.module)
        elif self.module is not None:
            net = self.module(X.shape[1], outputs)
        else:
            net = self._default_module(X.shape[1], outputs, rng)
        self.module_ = net.astype(X.dtype)
        make = optim.Adam if self.optimizer is None else self.optimizer
        self.optimizer_ = make(list(self.module_.parameters()), lr=self.lr)
        self.history_: list[dict[str, float]] = []
        self.n_iter_ = 0

    def _default_module(self, inputs: int, outputs: int, rng: np.random.RandomState) -> Module:
        widths = [inputs, *self.hidden, outputs]
        layers: list[Module] = []
        for n, m in pairwise(widths):
            layers += [nn.Linear(n, m, rng=int(rng.randint(2**31))), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def _run(self, X: Any, target: Any, weight: Any, epochs: int, rng: Any, held_out: Any) -> None:
        """Train the network for a number of epochs, and append the metrics to ``history_``.

        ``held_out`` has the inputs, targets and weights for validation, or is None.  ``rng`` draws the order
        of the samples.
        """
        loader = train.DataLoader(
            (X, target, weight), min(self.batch_size, len(X)), shuffle=True, seed=int(rng.randint(2**31))
        )
        best = _Best(self.patience) if held_out is not None else None
        trainer = train.Trainer(
            self.module_,
            None,
            self.optimizer_,
            compute=self._weighted_loss,
            weight=_weight_of,
            callbacks=best or (),
            progress="auto" if self.verbose else False,
        )
        validate = None if held_out is None else train.DataLoader(held_out, max(self.batch_size, 1024))
        trainer.fit(loader, epochs, validate=validate)
        if best is not None:
            best.restore(self.module_)
        self.history_ += trainer.history
        self.n_iter_ += trainer.epoch

    def _weighted_loss(self, net: Module, batch: Any) -> Tensor:
        """Return the mean of the losses of a batch (inputs, targets, weights), weighted by its weights."""
        x, target, weight = batch
        loss = self._default_loss if self.loss is None else self.loss
        losses = loss(self._shaped(net(x), target), target, reduction="none")
        if losses.ndim > 1:  # several outputs per sample: take their mean
            losses = losses.reshape((len(losses), -1)).mean(1)
        return (losses * weight).sum() / weight.sum()

    def _raw(self, X: Any) -> Any:
        """Return the outputs of the network for ``X``, such as logits, as an array."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=_FLOATS)
        dtype = next(p.dtype for p in self.module_.parameters())
        pieces = [X[k : k + _ROWS] for k in range(0, len(X), _ROWS)]
        training = self.module_.training
        self.module_.eval()
        try:
            with no_grad():
                return np.concatenate([self.module_(p.astype(dtype, copy=False)).numpy() for p in pieces])
        finally:
            self.module_.train(training)

    # Overridden by the classifier and the regressor --------------------------------------------------

    _target_checks: Mapping[str, Any] = {}
    _default_loss: Callable[..., Tensor]

    @abstractmethod
    def _encode(self, y: Any, dtype: Any, first: bool, classes: Any) -> Any:
        """Return the targets in the form that the loss expects, such as class indices.

        ``dtype`` is that of the inputs.  ``first`` and ``classes`` are as for ``_validated``.
        """

    @abstractmethod
    def _outputs(self) -> int:
        """Return the number of outputs of the network."""

    def _split(self, target: Any) -> dict[str, Any]:
        """Return extra keyword arguments for ``train_test_split``, such as ``stratify`` for classes.

        That function of scikit-learn selects the samples for validation.
        """
        return {}

    def _shaped(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the outputs of the network in the shape that the loss expects."""
        return prediction


@_estimator_doc
class Classifier(ClassifierMixin, _Estimator):  # type: ignore[misc]  # scikit-learn has no types
    """Neural network that classifies, with the interface of scikit-learn.

    Parameters
    ----------
    module : Module or callable, optional
        The network, or a function that returns it, given the numbers of features and classes.  Its outputs
        are logits.  A module is copied before training.  The default has linear layers with ReLU in between.
    loss : callable, optional
        ``loss(logits, labels, reduction="none")``; by default ``nn.functional.cross_entropy``.

    Attributes
    ----------
    module_ : Module
        The trained network.
    classes_ : ndarray
        The labels.
    history_ : list of dict
        The metrics of each epoch.
    n_iter_ : int
        The number of epochs.

    >>> from sklearn.datasets import load_iris
    >>> from adjoint.sklearn import Classifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(Classifier(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """

    _default_loss = staticmethod(functional.cross_entropy)

    def _encode(self, y: Any, dtype: Any, first: bool, classes: Any) -> Any:
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y if classes is None else classes)
        labels = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        unknown = self.classes_[labels] != y
        if unknown.any():
            raise ArgumentError(
                f"Classifier: the label {y[unknown][0]!r} is not one of the known classes, "
                f"{self.classes_.tolist()}.\n"
                "  Pass all labels to the first partial_fit: partial_fit(X, y, classes=labels)."
            )
        return labels

    def _outputs(self) -> int:
        return len(self.classes_)

    def _split(self, target: Any) -> dict[str, Any]:
        return {"stratify": target}

    @_estimator_doc
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these samples, starting from the current weights.

        Parameters
        ----------
        y : array of shape (n_samples,)
            The labels.
        classes : array, optional
            All labels.  Required at the first call if ``y`` does not contain all of them.
        """
        self._train_once(X, y, sample_weight, classes)
        return self

    @_estimator_doc
    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The probabilities, in the order of ``classes_``.
        """
        return functional.softmax(self._raw(X), axis=-1).numpy()

    @_estimator_doc
    def predict(self, X: Any) -> Any:
        """Return the most probable class.

        Returns
        -------
        ndarray of shape (n_samples,)
            The labels.
        """
        raw = self._raw(X)
        return self.classes_[raw.argmax(1)]


@_estimator_doc
class Regressor(RegressorMixin, _Estimator):  # type: ignore[misc]  # scikit-learn has no types
    """Neural network that predicts numbers, with the interface of scikit-learn.

    Parameters
    ----------
    module : Module or callable, optional
        The network, or a function that returns it, given the numbers of features and outputs.  A module is
        copied before training.  The default has linear layers with ReLU in between.
    loss : callable, optional
        ``loss(prediction, target, reduction="none")``; by default ``nn.functional.mse_loss``.

    Attributes
    ----------
    module_ : Module
        The trained network.
    history_ : list of dict
        The metrics of each epoch.
    n_iter_ : int
        The number of epochs.

    >>> import numpy as np
    >>> from adjoint.sklearn import Regressor
    >>> X = np.linspace(-2, 2, 100)[:, None]
    >>> bool(Regressor(epochs=300, random_state=0).fit(X, np.sin(X[:, 0])).score(X, np.sin(X[:, 0])) > 0.99)
    True
    """

    _default_loss = staticmethod(functional.mse_loss)
    _target_checks: Mapping[str, Any] = {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _encode(self, y: Any, dtype: Any, first: bool, classes: Any) -> Any:
        if first:
            self._target_shape = y.shape[1:]
        elif y.shape[1:] != self._target_shape:
            raise ArgumentError(
                f"Regressor: the targets have shape {y.shape}, but the targets of the first call had shape "
                f"(n, {', '.join(map(str, self._target_shape))})."
            )
        return y.astype(dtype, copy=False)

    def _outputs(self) -> int:
        return math.prod(self._target_shape)

    def _shaped(self, prediction: Tensor, target: Any) -> Tensor:
        return prediction.reshape(target.shape)

    @_estimator_doc
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on these samples, starting from the current weights."""
        self._train_once(X, y, sample_weight)
        return self

    @_estimator_doc
    def predict(self, X: Any) -> Any:
        """Return the predictions.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            The predictions.
        """
        raw = self._raw(X)
        return raw.reshape((len(raw), *self._target_shape))


class _Best(Callback):
    """A callback that keeps the weights with the lowest validation loss, and stops if it no longer falls."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.lowest = math.inf
        self.weights: dict[str, Any] | None = None
        self.waited = 0

    def on_epoch(self, trainer: Any, logs: Mapping[str, float]) -> None:
        """Copy the weights if the validation loss is the lowest so far, or stop after ``patience`` epochs."""
        if logs["val_loss"] < self.lowest:
            self.lowest, self.waited = logs["val_loss"], 0
            self.weights = trainer.model.state_dict()
        else:
            self.waited += 1
        if self.waited >= self.patience:
            trainer.stop(f"val_loss has not improved for {count(self.waited, 'epoch')}")

    def restore(self, net: Module) -> None:
        """Copy the best weights into a network."""
        if self.weights is not None:
            net.load_state_dict(self.weights)


def _weight_of(batch: Any) -> float:
    return float(np.sum(batch[2]))
