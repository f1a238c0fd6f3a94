"""Windows over several ranks, which are threads here: the gradient of all micro-batches, in one order."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adjoint as ad
from adjoint import distributed, nn, optim
from adjoint.accumulate import ranks
from adjoint.distributed import Group
from adjoint.errors import AccumulationError, ArgumentError, InputError, NonFiniteError, RankError

EARLY = pytest.mark.parametrize("early", [False, True], ids=["at the end", "during backward"])


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make several buckets of a small model, which are sent during backward."""
    monkeypatch.setattr(ranks, "FIRST", 64)
    monkeypatch.setattr(ranks, "LIMIT", 128)


class Net(nn.Module):
    """A net with a table of sparse gradients, a part that few rows use, and one that none uses."""

    def __init__(self, dtype: Any) -> None:
        self.table = nn.Embedding(11, 4, sparse=True, rng=0)
        self.inner = nn.Linear(4, 6, rng=1)
        self.rare = nn.Linear(6, 6, rng=2)
        self.never = nn.Linear(3, 3, rng=3)
        self.last = nn.Linear(6, 1, rng=4)
        self.astype(dtype)

    def forward(self, x: Any) -> Any:
        y = self.inner(self.table(x).mean(1)).tanh()
        return self.last(self.rare(y) if (x[:, 0] == 0).any() else y)


