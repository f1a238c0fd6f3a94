"""The estimators: scikit-learn's own checks, and what users do with them."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_iris, make_regression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from adjoint import nn, optim
from adjoint.errors import ArgumentError
from adjoint.sklearn import Classifier, Regressor

X, y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)


@pytest.mark.parametrize("estimator", [Classifier(epochs=60), Regressor(epochs=60)], ids=["c", "r"])
def test_checks_of_scikit_learn_find_nothing(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, about checks that it skips
        found = check_estimator(estimator, on_skip=None, on_fail=None)
    assert [(f["check_name"], f["exception"]) for f in found if f["status"] == "failed"] == []
    assert sum(f["status"] == "passed" for f in found) > 50


def test_grid_search_over_a_pipeline():
    pipe = make_pipeline(StandardScaler(), Classifier(epochs=60, random_state=0))
    search = GridSearchCV(pipe, {"classifier__lr": [1e-5, 1e-2], "classifier__hidden": [(8,), (16, 8)]}, cv=3)
    search.fit(X, y)
    assert search.best_params_["classifier__lr"] == 1e-2
    assert search.best_score_ > 0.9


def test_a_module_a_function_and_other_options():
    net = nn.Sequential(nn.Linear(4, 3, rng=0))
    before = net[0].weight.numpy(copy=True)
    fitted = Classifier(net, optimizer=optim.SGD, lr=0.1, epochs=30, random_state=0).fit(X, y)
    assert np.array_equal(net[0].weight.numpy(), before)  # the module that was given is not trained
    assert fitted.score(X, y) > 0.8
    made = Classifier(lambda n, m: nn.Sequential(nn.Linear(n, 8, rng=0), nn.Tanh(), nn.Linear(8, m, rng=1)))
    assert made.set_params(epochs=60, random_state=0).fit(X, y).score(X, y) > 0.9
    assert clone(made).get_params()["epochs"] == 60


def test_labels_of_any_type_and_probabilities():
    names = np.array(["a", "b", "c"])[y]
    fitted = Classifier(epochs=40, random_state=0).fit(X, names)
    p = fitted.predict_proba(X)
    assert p.shape == (150, 3)
    assert np.allclose(p.sum(1), 1)
    assert set(fitted.predict(X)) <= set("abc")


def test_float32_stays_float32():
    fitted = Regressor(epochs=2, random_state=0).fit(X.astype("f"), y.astype("f"))
    assert fitted.predict(X.astype("f")).dtype == np.float32


def test_several_outputs():
    A, B = make_regression(80, 4, n_targets=3, random_state=0)
    B /= B.std(0)
    fitted = Regressor(epochs=200, random_state=0).fit(A, B)
    assert fitted.predict(A).shape == (80, 3)
    assert fitted.score(A, B) > 0.95


def test_weights_equal_repeated_samples():
    w = np.arange(150) % 3
    weighted = Classifier(epochs=10, random_state=0).fit(X, y, sample_weight=w)
    repeated = Classifier(epochs=10, batch_size=300, random_state=0).fit(X.repeat(w, 0), y.repeat(w))
    assert np.allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-9)
    with pytest.raises(ValueError, match=r"[Ss]ample[ _]weight"):
        Classifier().fit(X, y, sample_weight=np.zeros(150))


def test_early_stopping_keeps_the_best_weights():
    fitted = Classifier(
        epochs=500, early_stopping=True, patience=3, lr=0.05, validation_fraction=0.3, random_state=1
    )
    fitted.fit(X, y)
    losses = [h["val_loss"] for h in fitted.history_]
    assert fitted.n_iter_ == len(losses) < 500
    assert len(losses) - 1 - int(np.argmin(losses)) == 3


def test_warm_start_continues():
    warm = Classifier(epochs=5, warm_start=True, random_state=0).fit(X, y)
    first = warm.history_[-1]["loss"]
    warm.fit(X, y)
    assert warm.n_iter_ == 10
    assert warm.history_[-1]["loss"] < first
    cold = Classifier(epochs=5, random_state=0).fit(X, y).fit(X, y)
    assert cold.n_iter_ == 5


def test_partial_fit_needs_all_classes_once():
    some = y < 2
    part = Classifier(random_state=0).partial_fit(X[some], y[some], classes=[0, 1, 2])
    part.partial_fit(X, y)
    assert part.predict_proba(X).shape == (150, 3)
    with pytest.raises(
        ArgumentError, match=r"the label np.int64\(2\) is not one of the known classes, \[0, 1\]"
    ):
        Classifier(random_state=0).partial_fit(X[some], y[some]).partial_fit(X, y)


def test_pickled_estimators_train_on_alike():
    one = Classifier(epochs=3, warm_start=True, random_state=0).fit(X, y)
    two = pickle.loads(pickle.dumps(one))
    assert np.array_equal(one.predict_proba(X), two.predict_proba(X))
    assert np.array_equal(one.fit(X, y).predict_proba(X), two.fit(X, y).predict_proba(X))


def test_options_are_checked():
    with pytest.raises(ArgumentError, match=r"epochs must be a positive integer, but is 0\."):
        Classifier(epochs=0).fit(X, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 32}, "Classifier: hidden must be a tuple of widths such as (64,), but is 32."),
        (
            {"optimizer": "adam"},
            "Classifier: optimizer must be callable, such as optim.AdamW, but is 'adam'.",
        ),
        ({"module": "mlp"}, "Classifier: module must be callable, such as nn.Linear, but is 'mlp'."),
    ],
)
def test_mistakes_in_options_are_named(options, message):
    with pytest.raises(ArgumentError) as info:
        Classifier(**options).fit([[0.0], [1.0]], [0, 1])
    assert str(info.value) == message
