"""Models of unusual kinds beside a coordinator: tables whose gradients are sparse, and running statistics.

The reference for batch norm is a loop in plain torch over the module, with the server's rule written out.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from peer.experiment import Experiment, from_dict
from peer.scripting import Document, simulate
from peer.ways import Engine
from tests import model_kinds
from tests.daemon_pool import DaemonPool
from tests.served_models import HEAD, WIDTH, WORDS
from tests.served_peers import centres

torch.set_num_threads(1)

BOTH_ENGINES = pytest.mark.parametrize("engine", ["rounds", "events"])
SYNC: dict[str, Any] = {"mode": "sync"}
IN_TURN: dict[str, Any] = {"mode": "async", "arrival": "round_robin"}


@pytest.fixture(scope="module")
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool()
    yield pool
    pool.close()


# ---- Sparse gradients travel as rows and values

SENTENCES = [[(0, 1), (2, 0)], [(3, 3)], [(5, 39), (6, 39), (7, 8)], [(39, 0)]]
TOUCHED = [3, 1, 5, 2]  # rows of the table, by peer
NUMBERS = WORDS * WIDTH + HEAD
ROUNDS = 6


def reading(model: str, coordinator: dict[str, Any], task: dict[str, Any] | None = None, **tables: Any) -> Experiment:
    shards = [[[list(map(float, words)), 1.0 + i] for words in rows] for i, rows in enumerate(SENTENCES)]
    whole = {"model": f"tests.served_models:{model}", "data": "inline", "shards": shards, "batch_size": 0, "lr": 0.2}
    common = {"rounds": ROUNDS, "eval_every": 1, "record": {"params": "every"}, "coordinator": coordinator}
    return from_dict({**common, "task": whole | {"dtype": "float64"} | (task or {}), **tables})


def pushed_bytes(summary: Document, size: int = 8) -> int:
    """Return how much was pushed in a synchronous run: all but what the coordinator gave."""
    given = len(SENTENCES) * (ROUNDS + 1) * NUMBERS * size
    return int(summary.payload_bytes_sent) - given


def rows_and_values(size: int = 8) -> int:
    """Return the bytes of all pushes: three counts, row numbers, the rows and the rest."""
    return ROUNDS * sum(3 * 8 + 4 * rows + size * (WIDTH * rows + HEAD) for rows in TOUCHED)


@BOTH_ENGINES
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_push_carries_the_rows_that_were_touched(engine: Engine, optimiser: str) -> None:
    table = SYNC | {"server_optimizer": optimiser, "server_lr": 0.1}
    sparse, dense = (simulate(reading(f"{kind}_words", table), engine=engine) for kind in ("sparse", "dense"))
    assert centres(sparse) == centres(dense)
    assert pushed_bytes(dense) == ROUNDS * 4 * NUMBERS * 8
    assert pushed_bytes(sparse) == rows_and_values() < pushed_bytes(dense) / 4


def test_a_push_of_daemons_carries_the_rows_that_were_touched(pool: DaemonPool) -> None:
    for table in (SYNC, IN_TURN):
        real, virtual = (run(reading("sparse_words", table)) for run in (pool.up, in_events))
        assert centres(real) == centres(virtual) == centres(in_events(reading("dense_words", table)))
        assert real.params == virtual.params
    assert pushed_bytes(pool.up(reading("sparse_words", SYNC))) == rows_and_values()


def in_events(experiment: Experiment) -> Document:
    return simulate(experiment, engine="events")


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_values_are_rounded_and_row_numbers_are_not(name: str) -> None:
    sparse, dense = (
        in_events(reading(f"{kind}_words", SYNC, compression={"name": name})) for kind in ("sparse", "dense")
    )
    assert centres(sparse) == centres(dense)
    assert pushed_bytes(sparse, size=2) == rows_and_values(size=2)


@BOTH_ENGINES
@pytest.mark.parametrize("servers", [2, 3, 7])
def test_a_table_on_several_coordinators(engine: Engine, servers: int) -> None:
    """A row that two of them share travels as it is."""
    one, several = (simulate(reading("sparse_words", SYNC | {"servers": k}), engine=engine) for k in (1, servers))
    assert centres(several) == centres(one)
    assert pushed_bytes(several) < ROUNDS * 4 * NUMBERS * 8 / 2


def test_a_table_of_which_every_row_changes_travels_whole() -> None:
    """With weight decay all of it does."""
    models = SYNC | {"aggregate": "models"}
    sparse, dense = (
        in_events(reading(f"{kind}_words", models, {"weight_decay": 0.1, "local_steps": 2}))
        for kind in ("sparse", "dense")
    )
    assert centres(sparse) == centres(dense)
    assert pushed_bytes(sparse) == ROUNDS * 4 * (NUMBERS * 8 + 3 * 8)


# ---- Running statistics, by hand


def rows_of(seed: int, count: int) -> list[list[Any]]:
    """Return one peer's rows of three features, as an experiment file has them; peers differ in scale."""
    draw = np.random.default_rng(seed)
    x, y = (1 + seed) * draw.standard_normal((count, 3)).round(2), draw.standard_normal(count).round(2)
    return [[a, b] for a, b in zip(x.tolist(), y.tolist(), strict=True)]


