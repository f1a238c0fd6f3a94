"""The state that all code of an interpreter shares: ``snapshot`` takes note of it, ``changes`` compares two.

Run as a script, it imports the packages that are named, then imports and uses adjoint, and prints what changed.
"""

from __future__ import annotations

import atexit
import copyreg
import decimal
import faulthandler
import gc
import importlib
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
import types
import warnings
from typing import Any

import numpy as np

# What a module of Python or of another package may gain while it is used: entries of its own caches.
CACHES = {"__warningregistry__", "_cache", "_cache_size"}


def _settings() -> dict[str, Any]:
    """Return the settings of the interpreter and of NumPy, each as a value that can be compared."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    umask = os.umask(0)
    os.umask(umask)
    return {
        "warnings.filters": list(map(str, warnings.filters)),
        "sys.path": list(sys.path),
        "sys.meta_path": list(map(repr, sys.meta_path)),
        "sys.path_hooks": list(map(repr, sys.path_hooks)),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "digits of integers": sys.get_int_max_str_digits(),
        "dlopen flags": sys.getdlopenflags(),
        "trace": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        "monitoring": [sys.monitoring.get_tool(i) for i in range(6)] if sys.version_info >= (3, 12) else None,
        "async hooks": (sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth()),
        "stack of threads": threading.stack_size(),
        **{f"signal {s}": signal.getsignal(s) for s in signal.valid_signals()},
        "signal mask, timer": (
            signal.pthread_sigmask(signal.SIG_BLOCK, []),
            signal.getitimer(signal.ITIMER_REAL),
        ),
        "wakeup descriptor": wakeup,
        **{f"os.environ[{k!r}]": v for k, v in os.environ.items()},
        "process": (os.getcwd(), umask, os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))),
        "limits": [resource.getrlimit(v) for k, v in vars(resource).items() if k.startswith("RLIMIT_")],
        "locale, zone": (
            locale.setlocale(locale.LC_ALL),
            time.tzname,
            tempfile.tempdir,
            socket.getdefaulttimeout(),
        ),
        "garbage collector": (
            gc.isenabled(),
            gc.get_threshold(),
            gc.get_debug(),
            gc.callbacks[:],
            gc.get_freeze_count(),
        ),
        "tools": (
            faulthandler.is_enabled(),
            tracemalloc.is_tracing(),
            multiprocessing.get_start_method(True),
        ),
        "exit handlers": atexit._ncallbacks(),  # type: ignore[attr-defined]
        "logging": (logging.root.level, logging.root.handlers[:], logging.root.manager.disable),
        "pickles": dict(copyreg.dispatch_table),
        "decimal": str(decimal.getcontext()),
        "random": random.getstate(),
        "NumPy's random": str(np.random.get_state()[1:3]),
        "NumPy's errors": (np.geterr(), np.geterrcall(), np.getbufsize()),
        "NumPy's printing": (str(np.get_printoptions()), repr(np.array([1e-9, 1.0])), str(np.float32(0.1))),
        "NumPy's memory": np._core.multiarray.get_handler_name(),
        "small numbers": 5e-324 * np.float64(1.0),  # 0 in some modes of the processor
    }


def _of_packages() -> dict[str, Any]:
    """Return the settings of other packages, if they are imported."""
    found: dict[str, Any] = {}
    if "threadpoolctl" in sys.modules:
        info = sys.modules["threadpoolctl"].threadpool_info()
        found |= {f"threads of {i['filepath']}": i["num_threads"] for i in info}
    if "sklearn" in sys.modules:
        found["scikit-learn"] = sys.modules["sklearn"].get_config()
    if "pandas" in sys.modules:
        found["pandas"] = str(sys.modules["pandas._config.config"]._global_config)
    if "matplotlib" in sys.modules:
        found["matplotlib"] = str(dict(sys.modules["matplotlib"].rcParams))
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found["PyTorch"] = (
            torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed(),
            torch.are_deterministic_algorithms_enabled(), torch.get_rng_state().tolist(),
        )  # fmt: skip
    return found


def _attributes() -> dict[tuple[str, str], Any]:
    """Return the attributes of all modules but adjoint's, and of the classes that they define."""
    found: dict[tuple[str, str], Any] = {}
    for name, module in list(sys.modules.items()):
        if (
            name.partition(".")[0] in ("adjoint", "__main__", "__mp_main__")
            or type(module) is not types.ModuleType
        ):
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if issubclass(type(value), type) and value.__module__ == name:
                found |= {(name, f"{key}.{k}"): v for k, v in list(vars(value).items())}
    return found


