"""A synchronous server is one process with all rows: gradients by rows, their mean where shards are equal.

So is the exact mean of all peers, and what averages the models that one step makes. And it makes no difference how many
coordinators share the parameters, which engine draws who takes part, and when a number is rounded on its way, but for
that rounding.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peer.assembly import assemble, prepare_task
from peer.experiment import Experiment, from_dict
from peer.protocol.messages import Global, PeerId, Push, Send
from peer.scripting import Document, simulate
from peer.simulator.events import EventsEngine
from peer.simulator.watching import Watch
from peer.ways import Engine
from tests.served_peers import centres, served

BOTH_ENGINES = pytest.mark.parametrize("engine", ["rounds", "events"])
ROUNDS = 10
UNEVEN = [100, 400, 1500, 2000]

# ---- One process with all rows


def digits(model: str, peers: int, engine: Engine, task: dict[str, Any] | None = None, **tables: Any) -> Document:
    """Return ten rounds of full batches in float64 among so many peers."""
    whole = {"model": model, "batch_size": 0, "lr": 0.2, "dtype": "float64", **(task or {})}
    topology = {"topology": {"peers": peers}}
    common = {"rounds": ROUNDS, "eval_every": ROUNDS, "record": {"params": "final"}}
    summary = simulate(from_dict({**common, "task": whole, **topology, **tables}), engine=engine)
    assert summary.outcome == "finished"
    return summary


def apart(a: Any, b: Any) -> float:
    """Return the largest difference, relative to the largest parameter."""
    return float(np.abs(np.array(a) - np.array(b)).max() / np.abs(np.array(b)).max())


@pytest.fixture(scope="module")
def union() -> dict[str, list[float]]:
    """What one process with all rows comes to."""
    return {model: digits(model, 1, "rounds").params[0] for model in ("softmax", "mlp")}


@BOTH_ENGINES
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_equal_shards_are_their_union(union: dict[str, list[float]], model: str, engine: Engine) -> None:
    served_by_one = digits(model, 4, engine, coordinator={"mode": "sync"})
    assert apart(served_by_one.coordinator, union[model]) <= 1e-9
    assert served_by_one.params == [served_by_one.coordinator] * 4
    mean_of_all = digits(model, 4, engine, algorithm={"name": "exact"})
    assert apart(mean_of_all.params, [union[model]] * 4) <= 1e-9
    models = digits(model, 4, engine, coordinator={"mode": "sync", "aggregate": "models"})
    assert apart(models.coordinator, union[model]) <= 1e-9
    ring = digits(model, 4, engine, coordinator={"mode": "ring"})
    assert apart(ring.params, [union[model]] * 4) <= 1e-9


@BOTH_ENGINES
def test_unequal_shards_are_their_union_by_rows_and_only_by_rows(union: dict[str, list[float]], engine: Engine) -> None:
    uneven = {"partition": "sizes", "sizes": UNEVEN}
    for mode in ("sync", "ring"):
        by_rows = digits("softmax", 4, engine, uneven, coordinator={"mode": mode, "weighting": "samples"})
        assert apart(by_rows.params, [union["softmax"]] * 4) <= 1e-9
        alike = digits("softmax", 4, engine, uneven, coordinator={"mode": mode, "weighting": "equal"})
        assert apart(alike.params, [union["softmax"]] * 4) > 1e-3


@BOTH_ENGINES
def test_a_line_through_all_rows(engine: Engine) -> None:
    """Least squares, by hand: w <- w - lr (X'X w - X'y) / N."""
    draw = np.random.default_rng(5)
    x, y = draw.standard_normal((12, 3)).round(3), draw.standard_normal(12).round(3)
    rows = [[a.tolist(), float(b)] for a, b in zip(x, y, strict=True)]
    w, expected = np.zeros(3), []
    for _ in range(ROUNDS):
        w = w - 0.2 * x.T @ (x @ w - y) / 12
        expected.append(w)
    equal, uneven = [rows[:4], rows[4:8], rows[8:]], [rows[:1], rows[1:4], rows[4:]]
    for shards, weighting in ((equal, "samples"), (equal, "equal"), (uneven, "samples")):
        e = served(ROUNDS, {"mode": "sync", "weighting": weighting}, {"lr": 0.2}, shards=shards, init=[0.0] * 3)
        found = centres(simulate(e, engine=engine))[1:]
        assert apart(found, expected) <= 1e-12
    e = served(ROUNDS, {"mode": "sync", "weighting": "equal"}, {"lr": 0.2}, shards=uneven, init=[0.0] * 3)
    assert apart(centres(simulate(e, engine=engine))[1:], expected) > 1e-2


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_models_after_one_step_are_gradients(fraction: float) -> None:
    """Also in batches, with weights, and where the learning rate changes: with versions, not with a peer's rounds."""
    task = {"batch_size": 32, "partition": "dirichlet", "alpha": 0.5, "lr_schedule": "cosine", "warmup_rounds": 3}
    engines: tuple[Engine, ...] = ("rounds", "events")
    table = {"mode": "sync", "fraction": fraction}
    gradients = [digits("softmax", 4, engine, task, coordinator=table).coordinator for engine in engines]
    models = [
        digits("softmax", 4, engine, task, coordinator=table | {"aggregate": "models"}).coordinator
        for engine in engines
    ]
    assert all(apart(found, gradients[0]) <= 1e-12 for found in (gradients[1], *models))


