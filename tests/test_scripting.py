"""Experiments from Python: documents as objects, daemons from a script, and numbers that a lecture can derive."""

import json
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import peer
from peer import explain, load, simulate, up
from peer.errors import ConfigError
from peer.experiment import Experiment, from_dict
from peer.scripting import Document
from tests.commands import inline

ENGINES = ["rounds", "events"]
FOUR_SHARDS = [[[[1.0], 3.0]], [[[2.0], 5.0]], [[[3.0], 7.0]], [[[4.0], 9.0]]]


def lecture(shards: Any, init: float, **tables: Any) -> Experiment:
    """Squared loss 0.5 (w x - y)^2 of one weight, learning rate 0.1, every round kept."""
    return from_dict({"eval_every": 1, "record": {"params": "every"}, **inline(shards, [init]), **tables})


def weights(summary: Document) -> list[list[float]]:
    """The peers' weights after each round, (rounds + 1, n)."""
    return [[w for (w,) in entry.params] for entry in summary.history]


# ---- Numbers of the lecture


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_of_one_peer(engine: Any) -> None:
    summary = simulate(lecture([[[[3.0], 10.0]]], 2.0, rounds=1), engine=engine)
    assert summary.history[0].loss.mean == 8.0  # 0.5 (6 - 10)^2
    assert weights(summary) == [[2.0], [pytest.approx(3.2, rel=1e-15)]]  # 2 - 0.1 * 3 (6 - 10)
    assert summary.gradients == 1
    assert summary.payload_bytes_sent == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_exact_mean_of_four_shards(engine: Any) -> None:
    summary = simulate(lecture(FOUR_SHARDS, 1.5, rounds=20, algorithm={"name": "exact"}), engine=engine)
    # The mean curvature is 30/4, so a step leaves a quarter of the way to 7/3.
    for t, found in enumerate(weights(summary)):
        assert found == pytest.approx([7 / 3 - 5 / 6 * 0.25**t] * 4, rel=1e-12)
    assert weights(summary)[1] == pytest.approx([2.125] * 4, rel=1e-15)
    assert summary.consensus_distance == pytest.approx(0, abs=1e-28)


ATC_LIMIT = [Fraction(2758, 1171), Fraction(8420, 3513), Fraction(2724, 1171), Fraction(16301, 7026)]


def test_the_limit_is_the_fixed_point_of_adapt_then_combine() -> None:
    """The numbers themselves: w = W (w - lr (h w - b)), in exact fractions."""
    lr = Fraction(1, 10)
    adapted = [w - lr * x * (x * w - y) for w, (x, y) in zip(ATC_LIMIT, [(1, 3), (2, 5), (3, 7), (4, 9)], strict=True)]
    assert [sum(adapted[(i + k) % 4] for k in (-1, 0, 1)) / 3 for i in range(4)] == ATC_LIMIT


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ring_of_four_adapts_then_combines(engine: Any) -> None:
    summary = simulate(lecture(FOUR_SHARDS, 1.5, rounds=120), engine=engine)
    assert summary.outcome == "finished"
    assert weights(summary)[-1] == pytest.approx([float(w) for w in ATC_LIMIT], rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_ring_of_four_that_combines_first_diverges(engine: Any) -> None:
    """At x = 4 the step 0.1 * 16 is more than the 1/3 that a peer keeps of itself can stand."""
    summary = simulate(lecture(FOUR_SHARDS, 1.5, rounds=400, algorithm={"order": "cta"}), engine=engine)
    assert summary.outcome == "diverged"
    assert summary.diverged.peer == "peer-3"
    assert summary.rounds == summary.diverged.round < 100
    assert summary.history[-1].round == summary.rounds


def test_both_engines_do_the_same_and_a_script_may_choose() -> None:
    e = lecture(FOUR_SHARDS, 1.5, rounds=10)
    one, other = (weights(simulate(e, engine=engine)) for engine in ("rounds", "events"))
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=1e-12)


# ---- Documents


@pytest.fixture
def exp(tmp_path: Path) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text('rounds = 12\n[task]\ndata = "none"\ninit = [[0.0], [1.0], [2.0]]\ndtype = "float64"\n')
    return path


def test_load_with_overrides(exp: Path) -> None:
    assert load(exp).rounds == load(str(exp)).rounds == 12
    assert load(exp, {"rounds": 3, "topology.threshold": 2}).topology.threshold == 2.0
    assert load(exp, ["rounds=3"]) == load(exp, {"rounds": 3})
    with pytest.raises(ConfigError, match=r"rouds: unknown key; did you mean rounds\?"):
        load(exp, {"rouds": 3})


