"""What a run tells of itself: summary, history, metrics, run folder."""

import json
from datetime import UTC, datetime
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer import record, ways
from peer.errors import ConfigError
from peer.experiment import Experiment, from_dict, load
from peer.record import Ended, PeerScore, consensus_distance, finite, history_entry, make_run_folder, spread, summarise
from peer.ways import Options
from tests.commands import inline

SHARDS = [[[[1.0], 3.0]], [[[2.0], 5.0]], [[[3.0], 7.0]], [[[4.0], 9.0]]]

SUMMARY_KEYS = [
    *("name", "engine", "step", "peers", "rounds", "seconds", "rounds_seconds", "simulated_seconds"),
    *("accuracy", "loss", "consensus_distance", "payload_bytes_sent", "wire_bytes_sent", "short_rounds", "lost"),
    *("outcome", "diverged", "gradients", "history", "run_folder"),
]


def experiment(**changes: Any) -> Experiment:
    """Four peers on a ring, one number each; 25 rounds."""
    task = dict(inline(SHARDS, [1.5])["task"]) | changes.pop("task", {})  # type: ignore[call-overload]
    return from_dict({"rounds": 25, "task": task, **changes})


def run(experiment: Experiment, engine: ways.Engine = "rounds", **options: Any) -> dict[str, Any]:
    return ways.simulate(experiment, engine, Options(**{"writes": False, **options})).summary


def numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers(item)]
    if isinstance(value, list | tuple):
        return [n for item in value for n in numbers(item)]
    return [value] if isinstance(value, float) else []


# ---- Figures by hand


def test_consensus_distance_by_hand() -> None:
    # The mean of (0, 0), (2, 0), (4, 6) is (2, 2); the squared distances to it are 8, 4 and 20.
    assert consensus_distance(np.array([[0.0, 0.0], [2.0, 0.0], [4.0, 6.0]])) == pytest.approx(32 / 3)
    assert consensus_distance(np.array([[5.0, -3.0]])) == 0.0
    assert consensus_distance(np.full((4, 3), 0.1, dtype=np.float32)) == pytest.approx(0.0, abs=1e-15)


def test_consensus_distance_of_float32_is_computed_in_float64() -> None:
    x = np.array([[2.0**24], [2.0**24 + 2]], dtype=np.float32)
    assert consensus_distance(x) == 1.0


@pytest.mark.parametrize("far", [nan, inf, 1e300])
def test_a_distance_that_is_not_finite_is_null(far: float) -> None:
    assert finite(consensus_distance(np.array([[far], [0.0]]))) is None


def test_spread() -> None:
    assert spread([1.0, 2.0, 6.0]) == {"mean": 3.0, "min": 1.0, "max": 6.0}
    nothing = {"mean": None, "min": None, "max": None}
    assert spread([]) == spread([1.0, None]) == spread([1.0, nan]) == spread([inf, 1.0]) == nothing


def test_own_figures_have_names_of_their_own() -> None:
    common = PeerScore(loss=1.0, accuracy=0.5, rows=10)
    both = PeerScore(loss=1.0, accuracy=0.5, rows=10, own_loss=2.0, own_accuracy=0.25, own_rows=4)
    assert set(history_entry(0, [common], 0.0)) == {"round", "accuracy", "loss", "consensus_distance"}
    entry = history_entry(0, [both, both], 0.0)
    assert (entry["accuracy"]["mean"], entry["own_accuracy"]["mean"]) == (0.5, 0.25)
    assert (entry["loss"]["max"], entry["own_loss"]["max"]) == (1.0, 2.0)


# ---- Summaries


