"""Both engines of the simulator: mixing by rows, faults of a single peer, virtual time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import topology
from peer.experiment import from_dict
from peer.scripting import Document, simulate
from peer.simulator.gossiping import HeardRows, Rows

ENGINES = ["rounds", "events"]


def matrix(n: int = 6) -> csr_array:
    net = topology.build("ring", n)
    return topology.mixing_matrix(topology.neighbours(net, "hops", 1))


def rows(n: int = 6, m: int = 3) -> torch.Tensor:
    return torch.arange(n * m, dtype=torch.float64).reshape(n, m).sin()


def test_rows_mix_as_the_matrix_says() -> None:
    w, x = matrix(), rows()
    np.testing.assert_allclose(Rows(w).mix(x), w.toarray() @ x.numpy(), rtol=1e-15)


def test_everyone_is_the_mean_of_all() -> None:
    x = rows()
    np.testing.assert_allclose(Rows(None).mix(x), np.tile(x.numpy().mean(axis=0), (6, 1)), rtol=1e-14)


@pytest.mark.parametrize("w", [matrix(), None], ids=["ring", "everyone"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_heard_by_nobody(w: csr_array | None, poison: float) -> None:
    x = rows()
    x[2, 1] = poison
    dense = np.full((6, 6), 1 / 6) if w is None else w.toarray()
    kept = dense.copy()
    kept[:, 2] = 0
    kept += np.diag(1 - kept.sum(axis=1))  # what it would have had goes to oneself
    others = [0, 1, 3, 4, 5]
    mixed = Rows(w).mix(x)
    np.testing.assert_allclose(mixed[others], (kept[np.ix_(others, others)] @ x[others].numpy()), rtol=1e-13)
    assert not torch.isfinite(mixed[2]).all()


def test_edges_are_sorted_by_receiver_then_sender() -> None:
    edges = HeardRows(Rows(matrix(4)), {"x": rows(4)}).edges()
    assert edges.receivers.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    senders = [1, 3, 0, 2, 1, 3, 0, 2]
    assert torch.equal(edges.theirs["x"], rows(4)[senders])
    assert torch.equal(edges.own["x"], rows(4)[edges.receivers])
    assert edges.weights.tolist() == [[pytest.approx(1 / 3)]] * 8
    summed = rows(4) / 3 + torch.zeros(4, 3).double().index_add(0, edges.receivers, edges.weights * edges.theirs["x"])
    np.testing.assert_allclose(summed, HeardRows(Rows(matrix(4)), {"x": rows(4)}).sum()["x"], rtol=1e-14)


def run(engine: str, **tables: object) -> Document:
    return simulate(from_dict(tables), engine=engine)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_poisoned_peer_leaves_its_neighbours_finite(engine: str) -> None:
    """One peer's data blow up: it diverges by itself, and nobody mixes what it sends."""
    huge = 1e200  # its square is not finite any more
    task = {
        "model": "linear",
        "data": "inline",
        "shards": [[[[1.0], 3.0]], [[[huge], 5.0]], [[[3.0], 7.0]], [[[2.0], 9.0]]],
        "init": [1.5],
        "batch_size": 0,
        "lr": 0.05,
        "dtype": "float64",
    }
    summary = run(engine, rounds=20, task=task, record={"on_divergence": "continue", "params": "final"})
    assert summary.outcome == "diverged"
    assert summary.diverged.peer == "peer-1"
    assert summary.params[1] == [None]
    others = [summary.params[i][0] for i in (0, 2, 3)]
    assert all(abs(w) < 10 for w in others)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_growth_beyond_bounds_is_a_divergence_at_its_round(engine: str) -> None:
    """One weight, x = 1, y = 0, lr = 12: w <- -11 w, so |w| passes 1e8 after round 8 (11^8 = 2.1e8)."""
    task = {
        "model": "linear",
        "data": "inline",
        "shards": [[[[1.0], 0.0]], [[[1.0], 0.0]]],
        "init": [1.0],
        "batch_size": 0,
        "lr": 12.0,
        "dtype": "float64",
    }
    summary = run(engine, rounds=50, eval_every=50, task=task)
    assert summary.outcome == "diverged"
    assert summary.diverged.as_dict() == {"round": 8, "peer": "peer-0"}
    assert summary.rounds == 8


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_that_may_go_on_says_in_the_end_that_it_diverged(engine: str) -> None:
    task = {
        "model": "linear",
        "data": "inline",
        "shards": [[[[1.0], 0.0]]],
        "init": [1.0],
        "batch_size": 0,
        "lr": 12.0,
        "dtype": "float64",
    }
    summary = run(engine, rounds=12, eval_every=6, task=task, record={"on_divergence": "continue"})
    assert summary.outcome == "diverged"
    assert summary.rounds == 12
    assert [h.round for h in summary.history] == [0, 6, 12]


def test_virtual_time_is_that_of_the_local_steps() -> None:
    summary = run("events", rounds=10, task={"model": "softmax", "local_steps": 3}, topology={"peers": 3})
    assert summary.simulated_seconds == pytest.approx(30.0)
    assert summary.gradients == 10 * 3 * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_run_and_another_one_another(engine: str) -> None:
    tables = {"rounds": 4, "task": {"model": "softmax"}, "topology": {"peers": 3}, "record": {"params": "final"}}
    first, second = run(engine, **tables), run(engine, **tables)
    other = run(engine, **{**tables, "seed": 1})
    assert first.params == second.params
    assert first.params != other.params


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_count_what_travels(engine: str) -> None:
    tables = {"rounds": 3, "task": {"model": "softmax"}, "topology": {"family": "star", "peers": 5}}
    assert run(engine, **tables).payload_bytes_sent == 3 * 8 * 7850 * 4
    alone = {**tables, "algorithm": {"name": "local"}}
    assert run(engine, **alone).payload_bytes_sent == 0
    exact = {**tables, "algorithm": {"name": "exact"}}
    assert run(engine, **exact).payload_bytes_sent == 3 * 5 * 4 * 7850 * 4


def test_a_model_with_dropout_takes_the_plain_step(tmp_path: Path) -> None:
    (tmp_path / "dropping.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10))\n"
    )
    e = from_dict(
        {"rounds": 3, "task": {"model": "dropping:make"}, "topology": {"peers": 3}, "record": {"params": "final"}},
        folder=tmp_path,
    )
    fast, slow = simulate(e), simulate(e, engine="events")
    assert fast.step == "plain"
    np.testing.assert_allclose(fast.params, slow.params, atol=1e-6)
