"""The libraries of ``tools/ports/run``: requirements, tests, and the reasons of differences."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["COMMON", "LIBRARIES", "REASONS", "Library"]

COMMON = ["numpy==2.4.6", "scipy==1.17.1", "autograd==1.9.1", "pytest", "pytest-timeout", "setuptools"]
PANDAS = ["pandas>=2.2,<3", "matplotlib", "formulaic", "autograd-gamma"]


@dataclass
class Library:
    """A library.

    Parameters
    ----------
    what : str
        What it does.
    requires : list of str
        What is installed for its tests; the library itself is imported from its sources.
    tests : list of str
        The tests in its sources.
    sources : str
        The archive of the index that has the tests; empty if none has, so that a checkout must be named.
    options : list of str
        Options of pytest.
    environment : dict
        Environment variables.
    builds : bool
        Whether its extensions are compiled, which needs a C compiler.
    shims : list of str
        Plugins of pytest for the run with adjoint.
    """

    what: str
    requires: list[str]
    tests: list[str]
    sources: str = ""
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    builds: bool = False
    shims: list[str] = field(default_factory=list)


LIBRARIES = {
    "lifelines": Library(
        "survival analysis", [*PANDAS, "flaky", "dill", "statsmodels", "joblib", "psutil"],
        ["lifelines/tests"], "lifelines==0.30.3",
    ),
    # the other backends, and the configuration of the tests, need TensorFlow
    "pymanopt": Library(
        "optimisation on manifolds", ["pymanopt==2.2.1"], ["tests"], options=[
            "--noconftest", "--ignore=tests/backends", "--ignore=tests/test_examples.py",
            "--ignore=tests/test_problem.py",
        ],
    ),
    "ssm": Library(
        "state-space models", ["numba", "scikit-learn", "tqdm", "cython", "matplotlib", "seaborn"], ["tests"],
        options=["--deselect=tests/lds_benchmarks.py"], builds=True,
    ),
    "paragami": Library("parameters", [], ["paragami/tests"]),
    "viabel": Library("variational inference", ["paragami", "tqdm"], ["viabel/tests"]),
    "vittles": Library("sensitivity", ["paragami"], ["vittles/tests"]),
    # the other tests of geometry do not use derivatives
    "geomstats": Library(
        "geometry", ["joblib", "matplotlib", "pandas", "scikit-learn"],
        [
            f"tests/tests_geomstats/test_{part}"
            for part in ("backend", "numerics", "distributions", "information_geometry")
        ],
        options=["-m", "not slow"], environment={"GEOMSTATS_BACKEND": "autograd"},
    ),
    # the rest does not use derivatives, or takes hours
    "SurPyval": Library(
        "survival analysis", [*PANDAS, "numdifftools", "joblib", "pymongo"],
        ["surpyval/tests/univariate/parametric", "surpyval/tests/utils"], "surpyval==0.16.0",
    ),
    "reliability": Library(
        "reliability engineering", [*PANDAS, "mplcursors"], ["tests"], "reliability==0.9.0"
    ),
    "ceviche": Library(
        "photonics", ["matplotlib"],
        ["tests/test_primitives.py", "tests/test_gradients_fdfd.py", "tests/test_gradients_fdfd_complex.py"],
    ),
    "legume": Library("photonic crystals", ["matplotlib"], ["tests"], "legume-gme==1.0.3"),
    "autoptim": Library("optimisation", [], ["autoptim/tests"]),
    "kernel-gof": Library("tests of fit", ["matplotlib", "future"], ["kgof/test"]),
    "mici": Library(
        "Markov chains", ["packaging"], ["tests/test_autodiff.py", "tests/test_matrices.py"],
        environment={"PYTHONPATH": "src"},
    ),
    "momi2": Library(
        "population genetics",
        [
            "cached_property", "networkx", "pandas", "msprime", "seaborn", "pysam", "numdifftools", "cython",
            "wheel",
        ],
        ["test/test_autograd.py", "test/test_tmrca.py", "test/test_normalizing_constant.py"],
        environment={"PYTHONPATH": "test"}, builds=True,
    ),
    # The tests name warnings of the library in a setting, for which pytest would import it before any plugin.
    "PennyLane": Library(
        "quantum computing", ["pennylane==0.44.1", "pytest-mock", "pytest-rng", "flaky", "matplotlib"],
        [
            "tests/test_grad.py", "tests/test_autograd_grad.py", "tests/test_classical_gradients.py",
            "tests/numpy",
            *(
                f"tests/gradients/core/test_{part}.py"
                for part in ("vjp", "jvp", "fisher", "adjoint_diff", "metric_tensor", "adjoint_metric_tensor")
            ),
            *(
                f"tests/optimize/test_{part}.py"
                for part in (
                    "gradient_descent", "adagrad", "adam", "momentum", "nesterov_momentum", "rmsprop",
                    "optimize", "qng",
                )
            ),
        ],
        options=["-o", "filterwarnings=", "-m", "autograd or core"], shims=["adjoint_in_pennylane"],
    ),
    "qoc": Library("quantum control", ["h5py", "matplotlib", "filelock", "qutip"], ["tests"]),
    "machine_learning_refined": Library(
        "notebooks of a textbook", ["matplotlib", "pandas", "scikit-learn", "ipython"], ["notebooks"],
    ),
}  # fmt: skip

# What passes with autograd and fails with adjoint, by the name of the test, and why.
REASONS: list[tuple[str, str]] = [
    (
        r"reliability: .*test_Fit_Exponential_Power$",
        "The optimiser stops on a flat ridge.  With autograd it stops at the same place if the gradient is "
        "changed by one part in 5e15; the likelihood there is higher than at the expected values.",
    ),
    (
        r"PennyLane: .*test_numpy_to_arraybox",
        "The test calls `ArrayBox`, autograd's type of traced values.  It is the type of tensors here, which "
        "functions such as `ad.tensor` make.",
    ),
    (
        r"paragami: .*test_slogdet_3d",
        "The library expects its own `ValueError`; adjoint has derivatives of `slogdet` of several matrices.",
    ),
    (
        r"machine_learning_refined: .*A_3_Normalized",
        "`np.max(x, 0)` of a number raises an `AxisError`: a 0-d tensor has no axes.  NumPy takes axis 0 "
        "of a number in `max` and `sum`, and raises the same error in `mean`.  Leave the axis out.",
    ),
]
