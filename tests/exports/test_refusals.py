"""What cannot be exported is one error with all ops and lines, and nothing is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import ArgumentError, ExportError, FileError, InputError, MissingExtraError
from adjoint.exports import api, targets

X = np.linspace(-1.0, 1.0, 6).reshape(2, 3)


def refused(f: Any, *examples: Any, path: Path, **options: Any) -> list[str]:
    """The problems of a function, without the names of folders."""
    with pytest.raises(ExportError) as error:
        ad.export(f, *examples, path=path / "library", **options)
    assert not (path / "library").exists()
    first, *problems, last = str(error.value).splitlines()
    assert re.fullmatch(r"export: \S+ cannot be a library without Python, and nothing was written:", first)
    assert last == (
        "  Move these parts out of the function, or use ops with a native form; explain() of the compiled function "
        "lists them."
    )
    return [re.sub(r"\S*/test_refusals.py:\d+", "LINE", p.strip()) for p in problems]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    rng, other = ad.random.default_rng(0), np.random.default_rng(0)

    def f(x: Any) -> Any:
        values, vectors = ad.linalg.eigh(x @ x.T)
        noise = rng.integers(0, 9, size=2)
        return nn.functional.dropout(vectors @ noise, 0.5, rng=other) + values, None, "text"

    assert refused(f, X, path=tmp_path) == [
        "result: the function returns 'text', which is no array",
        "LINE: a random draw has no native form; uniform, normal and exponential noise and dropout have one",
        "LINE: the generator is numpy.Generator; use ad.random.default_rng(seed), whose bits need no Python",
        "LINE: eigh: eigh has no native form",
    ]


def test_writes_into_arguments(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        x.copy_(x * 2)
        return x

    assert refused(f, ad.tensor(X), path=tmp_path) == [
        "x: the function changes this argument; return the new value instead"
    ]


def test_numbers_in_python(tmp_path: Path) -> None:
    w = ad.tensor(X, requires_grad=True)
    optimizer = optim.NAdam([w], lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        ((w - x) ** 2).sum().backward()
        optimizer.step()

    assert refused(step, X, path=tmp_path) == ["LINE: NAdam computes its numbers in Python at each step"]


def test_parameters_that_are_updated_more_often_than_others(tmp_path: Path) -> None:
    """From equal counts the program is that of one call; after a call it is that of all later ones."""
    a, b = (ad.tensor(X, requires_grad=True) for _ in range(2))
    optimizer = optim.Adam([a, b], lr=0.1)

    def step(x: Any) -> Any:
        for loss in (lambda: (a * x).sum(), lambda: (a * b * x).sum()):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        optimizer.zero_grad()

    assert refused(step, X, path=tmp_path) == [
        "Adam: a call updates some parameters more often than others, although they have had as many updates until now; "
        "call the function once before the export"
    ]
    step(X)
    made = ad.export(step, X, path=tmp_path / "library")
    assert {"Adam.step", "Adam.step_2"} <= {*made.parts}


def test_dtypes(tmp_path: Path) -> None:
    w = ad.tensor(np.ones(3, complex))
    problems = refused(lambda z: (w, z), np.ones(2, np.complex64), path=tmp_path)
    assert problems[-4:] == [
        "z: complex64 has no native form", "result_0: complex128 has no native form",
        "result_1: complex64 has no native form", "w: complex128 has no native form",
    ]  # fmt: skip


def test_layers_without_a_generator(tmp_path: Path) -> None:
    assert refused(lambda x: nn.functional.dropout(x, 0.5), X, path=tmp_path) == [
        "LINE: it draws from a generator that the library cannot contain; pass rng=ad.random.default_rng(seed)"
    ]


def test_gradients_that_are_none_only_before_the_first_call(tmp_path: Path) -> None:
    w = ad.tensor(X, requires_grad=True)

    def step(x: Any) -> Any:
        (w * x).sum().backward()

    (problem,) = refused(step, X, path=tmp_path)
    assert problem.endswith(
        "it is None before the call and an array after it, so the next call is another program; call zero_grad() at "
        "the start of the function"
    )
    w.grad = ad.tensor(X)
    made = ad.export(step, X, path=tmp_path / "library")
    assert list(made.parts) == ["w", "w.grad"]


def test_variables_that_the_function_changes(tmp_path: Path) -> None:
    count = [0]

    def f(x: Any) -> Any:
        count[0] += 1
        return x * count[0]

    (problem,) = refused(f, X, path=tmp_path)
    assert problem.endswith("f: count[0]: the function both reads and changes it")
    assert count == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "rust"}, "export: target must be one of c, python, wasm, webgpu, but got 'rust'."),
        ({"name": "2x"}, "export: the name of a library must be an identifier of C, but is '2x'.\n  Pass name= with "),
        ({"name": "double"}, "export: the name of a library must be an identifier of C, but is 'double'."),
        ({"name": "a" * 101}, "export: the name of a library must be an identifier of C, but is 'aaa"),
        (
            {"name": "memcpy"},
            "export: the name of a library is 'memcpy', which C or WebAssembly uses for something else.\n"
            "  Pass another name=.",
        ),
        ({"triple": "sparc"}, "export: triple must be one of x86_64-linux, aarch64-linux, riscv64-linux, "),
        ({"level": "avx9"}, "export: x86_64-linux has the levels avx512, avx2, sse2, none, portable, but level is 'avx9'."),
        (
            {"level": "neon", "triple": "riscv64-linux"},
            "export: riscv64-linux has the levels none, portable, but level is 'neon'.",
        ),
        ({"target": "wasm", "triple": "x86_64-linux"}, "export: triple= is for target=\"c\", but target is 'wasm'."),
        ({"steps": 0}, "export: steps must be an integer from 1 to 10,000,000, but is 0."),
        ({"schedules": {"a": 1}}, "export: schedules must map optimisers to functions of the step, such as "),
    ],
)  # fmt: skip
def test_options(options: Any, message: str, tmp_path: Path) -> None:
    if "level" in options and targets.host() != "x86_64-linux":
        pytest.skip("the message names x86_64-linux")
    with pytest.raises(ArgumentError) as error:
        ad.export(ad.sin, X, path=tmp_path / "library", **options)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "library").exists()


def test_paths(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FileError, match="file is a file, but path= must be a folder to write into"):
        ad.export(ad.sin, X, path=file)
    with pytest.raises(FileError, match="file is a file, but path= must be a folder to write into"):
        ad.export(ad.sin, X, path=file / "inside" / "of it")
    (tmp_path / "library" / "f.h").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        ad.export(ad.sin, X, path=tmp_path / "library", name="f")
    assert [p.name for p in (tmp_path / "library").iterdir()] == ["f.h"]
    with pytest.raises(InputError, match=r"path must be a str or a pathlib\.Path, but got int"):
        ad.export(ad.sin, X, path=3)  # type: ignore[arg-type]


def test_without_a_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.shutil, "which", lambda name: None)
    found = targets.importlib.util.find_spec
    monkeypatch.setattr(
        targets.importlib.util, "find_spec", lambda name: None if name == "ziglang" else found(name)
    )
    with pytest.warns(UserWarning, match="export: no linker") as warned:
        made = ad.export(ad.sin, X, path=tmp_path, triple="aarch64-linux")
    assert str(warned[0].message).startswith(
        "export: no linker for aarch64-linux was found, so only the object file and the header of sin_function were "
        "written, and "
        "no static library and no shared library.\n  Install it with: pip install '.[export]'"
    )
    assert (
        sorted(p.name for p in tmp_path.iterdir())
        == ["sin_function.h", "sin_function.o"]
        == sorted(p.name for p in made.files.values())
    )
    for target, what in (("python", "a Python package"), ("wasm", "a WebAssembly module")):
        with pytest.raises(ExportError, match=f"export: {what} needs a linker that makes"):
            ad.export(ad.sin, X, path=tmp_path / "other", target=target)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", [n for n in targets.TARGETS if n != "wasm32"])
def test_other_systems(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    made = ad.export(lambda x: ad.softmax(ad.floor(x) @ x.T), X, path=tmp_path, triple=name, name="f")
    start = made.files["shared"].read_bytes()[:4]
    assert (
        start
        in {"linux": [b"\x7fELF"], "windows": [b"MZ\x90\0", b"MZx\0"], "macos": [b"\xcf\xfa\xed\xfe"]}[
            name.partition("-")[2]
        ]
    )
    assert made.files["static"].read_bytes()[:7] == b"!<arch>"


def test_without_llvmlite_the_message_names_the_extra_of_exports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(api, "has_llvm", lambda: False)
    with pytest.raises(
        MissingExtraError, match=r"^ad\.export needs llvmlite\.  Install it with: .*'\.\[export\]'"
    ):
        ad.export(lambda x: x, 1.0, path=tmp_path)
    assert not list(tmp_path.iterdir())