# ---- The parameters on several coordinators


class Counting(EventsEngine):
    """Counts what each coordinator gives and is pushed, in bytes."""

    def __init__(self, experiment: Experiment) -> None:
        assembly = assemble(experiment)
        super().__init__(assembly, prepare_task(assembly), Watch(assembly), lambda: False)
        self.pushed: Counter[PeerId] = Counter()
        self.given: Counter[PeerId] = Counter()

    def sent(self, me: PeerId, send: Send) -> None:
        super().sent(me, send)
        match send.message:
            case Push():
                self.pushed[send.to] += self.payload_bytes(send.message)
            case Global():
                self.given[me] += self.payload_bytes(send.message)


def sharded(servers: int, mode: dict[str, Any], rounds: int = 8) -> Experiment:
    """Return four peers and 23 numbers, which no count of coordinators here divides."""
    draw = np.random.default_rng(2)
    shards = [
        [[draw.standard_normal(23).round(3).tolist(), round(float(draw.standard_normal()), 3)] for _ in range(3)]
        for _ in range(4)
    ]
    table, speed = {**mode, "servers": servers}, {"factors": [1.0, 1.3, 1.7, 2.9]}
    return served(rounds, table, {"lr": 0.02}, shards=shards, init=[0.1] * 23, speed=speed)


SHARDED: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "adam": {"mode": "sync", "server_optimizer": "adam", "server_lr": 0.01},
    "async": {"mode": "async", "staleness": "inverse"},
    "buffered": {"mode": "buffered", "buffer": 2},
}


@pytest.mark.parametrize("servers", [2, 3, 5, 23])
@pytest.mark.parametrize("mode", SHARDED)
def test_several_coordinators_do_what_one_does_to_the_bit(servers: int, mode: str) -> None:
    one, several = (simulate(sharded(k, SHARDED[mode]), engine="events") for k in (1, servers))
    assert centres(several) == centres(one)
    assert several.payload_bytes_sent == one.payload_bytes_sent
    assert several.params == [several.coordinator] * 4