SHARDS = [rows_of(seed, count) for seed, count in enumerate((4, 8, 4, 8))]
BY_ROWS = [4 / 24, 8 / 24, 4 / 24, 8 / 24]
LR, ALPHA = 0.125, 0.1
TRAINED, STATISTICS = 29, 8  # of the latter, the second half are variances

Step = Callable[[Tensor, int], Tensor]


def normed(coordinator: dict[str, Any], rounds: int, shards: Sequence[Any] = SHARDS, **tables: Any) -> Experiment:
    task = {"model": "tests.model_kinds:normed", "data": "inline", "shards": shards, "batch_size": 0, "lr": LR}
    task |= {"dtype": "float64"} | tables.pop("task", {})
    common = {"rounds": rounds, "eval_every": 1, "record": {"params": "every"}, "coordinator": coordinator}
    return from_dict({**common, "task": task, **tables})


def vector(net: nn.Module) -> Tensor:
    """Return parameters and statistics, (37,)."""
    statistics = [b for b in net.buffers() if b.is_floating_point()]
    return torch.cat([t.detach().flatten() for t in (*net.parameters(), *statistics)])


@torch.no_grad()
def load(net: nn.Module, x: Tensor) -> None:
    tensors = [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]
    for t, part in zip(tensors, torch.split(x, [t.numel() for t in tensors]), strict=True):
        t.copy_(part.view(t.shape))


def start() -> Tensor:
    return vector(model_kinds.normed().double())


def found(x: Tensor, peer: int) -> Tensor:
    """Return where one step on all rows of a peer leads from x, (37,), statistics and all."""
    net = model_kinds.normed().double()
    load(net, x)
    features = torch.tensor([a for a, _ in SHARDS[peer]], dtype=torch.float64)
    target = torch.tensor([[b] for _, b in SHARDS[peer]], dtype=torch.float64)
    loss = 0.5 * ((net.train()(features) - target) ** 2).sum() / len(target)
    for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
        p.data -= LR * g
    return vector(net)


def loss(x: Tensor, peer: int) -> float:
    """Return the loss of x on a peer's rows, with the statistics in x."""
    net = model_kinds.normed().double()
    load(net, x)
    features = torch.tensor([a for a, _ in SHARDS[peer]], dtype=torch.float64)
    target = torch.tensor([[b] for _, b in SHARDS[peer]], dtype=torch.float64)
    with torch.no_grad():
        return float(0.5 * ((net.eval()(features) - target) ** 2).sum() / len(target))


def in_step(versions: int) -> list[Tensor]:
    """The mean of what all have found, by rows."""
    x = [start()]
    for _ in range(versions):
        parts = [p * found(x[-1], peer) for peer, p in enumerate(BY_ROWS)]
        x.append(torch.stack(parts).sum(dim=0))
    return x


def with_momentum(versions: int) -> list[Tensor]:
    """b <- 0.9 b + g and w <- w - lr b; statistics are their mean, whatever the optimiser."""
    x, b = [start()], torch.zeros(TRAINED + STATISTICS, dtype=torch.float64)
    for _ in range(versions):
        step = torch.stack([p * (x[-1] - found(x[-1], peer)) for peer, p in enumerate(BY_ROWS)]).sum(dim=0)
        b = 0.9 * b + step
        x.append(torch.cat([(x[-1] - b)[:TRAINED], (x[-1] - step)[TRAINED:]]))
    return x