def data(rows: int, dtype: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    x = rng.integers(1, 11, (rows, 3))
    x[:1, 0] = 0  # the rare part is used by the first piece alone
    return x, rng.standard_normal((rows, 1)).astype(dtype)


def trained(
    group: Group | None, rows: list[int], pieces: int, dtype: Any, *, early: bool = False, **options: Any
) -> tuple[bytes, Any]:
    """Make an update from each batch, of which this rank has some pieces; return the weights and the model."""
    model = Net(dtype)
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    acc = ad.GradientAccumulator(model, accumulation_steps=pieces // size, group=group, **options)
    for n in rows:
        x, y = data(n, dtype)
        for j in range(pieces * rank // size, pieces * (rank + 1) // size):
            part = slice(n * j // pieces, n * (j + 1) // pieces)
            weight = part.stop - part.start
            if group is None and not weight:
                continue
            with acc.micro_batch(weight=weight) as block:
                if weight:
                    loss = nn.functional.mse_loss(model(x[part]), y[part])
                    block.backward(loss) if early else loss.backward()
        if group is None:
            acc.flush()
        assert acc.apply(optimizer)
    weights = b"".join(p.numpy().tobytes() for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    return weights, model


@EARLY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.usefixtures("small_buckets")
def test_any_number_of_ranks_gives_the_same_bits(dtype: Any, early: bool) -> None:
    # pieces of different sizes, some empty; and the first window alone
    for windows in ([13], [13, 7, 3, 29]):
        work = partial(trained, rows=windows, pieces=8, dtype=dtype, early=early, max_grad_norm=0.7)
        ((alone, _),) = distributed.simulate(1, work)
        for size in (2, 4, 8):
            assert [weights == alone for weights, _ in distributed.simulate(size, work)] == [True] * size


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 3))
def test_the_window_is_that_of_one_process(rows: list[int], size: int, each: int) -> None:
    _, alone = trained(None, rows, size * each, np.float64, max_grad_norm=0.7)
    expected = {name: p.numpy() for name, p in alone.named_parameters()}
    for _, model in distributed.simulate(
        size, lambda g: trained(g, rows, size * each, np.float64, max_grad_norm=0.7)
    ):
        for name, p in model.named_parameters():
            np.testing.assert_allclose(p.numpy(), expected[name], rtol=1e-12, atol=1e-14, err_msg=name)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**31))
def test_the_gradient_has_the_error_of_a_pairwise_sum(size: int, each: int, seed: int) -> None:
    """|found - exact| <= (2 + depth of the tree)·u·Σ|w g| / Σ w, elementwise; products are exact here."""
    rng = np.random.default_rng(seed)
    g = rng.standard_normal((size * each, 5)).astype(np.float32) * 10.0 ** rng.integers(
        -6, 6, (size * each, 5)
    )
    g = g.astype(np.float32).astype(np.float64)
    weights = rng.integers(1, 1000, size * each).astype(float)

    def work(group: Group) -> Any:
        w = ad.tensor(np.zeros(5), requires_grad=True)
        acc = ad.GradientAccumulator({"w": w}, accumulation_steps=each, group=group)
        for j in range(each * group.rank, each * (group.rank + 1)):
            acc.step({"w": g[j]}, weight=weights[j])
        return acc.gradients()["w"]

    products = g * weights[:, None]
    exact = np.array([math.fsum(column) for column in products.T]) / weights.sum()
    depth = math.ceil(math.log2(each)) + math.ceil(math.log2(size)) + 1
    bound = (2 + depth) * 2.0**-53 * np.abs(products).sum(0) / weights.sum()
    for found in distributed.simulate(size, work):
        assert (np.abs(found - exact) <= bound).all()


def test_parameters_that_no_rank_used_have_no_gradient_and_rows_stay_rows() -> None:
    def work(group: Group) -> None:
        model = Net(np.float32)
        acc = ad.GradientAccumulator(model, accumulation_steps=1, group=group)
        x, y = data(6, np.float32)
        part = slice(3 * group.rank, 3 * group.rank + 3)
        with acc.micro_batch(weight=3) as block:
            block.backward(nn.functional.mse_loss(model(x[part]), y[part]))
        found = acc.gradients()
        assert "never.weight" not in found and "rare.weight" in found
        assert sorted(found["table.weight"].rows) == sorted(set(x.ravel()))
        acc.reset()
        assert acc.stats().total_micro_batches == 2

    distributed.simulate(2, work)


@pytest.mark.usefixtures("small_buckets")
def test_the_memory_of_the_sums_is_reused() -> None:
    def work(group: Group) -> None:
        w = ad.tensor(np.ones((5, 5)), requires_grad=True)
        optimizer = optim.SGD([w], lr=0.1)
        acc = ad.GradientAccumulator([w], accumulation_steps=2, group=group)
        seen = []
        for _ in range(4):
            for _ in range(2):
                with acc.micro_batch(weight=1) as block:
                    block.backward((w * w).sum())
            acc.apply(optimizer, before=lambda: seen.append(w.grad.numpy().__array_interface__["data"][0]))
        assert len(set(seen[1:])) <= 2  # the two arrays of the counter

    distributed.simulate(2, work)


def test_gradients_that_somebody_keeps_are_not_overwritten() -> None:
    def work(group: Group) -> list[float]:
        w = ad.tensor(np.zeros(3), requires_grad=True)
        acc = ad.GradientAccumulator([w], accumulation_steps=1, group=group)
        kept = []
        for step in range(3):
            with acc.micro_batch():
                (w * (step + group.rank)).sum().backward()
            acc.apply(optim.SGD([w], lr=0.0), before=lambda: kept.append(w.grad))
        return [float(g[0]) for g in kept]

    assert distributed.simulate(2, work) == [[0.5, 1.5, 2.5]] * 2


@EARLY
@pytest.mark.usefixtures("small_buckets")
def test_an_error_in_a_block_is_raised_on_all_ranks_and_the_group_goes_on(early: bool) -> None:
    def work(group: Group) -> Any:
        model = nn.Sequential(nn.Linear(3, 20, rng=0), nn.Tanh(), nn.Linear(20, 1, rng=1))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        acc = ad.GradientAccumulator(model, accumulation_steps=2, group=group)
        heard: list[str] = []
        causes: list[str] = []

        def stumble(grad: Any) -> None:
            raise FloatingPointError("in the middle of backward")

        step = 0
        while step < 4:
            hook = (
                model[0].bias.register_hook(stumble) if group.rank == 1 and step == 2 and not heard else None
            )
            try:
                for _ in range(2):
                    with acc.micro_batch(weight=1) as block:
                        loss = model(np.ones((2, 3), np.float32)).mean()
                        block.backward(loss) if early else loss.backward()
                acc.apply(optimizer)
                step += 1
            except RankError as error:
                heard.append(str(error))
                causes.append(type(error.__cause__).__name__)
            if hook is not None:
                hook.remove()
        assert acc.stats().dropped_windows == 1
        assert causes == ["FloatingPointError" if group.rank == 1 else "NoneType"]
        return heard, b"".join(p.numpy().tobytes() for p in model.parameters())

    found = distributed.simulate(3, work)
    for heard, weights in found:
        (text,) = heard
        assert text.startswith("rank 1 raised FloatingPointError: in the middle of backward\nTraceback")
        assert "in stumble" in text and text.endswith(
            "No rank has updated its parameters from this accumulation window."
        )
        assert weights == found[0][1]


@pytest.mark.parametrize("policy", ["raise", "skip", "skip_window", "allow"])
@EARLY
@pytest.mark.usefixtures("small_buckets")
def test_ranks_agree_on_what_is_not_finite(policy: str, early: bool) -> None:
    def work(group: Group) -> Any:
        w = ad.tensor(np.ones(40), requires_grad=True)
        optimizer = optim.SGD([w], lr=1.0)
        acc = ad.GradientAccumulator([w], accumulation_steps=1, group=group, nonfinite=policy)
        made = []
        for bad in (False, True):
            factor = np.nan if bad and group.rank == 1 else 1.0
            try:
                with acc.micro_batch(weight=1) as block:
                    loss = (w * factor).sum()
                    block.backward(loss) if early else loss.backward()
                made.append(acc.apply(optimizer))
            except (RankError, NonFiniteError) as error:
                made.append(type(error).__name__)
                acc.drop()
        return made, float(w[0].detach()), acc.stats().skipped_micro_batches

    found = distributed.simulate(2, work)
    assert found[0][0] == found[1][0]
    made = found[0][0][1]
    assert made == {"raise": "RankError", "skip": True, "skip_window": False, "allow": True}[policy]
    assert [skipped for *_, skipped in found] == [int(policy.startswith("skip"))] * 2
    assert found[0][1] == {"skip": -1.0}.get(policy, 0.0) or policy == "allow"


def random_windows(group: Group, seed: int) -> Any:
    """Make updates with random options from ragged pieces, of which few are not finite; return all that is left."""
    rng = np.random.default_rng(seed)
    dtype, pieces = rng.choice([np.float32, np.float64]), int(rng.choice([4, 8]))
    model, scaler = Net(dtype), ad.GradScaler(init_scale=256.0) if rng.random() < 0.5 else None
    optimizer = optim.Adam(model.parameters(), lr=0.02, shard=group if rng.random() < 0.5 else None)
    acc = ad.GradientAccumulator(
        model, group=group, accumulation_steps=pieces // group.size,
        nonfinite=str(rng.choice(["raise", "skip", "skip_window", "allow"])),
        max_grad_norm=[None, 0.3, 50.0][rng.integers(3)], reduction=str(rng.choice(["mean", "sum"])),
    )  # fmt: skip
    made: list[Any] = []
    for n in rng.integers(1, 20, 6):
        x, y = data(int(n), dtype)
        bad, how = rng.integers(4 * pieces), rng.integers(0, 3, pieces)
        try:
            for j in range(pieces * group.rank // group.size, pieces * (group.rank + 1) // group.size):
                part = slice(n * j // pieces, n * (j + 1) // pieces)
                with acc.micro_batch(weight=part.stop - part.start) as block:
                    if part.stop == part.start:
                        continue
                    loss = nn.functional.mse_loss(model(x[part]), y[part]) * dtype("inf" if bad == j else "1")
                    loss = loss if scaler is None else scaler.scale(loss)
                    if how[j] == 2:
                        (loss * 0.5).backward(retain_graph=True)
                        loss = loss * 0.5
                    block.backward(loss) if how[j] == 1 else loss.backward()
            made.append(acc.apply(optimizer, scaler=scaler))
        except (NonFiniteError, RankError) as error:
            made.append(type(error).__name__)
            acc.drop()
    stats, scale = acc.stats(), scaler and scaler.get_scale()
    counts = stats.total_updates, stats.skipped_windows, stats.skipped_micro_batches, stats.clipped_windows
    return made, counts, scale, b"".join(p.numpy().tobytes() for p in model.parameters())


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("seed", range(12))
def test_random_windows_are_the_same_on_any_number_of_ranks(seed: int) -> None:
    found = [each for n in (1, 2, 4) for each in distributed.simulate(n, partial(random_windows, seed=seed))]
    assert found == [found[0]] * 7


def test_ranks_agree_on_a_scale() -> None:
    def work(group: Group) -> Any:
        w = ad.tensor(np.ones(3, np.float32), requires_grad=True)
        scaler = ad.GradScaler(init_scale=1024.0)
        acc = ad.GradientAccumulator([w], accumulation_steps=1, group=group, nonfinite="skip_window")
        made = []
        for step in range(3):
            with acc.micro_batch(weight=1):
                factor = np.float32("inf") if step == 1 and group.rank == 1 else np.float32(1)
                scaler.scale((w * factor).sum()).backward()
            made.append(acc.apply(optim.SGD([w], lr=0.25), scaler=scaler))
        return made, scaler.get_scale(), w.detach().tolist()

    assert distributed.simulate(2, work) == [([True, False, True], 512.0, [0.5] * 3)] * 2


def test_a_rank_that_drifts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "CHECK_EVERY", 4)

    def work(group: Group) -> None:
        w = ad.tensor(np.ones(3), requires_grad=True)
        acc = ad.GradientAccumulator({"w": w}, accumulation_steps=1, group=group)
        for step in range(10):
            with acc.micro_batch():
                w.sum().backward()
            acc.apply(optim.SGD([w], lr=0.1))
            if step == 5 and group.rank == 1:
                with ad.no_grad():
                    w.copy_(w * 1.0000001)

    with pytest.raises(
        RankError, match=r"the parameters of rank 1 differ from those of rank 0: w \(window 9\)"
    ):
        distributed.simulate(2, work)


def test_the_first_values_are_those_of_rank_0_and_shapes_must_agree() -> None:
    def work(group: Group) -> list[float]:
        w = ad.tensor(np.full(2, float(group.rank)), requires_grad=True)
        ad.GradientAccumulator([w], group=group)
        return w.detach().tolist()

    assert distributed.simulate(2, work) == [[0.0, 0.0]] * 2
    with pytest.raises(InputError, match=r"w: '\(2,\) float64' on rank 0, '\(3,\) float64' on rank 1"):
        distributed.simulate(
            2,
            lambda g: ad.GradientAccumulator(
                {"w": ad.tensor(np.ones(2 + g.rank), requires_grad=True)}, group=g
            ),
        )
    with pytest.raises(InputError, match=r"config: .*accumulation_steps=1"):
        distributed.simulate(
            2,
            lambda g: ad.GradientAccumulator(
                {"w": ad.tensor(np.ones(2), requires_grad=True)}, group=g, accumulation_steps=1 + g.rank
            ),
        )


def test_a_short_window_is_closed_on_all_ranks() -> None:
    def work(group: Group) -> Any:
        w = ad.tensor(np.zeros(2), requires_grad=True)
        acc = ad.GradientAccumulator([w], accumulation_steps=3, group=group)
        assert acc.flush() is False
        if group.rank == 1:
            with acc.micro_batch(weight=2):
                (3 * w).sum().backward()
        assert acc.flush() is True
        assert acc.apply(optim.SGD([w], lr=1.0))
        return w.detach().tolist()

    assert distributed.simulate(2, work) == [[-3.0, -3.0]] * 2


def test_frozen_parameters_take_part_later() -> None:
    def work(group: Group) -> Any:
        a, b = (ad.tensor(np.ones(2), requires_grad=flag) for flag in (True, False))
        acc = ad.GradientAccumulator([a, b], accumulation_steps=1, group=group)
        for step in range(2):
            b.requires_grad_(step == 1)
            with acc.micro_batch(weight=int(group.rank == 0)):
                if group.rank == 0:
                    (a * b).sum().backward()
            acc.apply(optim.SGD([a, b], lr=0.5))
        return a.detach().tolist(), b.detach().tolist()

    assert distributed.simulate(2, work) == [([0.0, 0.0], [0.75, 0.75])] * 2


class Deep(nn.Module):
    """A net with dropout, and a part that is not used if ``shallow``."""

    def __init__(self, dtype: Any) -> None:
        self.first, self.second, self.last = (
            nn.Linear(9, 12, rng=0),
            nn.Linear(12, 12, rng=1),
            nn.Linear(12, 1, rng=2),
        )
        self.astype(dtype)

    def forward(self, x: Any, shallow: bool) -> Any:
        y = self.first(x).tanh()
        return self.last(y if shallow else self.second(y).tanh())


def compiled_work(group: Group, kind: str, backend: Any, dtype: Any, seed: int) -> list[Any]:
    """Make updates from ragged batches with a compiled loss, a compiled step, or neither; return the weights."""
    rng = np.random.default_rng(seed)
    model, clip = Deep(dtype), float(rng.choice([0.1, 10.0]))
    loss = lambda part, shallow: (model(part, shallow) ** 2).mean()
    step = lambda part, shallow: loss(part, shallow).backward()
    if kind != "eager":
        loss, step = (ad.compile(f, backend=backend, static=["shallow"]) for f in (loss, step))
    acc = ad.GradientAccumulator(model, accumulation_steps=4 // group.size, group=group, max_grad_norm=clip)
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    for shallow, n in zip(rng.random(5) < 0.4, rng.integers(1, 14, 5), strict=True):
        batch = rng.standard_normal((n, 9)).astype(dtype)
        for j in range(4 * group.rank // group.size, 4 * (group.rank + 1) // group.size):
            part = ad.asarray(batch[n * j // 4 : n * (j + 1) // 4])
            with acc.micro_batch(weight=len(part)) as block:
                if kind == "step" and len(part):
                    step(part, shallow=bool(shallow))
                elif len(part):
                    block.backward(loss(part, shallow=bool(shallow)))
        assert acc.apply(optimizer)
    return [p.numpy() for p in model.parameters()]


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("backend", ["replay", "native", "auto"])
@pytest.mark.parametrize("kind", ["loss", "step"])
def test_gradients_of_compiled_functions(kind: str, backend: Any) -> None:
    """Results are those of eager code; "auto" changes from replay to native code, so its bits may differ."""
    for seed, dtype in enumerate((np.float32, np.float64)):
        work = partial(compiled_work, backend=backend, dtype=dtype, seed=seed)
        expected = work(Group(), "eager")
        sizes = (1, 2, 4)
        found = [w for size in sizes for w in distributed.simulate(size, partial(work, kind=kind))]
        for weights in found:
            if backend != "auto":
                assert [a.tobytes() for a in weights] == [a.tobytes() for a in found[0]]
            for a, b in zip(weights, expected, strict=True):
                tolerance = 1e-12 if dtype is np.float64 else 1e-4
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_sums_leave_at_the_end_of_the_last_block(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of ``loss.backward()`` and of a compiled step are under way before ``apply``."""

    def work(group: Group) -> list[int]:
        model = nn.Sequential(nn.Linear(9, 12, rng=0), nn.Tanh(), nn.Linear(12, 1, rng=1))
        step = lambda part: (model(part) ** 2).mean().backward()
        step = ad.compile(step) if kind == "compiled" else step
        acc = ad.GradientAccumulator(model, accumulation_steps=2, group=group)
        started: list[str] = []
        start_sum = group.start_sum

        def recorded(flat: Any, what: str) -> Any:
            started.append(what)
            return start_sum(flat, what)

        monkeypatch.setattr(group, "start_sum", recorded)
        counts = []
        for _ in range(3):
            for _ in range(2):
                with acc.micro_batch():
                    step(ad.asarray(np.ones((2, 9), np.float32)))
                    counts.append(len(started))
                counts.append(len(started))
            acc.apply(optim.SGD(model.parameters(), lr=0.1))
        return counts

    # in the first window the ranks do not know yet which parameters have gradients
    assert distributed.simulate(2, work) == [[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3]] * 2


@EARLY
@pytest.mark.usefixtures("small_buckets")
def test_a_short_window_is_closed_where_another_rank_has_a_full_one(early: bool) -> None:
    def work(group: Group) -> Any:
        w = ad.tensor(np.zeros(40), requires_grad=True)
        acc = ad.GradientAccumulator([w], accumulation_steps=2, group=group)
        for step in range(3):
            for _ in range(2 if step < 2 or group.rank == 0 else 1):
                with acc.micro_batch() as block:
                    loss = (w * (1 + group.rank)).sum()
                    block.backward(loss) if early else loss.backward()
            assert acc.flush() is True
            assert acc.apply(optim.SGD([w], lr=1.0))
            assert acc.flush() is False
        return w.detach().tolist()

    found = -1.5 - 1.5 - (1 + 1 + 2) / 3
    assert [np.allclose(w, found) for w in distributed.simulate(2, work, timeout=10)] == [True, True]


@pytest.mark.usefixtures("small_buckets")
def test_a_window_can_be_dropped_after_its_sums_left() -> None:
    def work(group: Group) -> Any:
        w = ad.tensor(np.zeros(40), requires_grad=True)
        acc = ad.GradientAccumulator([w], accumulation_steps=1, group=group)
        for step in range(6):
            with acc.micro_batch() as block:
                block.backward((w * (step + group.rank)).sum())
            if step % 2:
                acc.drop()
            else:
                acc.apply(optim.SGD([w], lr=1.0))
        return float(w[0].detach())

    assert distributed.simulate(2, work) == [-0.5 - 2.5 - 4.5] * 2

    def one_alone(group: Group) -> None:
        w = ad.tensor(np.zeros(40), requires_grad=True)
        acc = ad.GradientAccumulator([w], accumulation_steps=1, group=group)
        for step in range(4):
            with acc.micro_batch():
                w.sum().backward()
            if step == 1 and group.rank == 1:
                acc.drop()
            else:
                acc.apply(optim.SGD([w], lr=1.0))

    with pytest.raises((AccumulationError, RankError), match=r"different numbers of windows|different calls"):
        distributed.simulate(2, one_alone)


def test_mistakes() -> None:
    w = ad.tensor(np.ones(2), requires_grad=True)
    alone = Group()
    with pytest.raises(InputError, match=r"group must be a distributed\.Group, not an int"):
        ad.GradientAccumulator([w], group=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="group= needs parameters"):
        ad.GradientAccumulator(group=alone)
    with pytest.raises(ArgumentError, match="whose sums are pairwise"):
        ad.GradientAccumulator([w], group=alone, compensated=True)
    acc = ad.GradientAccumulator([w], group=alone, accumulation_steps=2)
    with pytest.raises(AccumulationError, match=r"must be added in one call of step\(\)"):
        acc.accumulate("0", np.ones(2))
    with pytest.raises(ArgumentError, match="weights must be 0 or from 2"):
        acc.step({"0": np.ones(2)}, weight=1e-60)
    acc.step({"0": np.ones(2)})
    with pytest.raises(AccumulationError, match="has only 1 of 2 micro-batches"):
        acc.gradients()
    with pytest.raises(
        AccumulationError, match="a window is divided among the ranks, so no rank can save or load it"
    ):
        acc.state_dict()
    acc.step({"0": np.zeros(2)})
    assert acc.gradients()["0"].tolist() == [0.5, 0.5]
    assert acc.apply(optim.SGD([w], lr=1.0))
    other = ad.GradientAccumulator([w], accumulation_steps=2)
    other.load_state_dict(acc.state_dict())
    acc.load_state_dict(other.state_dict())
    other.step({"0": np.ones(2)})
    with pytest.raises(AccumulationError, match="no rank can save or load it"):
        acc.load_state_dict(other.state_dict())


def test_one_backward_per_block_whose_sums_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "FIRST", 8)

    def work(group: Group) -> None:
        w = ad.tensor(np.ones(4), requires_grad=True)
        acc = ad.GradientAccumulator([w], accumulation_steps=1, group=group)
        for second in (False, True):
            with acc.micro_batch(weight=1) as block:
                block.backward(w.sum())
                if second:
                    with pytest.raises(
                        AccumulationError, match="the weight was set after backward\\(\\) had begun to send"
                    ):
                        block.weight = 2
                    block.backward(w.sum())
            acc.apply(optim.SGD([w], lr=1.0))

    with pytest.raises(RankError, match="the gradients of this window were already sent to the other ranks"):
        distributed.simulate(2, work)
