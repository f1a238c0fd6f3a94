"""Functions for WebGPU run in Chromium, on a GPU or on the CPU (SwiftShader), and are compared with Python."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_models import MODELS, distance, train
from random_programs import arrays, program

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import ExportError
from adjoint.optim import schedules

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
# Run calls of a state, and return what each gives: results, the text of an error, or the bytes of the state.
RUN = """async ([text, calls, saved]) => {
  const plain = (x) => typeof x === "bigint" ? String(x) : x?.length === undefined ? x : Array.from(x, plain);
  window.module = await import(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
  const state = await module.create(), found = [], given = {};
  if (saved) await state.load(Uint8Array.from(saved));
  for (const call of calls) {
    const kind = (name) => ({ Float32Array, Float64Array, Uint8Array, Int8Array, Uint16Array, Int16Array, Uint32Array,
      Int32Array, BigInt64Array, BigUint64Array })[module.inputs[name]?.array ?? "Float32Array"];
    const values = Object.entries(call).map(([name, v]) => [name, v instanceof Array
      ? kind(name).from(v.flat(Infinity), kind(name).name.startsWith("Big") ? BigInt : Number) : v]);
    try {
      const results = await state.run(Object.fromEntries(values));
      found.push(Object.fromEntries(Object.entries(results).map(([k, v]) => [k, plain(v)])));
    } catch (error) { found.push(error.message); }
  }
  const bytes = Array.from(await state.save());
  state.destroy();
  return [found, bytes];
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """Return a page of a browser with WebGPU."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        found = browser.new_page()
        found.goto(Path(__file__).parent.as_uri())
        if not found.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())"):
            pytest.skip("this Chromium has no WebGPU")
        yield found
        browser.close()


def run(page: Any, library: Any, calls: Sequence[Any], saved: Any = None) -> tuple[list[Any], bytes]:
    """Run calls in the browser; set the Python objects to the state after them."""
    text = library.files["module"].read_text(encoding="utf-8")
    listed = [{k: np.asarray(v).tolist() for k, v in call.items()} for call in calls]
    found, data = page.evaluate(RUN, [text, listed, None if saved is None else list(saved)])
    path = library.files["module"].with_suffix(".state")
    path.write_bytes(bytes(data))
    library.load(path)
    return found, bytes(data)


export = functools.partial(ad.export, target="webgpu")


@pytest.mark.browser
@pytest.mark.parametrize(
    "name",
    [
        "mlp", "lenet", "lstm",
        *(pytest.param(n, marks=pytest.mark.soak) for n in ("resnet", "transformer", "gru", "embedding")),
    ],
)  # fmt: skip
def test_models_train_as_in_python(page: Any, tmp_path: Path, name: str) -> None:
    """After 20 steps, parameters differ from those of replay as much as those of native code do."""
    kind = "SGD" if name == "transformer" else "Adam"  # the bias of keys has a gradient of rounding errors
    wanted, _ = train(name, kind, functools.partial(ad.compile, backend="replay"), 20)
    native, _ = train(name, kind, functools.partial(ad.compile, backend="native"), 20)
    step, given, params = MODELS[name](kind)
    library = export(step, *given, path=tmp_path)
    call = dict(zip(library.arguments, (t.numpy() for t in given), strict=True))
    found, _ = run(page, library, [call] * 20)
    (loss,) = found[-1].values()
    arrays = [np.array(p.detach().numpy()) for p in params]
    assert distance([*arrays, np.float32(loss)], wanted) <= 10 * distance(native, wanted) + 20 * 2e-7


@pytest.mark.browser
def test_a_state_goes_to_python_and_back(page: Any, tmp_path: Path) -> None:
    """Schedules, counters and hyper-parameters are part of it; a damaged one is refused."""
    w = ad.tensor(np.ones(3, "f4"), requires_grad=True)
    opt = optim.Adam([w], lr=0.1)

    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = ((w * x) ** 2).sum()
        loss.backward()
        opt.step()
        return loss

    rates = schedules.cosine(0.1, total=6)
    library = export(step, np.ones(3, "f4"), path=tmp_path, schedules={opt: rates})
    x = np.array([1, 2, 3], "f4")
    found, saved = run(page, library, [{"x": x}] * 3)
    assert opt.step_count == 3 and opt.lr == pytest.approx(rates(2))
    opt.lr = rates(3)
    wanted = step(ad.tensor(x)).item()
    after = w.detach().numpy().copy()
    (more,), _ = run(page, library, [{"x": x}], saved)
    assert more["result"] == pytest.approx(wanted, rel=1e-5) and more["result"] < found[0]["result"]
    np.testing.assert_allclose(w.detach().numpy(), after, rtol=1e-5)
    assert opt.step_count == 4
    damaged = bytes([*saved[:-1], saved[-1] ^ 1])
    with pytest.raises(Exception, match="the saved state is damaged"):
        run(page, library, [], damaged)
    with pytest.raises(Exception, match="not a saved state of step"):
        run(page, library, [], saved[:-1])


@pytest.mark.browser
def test_dtypes_numbers_and_empty_arrays(page: Any, tmp_path: Path) -> None:
    count = ad.tensor(np.zeros(2, np.int64))
    seen = ad.tensor(np.zeros(3, bool))

    def f(x: Any, n: Any, b: Any, u: Any, r: float) -> Any:
        with ad.no_grad():
            count.copy_(count + n.sum())
            seen.copy_(seen | b)
        return {
            "a": x * r, "n": n * 3_000_000_000, "b": ~b, "u": u + 1, "empty": x[:0], "r": r / 3, "v": x.var(0),
            "order": ad.argsort(x), "old": count, "constant": ad.arange(3),
        }  # fmt: skip

    x = np.array([2.5, -1.0, 0.5], "f4")
    given = x, np.array([7, -9], "i8"), np.array([True, False, False]), np.array([255, 3], "u1")
    wanted = [{k: np.asarray(v) for k, v in f(*map(ad.tensor, given), r).items()} for r in (0.5, 3.0)]
    with ad.no_grad():
        count.copy_(np.zeros(2, np.int64))
        seen.copy_(np.zeros(3, bool))
    library = export(f, *given, 0.25, path=tmp_path)
    calls = [dict(zip(library.arguments, (*given, [r]), strict=True)) for r in (0.5, 3.0)]
    found, _ = run(page, library, calls)
    for a, b in zip(found, wanted, strict=True):
        assert set(a) == set(b)
        for k in b:
            np.testing.assert_allclose(np.asarray(a[k], b[k].dtype), b[k], rtol=1e-6, err_msg=k)
    assert count.tolist() == [-4, -4] and seen.tolist() == [True, False, False]


@pytest.mark.browser
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(k, marks=pytest.mark.soak) for k in range(3, 60))]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_programs(page: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random_programs.number", lambda x: x if x.dtype.kind == "f" else x.astype("f4"))
    rng = np.random.default_rng(seed)
    given = [np.nan_to_num(a.astype("f4") if a.dtype == np.float64 else a) for a in arrays(rng, 4)]
    drawn = program(rng, 10)

    def f(a: Any, b: Any, c: Any, d: Any) -> Any:
        return [v * 1 for v in drawn(a, b, c, d)]

    library = export(f, *given, path=tmp_path)
    wanted = ad.compile(f, backend="replay")(*map(ad.tensor, given))
    for found in run(page, library, [dict(zip(library.arguments, given, strict=True))] * 2)[0]:
        for x, y in zip(found.values(), wanted, strict=True):
            a, b = np.ravel(np.asarray(x, float)), np.ravel(y.detach().numpy().astype(float))
            size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2 * size)


@pytest.mark.browser
def test_errors_change_nothing(page: Any, tmp_path: Path) -> None:
    table = ad.tensor(np.zeros((4, 2), "f4"))

    def add(i: Any) -> Any:
        with ad.no_grad():
            table.copy_(table + 1)
        return table[i].sum()

    library = export(add, np.array([0, 3]), path=tmp_path)
    calls: list[Any] = [{"i": [0, 3]}, {"i": [0, 4]}, {"i": [1]}, {"j": [1, 2]}, {"i": [-4, 1]}]
    found, _ = run(page, library, calls)
    assert found[0] == {"result": 4.0} and found[4] == {"result": 8.0} and table.tolist() == [[2, 2]] * 4
    assert found[1].startswith("add: ") and "out of range" in found[1]
    assert "i must have 2 elements (2), but has 1" in found[2] and "has no argument j" in found[3]


def test_what_has_no_form_is_refused(tmp_path: Path) -> None:
    def wide(x: Any) -> Any:
        return x * 2

    noise = ad.random.default_rng(0)
    for f, x, text in (
        (wide, np.ones(2), "reads an input in float64, but webgpu has no float64"),
        (lambda x: x * noise.normal(size=2, dtype=np.float32), np.ones(2, "f4"), "draws none; pass them"),
        (lambda x: ad.linalg.svd(x), np.ones((2, 2), "f4"), "svd has no native form"),
    ):
        with pytest.raises(ExportError, match=text):
            export(f, x, path=tmp_path / "none", name="f")
    assert not (tmp_path / "none").exists()


def test_files(tmp_path: Path) -> None:
    """The texts of kernels do not grow with the number of layers, and two exports are the same."""
    sizes = []
    for depth in (1, 3):
        net = nn.Sequential(*(nn.Linear(4, 4, rng=k) for k in range(depth + 2)))
        files = [
            export(
                lambda x, net=net: net(x).sum(), np.ones((2, 4), "f4"), path=tmp_path / str(k), name="f"
            ).files
            for k in range(2)
        ]
        texts = [f["module"].read_text() for f in files]
        assert sorted(f.name for f in files[0].values()) == ["f.d.mts", "f.mjs"] and texts[0] == texts[1]
        sizes.append(texts[0].count("@compute"))
    assert sizes[0] == sizes[1]
    types = files[0]["types"].read_text()
    assert (
        "run(given: Inputs): Promise<Outputs>;" in types and "(device?: GPUDevice): Promise<State>" in types
    )