def in_turn(versions: int, size: int = 1) -> list[Tensor]:
    """Worker k mod 4 pushes; what it found of statistics counts 1 / (1 + staleness). `size`: so many make a version."""
    x, has = [start()], [0, 0, 0, 0]
    pushes = iter(range(1000))
    for _ in range(versions):
        now = x[-1].clone()
        made = []
        for _ in range(size):
            peer = next(pushes) % 4
            version = has[peer]
            step = (found(x[version], peer) - x[version]) / size
            now += torch.cat([step[:TRAINED], step[TRAINED:] / (1 + len(x) - 1 - version)])
            made.append(peer)
            has[peer] = len(x) - 1  # given at once, but for who fills the buffer
        has[made[-1]] = len(x)
        x.append(now)
    return x


def elastic_in_step(versions: int) -> list[Tensor]:
    """Parameters are pulled as they were before the step, statistics as they are after it."""
    centre, workers = [start()], [start()] * 4
    for _ in range(versions):
        c, pulled = centre[-1], []
        for peer, x in enumerate(workers):
            ahead = found(x, peer)
            pulled.append(torch.cat([x[:TRAINED], ahead[TRAINED:]]))
            workers[peer] = ahead - ALPHA * (pulled[-1] - c)
        centre.append(c + ALPHA * torch.stack([x - c for x in pulled]).sum(dim=0))
    return centre


def elastic_in_turn(versions: int) -> list[Tensor]:
    centre, workers = [start()], [start()] * 4
    for k in range(versions):
        c, peer = centre[-1], k % 4
        ahead = found(workers[peer], peer)
        pulled = torch.cat([workers[peer][:TRAINED], ahead[TRAINED:]])
        workers[peer] = ahead - ALPHA * (pulled - c)
        centre.append(c + ALPHA * (pulled - c))
    return centre


ELASTIC: dict[str, Any] = {"algorithm": {"name": "easgd", "alpha": ALPHA}}
BY_HAND: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[int], list[Tensor]], bool]] = {
    "sync": (SYNC, {}, in_step, True),
    "models": (SYNC | {"aggregate": "models"}, {}, in_step, True),
    "quorum of all": ({"mode": "quorum", "quorum": 1.0}, {}, in_step, False),
    "momentum": (SYNC | {"server_optimizer": "momentum"}, {}, with_momentum, True),
    "several coordinators": (SYNC | {"servers": 3}, {}, in_step, True),
    "async": (IN_TURN, {}, in_turn, False),
    "async on several": ({"mode": "async", "servers": 3}, {}, in_turn, False),
    "buffered": ({"mode": "buffered", "buffer": 4}, {}, lambda versions: in_turn(versions, size=4), False),
    "easgd": (SYNC, ELASTIC, elastic_in_step, True),
    "easgd in turn": (IN_TURN, ELASTIC, elastic_in_turn, False),
}