@pytest.mark.parametrize("engine", ["rounds", "events"])
def test_a_summary_has_exactly_the_keys_of_the_contract(engine: ways.Engine) -> None:
    summary = run(experiment(), engine)
    of_events = ["events", "event_hash"] if engine == "events" else []
    before = SUMMARY_KEYS.index("history")
    assert list(summary) == [*SUMMARY_KEYS[:before], *of_events, *SUMMARY_KEYS[before:]]
    assert summary["engine"] == engine
    assert summary["step"] in ("plain", "vmap")
    assert (summary["name"], summary["peers"], summary["rounds"]) == ("experiment", 4, 25)
    assert summary["outcome"] == "finished"
    assert summary["diverged"] is None
    assert summary["gradients"] == 4 * 25
    assert summary["payload_bytes_sent"] == 25 * 8 * 8  # 8 arcs, one float64 each
    assert summary["wire_bytes_sent"] is None
    assert (summary["simulated_seconds"] is None) == (engine == "rounds")
    assert (summary["short_rounds"], summary["lost"], summary["run_folder"]) == (0, [], None)
    assert 0 <= summary["rounds_seconds"] <= summary["seconds"]
    assert summary["accuracy"] == {"mean": None, "min": None, "max": None}, "a regression has none"


def test_the_figures_are_those_of_the_last_evaluation() -> None:
    summary = run(experiment())
    last = summary["history"][-1]
    assert last["round"] == 25
    for name in ("loss", "consensus_distance"):
        assert summary[name] == last[name]


def test_params_are_in_the_summary_when_asked_for() -> None:
    final = run(experiment(record={"params": "final"}))
    every = run(experiment(record={"params": "every"}))
    assert np.shape(final["params"]) == (4, 1)
    assert all("params" not in entry for entry in final["history"])
    assert every["history"][0]["params"] == [[1.5]] * 4
    assert every["history"][-1]["params"] == every["params"] == final["params"]


@pytest.mark.parametrize("engine", ["rounds", "events"])
@pytest.mark.parametrize(
    ("rounds", "eval_every", "kept"),
    [
        (25, 10, [0, 10, 20, 25]),
        (20, 10, [0, 10, 20]),
        (3, 10, [0, 3]),
        (3, 1, [0, 1, 2, 3]),
    ],
)
def test_history_rounds(engine: ways.Engine, rounds: int, eval_every: int, kept: list[int]) -> None:
    summary = run(experiment(rounds=rounds, eval_every=eval_every), engine)
    assert [entry["round"] for entry in summary["history"]] == kept


def test_consensus_distance_of_a_run_by_hand() -> None:
    pair = {"data": "none", "init": [[0.0], [4.0]], "lr": 0.0, "dtype": "float64"}
    lazy = {"family": "path", "weights": "lazy"}  # W = [[3/4, 1/4], [1/4, 3/4]] halves the difference
    summary = run(from_dict({"rounds": 3, "eval_every": 1, "task": pair, "topology": lazy}))
    assert [entry["consensus_distance"] for entry in summary["history"]] == [4.0, 1.0, 0.25, 0.0625]
    assert summary["gradients"] == 0