def snapshot() -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """Take note of the settings and of the attributes of modules and classes."""
    return {**_settings(), **_of_packages()}, _attributes()


def changes(before: Any, after: Any) -> list[str]:
    """Describe what differs; modules that were imported in between, also as attributes, are no difference."""
    found = []
    for key in before[0] | after[0]:
        old, new = before[0].get(key), after[0].get(key)
        if old != new and (key in before[0] or not key.startswith("threads of")):
            found.append(f"{key}: {old!r:.200} → {new!r:.200}")
    modules = {name for name, _ in before[1]}
    for (module, key), value in after[1].items():
        old = before[1].get((module, key), None)
        own = module not in modules or type(value) is types.ModuleType or key.split(".")[-1] in CACHES
        if not (own or old is value or (type(value) in (int, float, bool) and old == value)):
            found.append(f"{module}.{key}: {old!r:.80} → {value!r:.80}")
    found += [f"{m}.{k} is gone" for m, k in before[1] if (m, k) not in after[1] and m in sys.modules]
    return found


def use() -> None:
    """Use most parts of adjoint, also where they warn or raise."""
    import adjoint as ad
    from adjoint import nn, optim, train

    x = ad.tensor(np.linspace(0.1, 1.0, 12).reshape(3, 4), requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ad.log(x * 0)
        ad.numpy.exp(np.array([1e4]))
    assert len(caught) == 2
    for workers in (1, 2):
        (ad.tanh(x @ x.T) * ad.exp(x).sum()).sum().backward(workers=workers)
    with ad.no_grad(), np.errstate(all="raise"):
        x += 1e-3
    try:
        with ad.detect_anomaly():
            ad.sqrt(x * 0).sum().backward()
    except ad.errors.AnomalyError:
        pass

    def f(w):
        return (ad.softmax(w @ w.T) * ad.sin(w).mean()).sum()

    for backend in ("native", "replay"):
        compiled = ad.compile(ad.value_and_grad(f), backend=backend)
        for k in range(3):
            compiled(np.full((3, 4), 0.1 * k))
    ad.hessian(f)(x.numpy())
    ad.vmap(ad.grad(lambda v: (v * v).sum()))(x.numpy())
    ad.jvp(f, (x.detach(),), (x.detach(),))
    ad.random.default_rng(0).normal(3)
    np.poly1d(x[0])(0.5)
    str(ad.inspect.explain(lambda: f(x)))
    ad.scipy.optimize.minimize(lambda w: ((w - 1) ** 2).sum(), np.zeros(3))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
    data = np.ones((8, 4), np.float32), np.zeros((8, 1), np.float32)
    for native in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            trainer = train.Trainer(
                model,
                nn.functional.mse_loss,
                optim.Adam(model.parameters()),
                directory=directory,
                compile=native,
                progress=False,
            )
            trainer.fit(train.DataLoader(data, batch_size=4), epochs=1)


def use_others() -> None:
    """Use the packages that are imported, with tensors where they take them."""
    import adjoint as ad

    x = ad.tensor(np.arange(6.0).reshape(3, 2), requires_grad=True)
    if "sklearn" in sys.modules:
        from sklearn.linear_model import Ridge
        from sklearn.model_selection import GridSearchCV, cross_val_score

        from adjoint.sklearn import Regressor

        inputs, targets = np.random.default_rng(0).normal(size=(24, 2)), np.arange(24.0)
        for model in (Ridge(), Regressor(epochs=2)):
            assert cross_val_score(model, inputs, targets, cv=2).shape == (2,)
        assert GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=2).fit(inputs, targets).best_params_
    if "pandas" in sys.modules:
        frame = sys.modules["pandas"].DataFrame(x.numpy(), columns=["a", "b"])
        assert ad.tensor(frame["a"].to_numpy()).tolist() == [0.0, 2.0, 4.0]
    if "matplotlib" in sys.modules:
        figure = sys.modules["matplotlib"].figure.Figure()
        figure.subplots().plot(x.numpy())
        figure.canvas.draw()
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        w = torch.ones(2, dtype=torch.float64, requires_grad=True)
        (torch.from_numpy(x.numpy(copy=True)) @ w).sum().backward()
        assert w.grad.tolist() == (x.T @ np.ones(3)).tolist()


if __name__ == "__main__":
    for package in sys.argv[1:]:
        importlib.import_module(package)
    tempfile.TemporaryDirectory().cleanup()  # Python remembers the directory for temporary files
    start = snapshot()
    importlib.import_module("adjoint")
    found = [f"import: {c}" for c in changes(start, snapshot())]
    use()
    found += [f"use: {c}" for c in changes(start, snapshot())]
    use_others()
    print(*found, sep="\n")