def test_explain_gives_an_object(exp: Path) -> None:
    explained = explain(load(exp), matrix=True)
    assert explained.peers == 3
    assert explained.degree.max == 2
    assert explained.neighbours["peer-0"] == ["peer-1", "peer-2"], "names are keys and not attributes"
    assert explained.matrix[0] == pytest.approx([1 / 3] * 3)
    assert json.loads(json.dumps(explained.as_dict()))["neighbours"]["peer-2"] == ["peer-0", "peer-1"]
    assert not hasattr(explain(load(exp)), "matrix")


def test_simulate_gives_an_object(exp: Path) -> None:
    summary = simulate(load(exp, {"record.params": "final"}))
    assert summary.outcome == "finished"
    assert summary.params == [[pytest.approx(1.0, rel=1e-12)]] * 3
    assert [entry.round for entry in summary.history] == [0, 10, 12]
    assert summary.history[0].consensus_distance == pytest.approx(2 / 3)
    assert (summary.accuracy.mean, summary.diverged, summary.run_folder) == (None, None, None)
    assert summary.as_dict()["history"][0]["round"] == 0
    assert "_fields" not in repr(summary)
    assert [file.name for file in exp.parent.iterdir()] == ["exp.toml"], "nothing is written"


def test_simulate_writes_where_it_is_told(exp: Path, tmp_path: Path) -> None:
    summary = simulate(load(exp), out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary.as_dict()


def test_what_is_wrong_is_raised(exp: Path, tmp_path: Path) -> None:
    for function in (explain, simulate):
        with pytest.raises(ConfigError, match=r"^topology\.threshold: at 0 the peers fall apart into 3 components"):
            function(load(exp, {"topology.threshold": 0}))
    with pytest.raises(ConfigError, match="not empty"):
        simulate(load(exp), out=tmp_path)


def test_documents_are_equal_when_their_fields_are() -> None:
    assert Document({"a": {"b": [{"c": 1}]}}) == Document({"a": {"b": [{"c": 1}]}})
    assert Document({"a": {"b": [{"c": 1}]}}).a.b[0].c == 1
    assert Document({"a": 1}) != Document({"a": 2})


def test_the_package_offers_four_functions_however_often_one_asks() -> None:
    """A module of the same name would take the function's place once it is imported."""
    assert sorted(peer.__all__) == ["explain", "load", "simulate", "up"]
    for name in peer.__all__ * 2:
        assert callable(getattr(peer, name))
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        _ = peer.train


# ---- The fixture


def test_the_fixture_is_there_and_learns(earshot: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "digits.toml"
    path.write_text('rounds = 200\n[task]\nmodel = "softmax"\n[topology]\npeers = 4')
    summary = earshot.simulate(earshot.load(path, {"rounds": 30}))
    assert summary.accuracy.mean > 0.7
    assert summary.accuracy.min > 0.7
    assert earshot.explain(earshot.load(path)).parameters == 7850


# ---- Daemons from a script


@pytest.fixture
def busy() -> Iterator[threading.Thread]:
    """A thread of this process, which would make a fork of it unsafe."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield thread
    done.set()
    thread.join()


def test_up_from_a_process_with_threads(busy: threading.Thread, tmp_path: Path) -> None:
    """Relative paths are the experiment's, and the daemons do what the events engine does, to the bit."""
    (tmp_path / "ring.edges").write_text("0 1\n1 2\n2 3\n3 0\n")
    tables = {"topology": {"family": "file:ring.edges"}, **inline(FOUR_SHARDS, [1.5])}
    e = from_dict({"rounds": 20, "record": {"params": "every"}, **tables}, folder=tmp_path)
    summary = up(e, out=tmp_path / "out")
    assert busy.is_alive()
    assert (summary.outcome, summary.engine, summary.rounds, summary.lost) == ("finished", "daemons", 20, [])
    assert summary.payload_bytes_sent == 20 * 8 * 8
    assert summary.wire_bytes_sent > summary.payload_bytes_sent
    assert summary.run_folder == str(tmp_path / "out")
    assert [entry.round for entry in summary.history] == [0, 10, 20]
    assert weights(summary) == weights(simulate(e, engine="events"))
    if summary.short_rounds == 0:
        assert summary.gradients == 80


def test_up_raises_what_is_wrong(exp: Path) -> None:
    with pytest.raises(ConfigError, match=r"^topology\.threshold: at 0 the peers fall apart"):
        up(load(exp, {"topology.threshold": 0}))