@pytest.mark.parametrize("engine", ["rounds", "events"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_run_that_leaves_float64_has_nulls_and_no_nan(engine: ways.Engine) -> None:
    far = experiment(
        rounds=150, task={"lr": 1e3}, record={"on_divergence": "continue", "params": "every"}, eval_every=50
    )
    summary = run(far, engine)
    assert (summary["outcome"], summary["rounds"]) == ("diverged", 150)
    assert summary["diverged"]["round"] <= 3
    assert np.isfinite(numbers(summary)).all()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["loss"] == {"mean": None, "min": None, "max": None}
    assert summary["consensus_distance"] is None
    assert summary["params"] == [[None]] * 4
    assert [entry["round"] for entry in summary["history"]] == [0, 50, 100, 150]


def test_a_diverged_run_stops_and_names_round_and_peer(tmp_path: Path) -> None:
    summary = run(experiment(rounds=400, task={"lr": 1e3}, eval_every=1), out=tmp_path / "out")
    assert summary["outcome"] == "diverged"
    assert summary["rounds"] == summary["diverged"]["round"]
    assert summary["diverged"]["peer"] in {f"peer-{i}" for i in range(4)}
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    looks = iter(range(1000))
    result = ways.simulate(experiment(rounds=0), "rounds", Options(lambda: next(looks) > 40, out=tmp_path / "out"))
    assert result.exit_code == 130
    assert result.summary["outcome"] == "interrupted"
    assert result.summary["rounds"] > 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["outcome"] == "interrupted"


@pytest.mark.parametrize(
    ("outcome", "code"), [("finished", 0), ("interrupted", 130), ("diverged", 3), ("alone", 3), ("failed", 3)]
)
def test_exit_codes(outcome: Any, code: int) -> None:
    ended = Ended("daemons", "plain", 2, outcome, why="peer-0 never heard a neighbour")
    summary = summarise(experiment(), ended, 1.0, None)
    assert ways.Result(summary).exit_code == code
    assert summary["why"] == "peer-0 never heard a neighbour"
    assert summary["loss"]["mean"] is None, "there may be no evaluation at all"


# ---- Run folders


def test_a_run_folder_holds_the_contracts_files(tmp_path: Path) -> None:
    e = experiment(name="a name, é", record={"params": "final"})
    summary = run(e, out=tmp_path / "new" / "out")
    folder = tmp_path / "new" / "out"
    assert summary["run_folder"] == str(folder)
    files = {file.name for file in folder.iterdir()}
    assert files - {"peers"} == {"experiment.toml", "metrics.jsonl", "events.jsonl", "summary.json"}
    assert load(folder / "experiment.toml") == e
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == summary
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["round"], row["peer"]) for row in metrics] == [
        (round, f"peer-{i}") for round in (0, 10, 20, 25) for i in range(4)
    ]
    for row in metrics:
        assert set(row) == {"round", "peer", "accuracy", "loss", "rows", "seconds", "payload_bytes_sent"}
    last = [row["loss"] for row in metrics[-4:]]
    assert (min(last), max(last)) == (summary["loss"]["min"], summary["loss"]["max"])


def test_events_are_lines_with_a_time(tmp_path: Path) -> None:
    folder = make_run_folder(Experiment(), tmp_path / "out")
    folder.event("lost", peer="peer-1", exit_code=-9)
    folder.finish({"outcome": "finished"})
    event = json.loads((tmp_path / "out" / "events.jsonl").read_text())
    assert datetime.fromisoformat(event.pop("at")).tzinfo is not None
    assert event == {"event": "lost", "peer": "peer-1", "exit_code": -9}


def test_what_is_written_is_there_before_the_run_ends(tmp_path: Path) -> None:
    folder = make_run_folder(Experiment(), tmp_path / "out")
    folder.metric({"round": 0, "peer": "peer-0"})
    folder.event("alert", text="é")
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 1
    assert "alert" in (tmp_path / "out" / "events.jsonl").read_text()
    folder.finish({})


def test_folders_of_the_same_second_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record, "utc_now", lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    e = experiment(name="digits")
    made = [make_run_folder(e, None).path for _ in range(3)]
    assert made == [Path(f"runs/digits-20260102T030405Z{n}") for n in ("", "-2", "-3")]
    assert all(path.is_dir() for path in made)


def test_an_empty_folder_is_taken_and_one_that_is_not_is_left_alone(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    make_run_folder(Experiment(), empty).finish({})
    full.mkdir()
    (full / "thesis.txt").write_text("all of it")
    with pytest.raises(ConfigError, match="not empty"):
        make_run_folder(Experiment(), full)
    assert [file.name for file in full.iterdir()] == ["thesis.txt"]


def test_nothing_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(experiment())
    assert not list(tmp_path.iterdir())


def test_nan_never_reaches_a_file(tmp_path: Path) -> None:
    folder = make_run_folder(Experiment(), tmp_path / "out")
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.metric({"loss": nan})
    folder.finish({})