@pytest.mark.parametrize("mode", BY_HAND)
def test_statistics_are_averaged_in_every_mode(mode: str) -> None:
    coordinator, tables, by_hand, is_in_step = BY_HAND[mode]
    e, expected = normed(coordinator, 9, **tables), torch.stack(by_hand(9))
    engines: list[Engine] = ["events", "rounds"] if is_in_step else ["events"]
    for engine in engines:
        summary = simulate(e, engine=engine)
        x = torch.tensor(centres(summary), dtype=torch.float64)
        torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-12)
        assert (x[:, -STATISTICS // 2 :] > 0).all()
        if not tables:
            losses = [loss(expected[-1], peer) for peer in range(4)]
            assert summary.loss.mean == pytest.approx(sum(losses) / 4, rel=1e-9)
            assert (summary.loss.min, summary.loss.max) == pytest.approx((min(losses), max(losses)), rel=1e-9)


KEPT: dict[str, Any] = {"algorithm": {"buffers": "keep"}}


def test_statistics_are_averaged_or_kept_in_daemons_too(pool: DaemonPool) -> None:
    averaged = [BY_HAND[mode][:2] for mode in ("momentum", "async", "easgd")]
    for coordinator, tables in (*averaged, (SYNC, KEPT), (IN_TURN, KEPT)):
        real, virtual = (run(normed(coordinator, 5, **tables)) for run in (pool.up, in_events))
        assert real.coordinator == virtual.coordinator
        assert real.params == virtual.params
        assert real.loss.as_dict() == virtual.loss.as_dict()


@BOTH_ENGINES
def test_the_mean_of_a_ring_has_the_mean_of_the_statistics(engine: Engine) -> None:
    summary = simulate(normed({"mode": "ring"}, 5), engine=engine)
    x = torch.tensor(summary.params, dtype=torch.float64)
    torch.testing.assert_close(x, torch.stack([in_step(5)[-1]] * 4), rtol=1e-9, atol=1e-12)


@BOTH_ENGINES
def test_statistics_that_are_kept_are_each_peer_s_own(engine: Engine, tmp_path: Path) -> None:
    e = normed(SYNC, 5, **KEPT)
    summary = simulate(e, engine=engine, out=tmp_path / "run")
    w, own = start()[:TRAINED], [start()[TRAINED:]] * 4
    for _ in range(5):
        ahead = [found(torch.cat([w, own[peer]]), peer) for peer in range(4)]
        w = torch.stack([p * x[:TRAINED] for x, p in zip(ahead, BY_ROWS, strict=True)]).sum(dim=0)
        own = [x[TRAINED:] for x in ahead]
    expected = [pytest.approx(w.tolist(), rel=1e-9, abs=1e-12)] * 4
    assert summary.coordinator == expected[0]
    assert summary.params == expected
    losses = [loss(torch.cat([w, own[peer]]), peer) for peer in range(4)]
    assert summary.loss.mean == pytest.approx(sum(losses) / 4, rel=1e-9)
    for peer in range(4):
        model = load_file(tmp_path / "run" / "peers" / f"peer-{peer}" / "model.safetensors")
        kept = torch.cat([model["1.running_mean"], model["1.running_var"]])
        torch.testing.assert_close(kept, own[peer], rtol=1e-9, atol=1e-12)


EIGHT = [rows_of(seed, 6) for seed in (0, 19, 1, 9, 0, 39, 2, 5)]  # their variances differ by a factor of 1600
FREE: dict[str, dict[str, Any]] = {
    "async": {"coordinator": {"mode": "async"}},
    "async, models": {
        "coordinator": {"mode": "async", "aggregate": "models"},
        "task": {"local_steps": 6, "lr": 0.01},
    },
    "buffered": {"coordinator": {"mode": "buffered", "buffer": 3, "aggregate": "models"}, "task": {"local_steps": 6}},
    "easgd": {"coordinator": {"mode": "async"}, "algorithm": {"name": "easgd", "alpha": 0.9}},
    "easgd in step": {"coordinator": {"mode": "sync"}, "algorithm": {"name": "easgd", "alpha": 0.12}},
}


@pytest.mark.parametrize(
    "speed", [{}, {"factors": [1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 1.0, 1.0]}], ids=["even", "straggler"]
)
@pytest.mark.parametrize("mode", FREE)
def test_a_variance_stays_one_among_eight_workers(mode: str, speed: dict[str, Any]) -> None:
    tables = {"task": {}, **FREE[mode]}
    task = {"lr": 0.01} | tables.pop("task")
    summary = in_events(normed(tables.pop("coordinator"), 80, EIGHT, task=task, speed=speed, **tables))
    variances = np.array(centres(summary))[:, -STATISTICS // 2 :]
    assert (variances > 0).all()
    assert variances.max() > 3 * variances.min()
    for entry in summary.history:
        assert (np.array(entry.params)[:, -STATISTICS // 2 :] > 0).all()


NARROW = [[[[x / 20 for x in a], b] for a, b in rows_of(seed, 6)] for seed in range(8)]


@BOTH_ENGINES
def test_a_variance_stays_one_where_eight_pull_harder_than_the_centre_can_follow(engine: Engine) -> None:
    """n alpha = 1.6, at which parameters are stable: the centre goes beyond the mean of the workers', and comes back.

    A variance that falls from 1 to 0.01 in one round would come out below 0.
    """
    easgd = {"name": "easgd", "alpha": 0.2}
    e = normed(SYNC, 20, NARROW, task={"lr": 0.01, "local_steps": 8}, algorithm=easgd)
    summary = simulate(e, engine=engine)
    assert (np.array(centres(summary))[:, -STATISTICS // 2 :] > 0).all()
    assert np.isfinite(summary.loss.mean)


def test_where_eight_pull_harder_statistics_of_the_centre_are_the_mean_of_all() -> None:
    """A part min(alpha, 1 / n) of the way to each."""
    summary = in_events(normed(SYNC, 1, algorithm={"name": "easgd", "alpha": 0.3}))
    ahead = torch.stack([found(start(), peer) for peer in range(4)])
    centre = torch.tensor(summary.coordinator, dtype=torch.float64)
    torch.testing.assert_close(centre[TRAINED:], ahead.mean(dim=0)[TRAINED:], rtol=1e-12, atol=1e-14)