@pytest.mark.parametrize("servers", [2, 3, 5])
@pytest.mark.parametrize("mode", ["sync", "adam"])
def test_several_coordinators_do_what_one_does_in_the_rounds_engine(servers: int, mode: str) -> None:
    one, several = (simulate(sharded(k, SHARDED[mode]), engine="rounds") for k in (1, servers))
    assert centres(several) == centres(one)
    assert several.payload_bytes_sent == one.payload_bytes_sent


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_each_coordinator_carries_its_part_of_the_bytes(servers: int) -> None:
    """Of 23 float64 per worker and round, up and down: a k-th of them, but for one number."""
    engine, rounds, workers = Counting(sharded(servers, SHARDED["sync"])), 8, 4
    assert engine.run().outcome == "finished"
    coordinators = range(4, 4 + servers)
    for counts, times in ((engine.pushed, rounds), (engine.given, rounds + 1)):
        parts = [counts[me] / (8 * workers * times) for me in coordinators]
        assert sum(parts) == 23
        assert all(part in (23 // servers, 23 // servers + 1) for part in parts)


def test_easgd_on_several_coordinators() -> None:
    e = [sharded(k, {"mode": "sync"}).model_dump(exclude_none=True, exclude_defaults=True) for k in (1, 3)]
    one, several = (simulate(from_dict(t | {"algorithm": {"name": "easgd"}}), engine="events") for t in e)
    assert [entry.params for entry in several.history] == [entry.params for entry in one.history]
    assert centres(several) == centres(one)


# ---- Who takes part


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 3), (0.34, 2), (0.01, 1)])
def test_both_engines_draw_the_same_members(fraction: float, count: int) -> None:
    """Each peer has a number of the model for itself, which changes when it takes part."""
    shards = [[[np.eye(6)[i].tolist(), 1.0]] for i in range(6)]
    e = served(12, {"mode": "sync", "fraction": fraction}, {"lr": 0.5}, shards=shards, init=[0.0] * 6)
    runs = [simulate(e, engine=engine) for engine in ("rounds", "events")]
    found = []
    for summary in runs:
        x = np.array(centres(summary))
        found.append([set(np.flatnonzero(moved).tolist()) for moved in x[1:] != x[:-1]])
        assert summary.gradients == 12 * count
    assert found[0] == found[1]
    assert {len(members) for members in found[0]} == {count}
    assert len({tuple(sorted(members)) for members in found[0]}) > 3, "drawn anew in each round"
    assert apart(centres(runs[0]), centres(runs[1])) <= 1e-12
    assert runs[0].payload_bytes_sent == runs[1].payload_bytes_sent


# ---- Rounded on the way

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
PARTS = ([[1.1, 0.3, -0.7], 0.9], [[0.2, -1.3, 0.4], -0.4], [[-0.6, 0.8, 1.7], 1.3])


def rounded_by_hand(dtype: torch.dtype, wide: torch.dtype, aggregate: str, rounds: int) -> Tensor:
    """Return the server's parameters, (rounds + 1, 3): what goes either way is rounded, what it keeps is not."""
    x = torch.tensor([features for features, _ in PARTS], dtype=wide)
    y = torch.tensor([target for _, target in PARTS], dtype=wide)
    w = torch.tensor([0.3, -0.2, 0.1], dtype=wide)
    found = [w]
    for _ in range(rounds):
        given = w.to(dtype).to(wide)
        mean = torch.zeros_like(w)
        for features, target in zip(x, y, strict=True):
            gradient = features * (features @ given - target)
            u = gradient if aggregate == "gradients" else 0.1 * gradient
            mean += u.to(dtype).to(wide) / 3
        w = w - (0.1 if aggregate == "gradients" else 1.0) * mean
        found.append(w)
    return torch.stack(found)


def on_the_way(name: str, aggregate: str = "gradients", dtype: str = "float64", **coordinator: Any) -> Experiment:
    table = {"mode": "sync", "aggregate": aggregate, **coordinator}
    task, init = {"lr": 0.1, "dtype": dtype}, [0.3, -0.2, 0.1]
    return served(12, table, task, shards=[[part] for part in PARTS], init=init, compression={"name": name})


@BOTH_ENGINES
@pytest.mark.parametrize("aggregate", ["gradients", "models"])
@pytest.mark.parametrize("name", HALVES)
def test_both_ways_are_rounded_as_by_hand(name: str, aggregate: str, engine: Engine) -> None:
    found = torch.tensor(centres(simulate(on_the_way(name, aggregate), engine=engine)), dtype=torch.float64)
    expected = rounded_by_hand(HALVES[name], torch.float64, aggregate, 12)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    plain = rounded_by_hand(torch.float64, torch.float64, aggregate, 12)
    assert 1e-6 < float((found - plain).abs().max()) < 0.05, "rounding shows"


@BOTH_ENGINES
@pytest.mark.parametrize("name", HALVES)
def test_in_half_the_bits_half_the_bytes_travel(name: str, engine: Engine) -> None:
    plain, half = (simulate(on_the_way(each, dtype="float32"), engine=engine) for each in ("none", name))
    assert plain.payload_bytes_sent == 3 * 4 * 3 * (12 + 13)
    assert half.payload_bytes_sent == plain.payload_bytes_sent / 2


@pytest.mark.parametrize("name", HALVES)
def test_rounded_parts_are_the_parts_of_what_is_rounded(name: str) -> None:
    one, several = (simulate(on_the_way(name, servers=k), engine="events") for k in (1, 3))
    assert centres(one) == centres(several)
