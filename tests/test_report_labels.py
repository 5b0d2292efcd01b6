"""What runs are called beside each other: in few words, by what has an effect in them."""

from pathlib import Path
from typing import Any

import pytest

from peer.experiment import from_dict
from peer.report.captions import rounds_apart
from peer.report.effects import effective
from peer.report.labels import LONGEST, SHOWN, differing, kind_of, labels_of
from peer.report.look import plain
from peer.report.runs import Recorded


def run(folder: str = "a", engine: str = "events", **tables: Any) -> Recorded:
    """A run of four peers, as far as labels go."""
    e = from_dict({"topology": {"peers": 4}} | tables)
    return Recorded(Path("runs") / folder, e, {"name": e.name, "engine": engine})


def on(family: str, **more: Any) -> dict[str, Any]:
    return {"topology": {"peers": 4, "family": family}} | more


def beside(mode: str, **keys: Any) -> dict[str, Any]:
    return {"coordinator": {"mode": mode} | keys}


KINDS: list[tuple[dict[str, Any], str]] = [
    (on("ring"), "ring gossip"),
    (on("exponential"), "exponential gossip"),
    (on("ring", algorithm={"mode": "async"}), "ring async gossip"),
    (on("ring", algorithm={"name": "adpsgd"}), "ring adpsgd"),
    (on("ring", algorithm={"name": "exact"}), "exact"),
    (on("ring", algorithm={"name": "own.rules:mine"}), "ring mine"),
    (on("file:some/four.edges"), "four.edges gossip"),
    (beside("sync"), "sync"),
    (beside("async"), "async"),
    (beside("quorum"), "quorum"),
    (beside("buffered"), "buffered"),
    (beside("ring"), "ring all-reduce"),
    (beside("sync") | {"algorithm": {"name": "easgd"}}, "easgd"),
    (beside("async") | {"algorithm": {"name": "easgd"}}, "easgd async"),
]


@pytest.mark.parametrize(("tables", "said"), KINDS)
def test_a_run_is_called_what_it_is(tables: dict[str, Any], said: str) -> None:
    assert kind_of(run(**tables).experiment) == said


def test_runs_of_different_kinds_are_called_by_their_kinds() -> None:
    runs = [run(str(i), **tables) for i, (tables, _) in enumerate(KINDS)]
    assert labels_of(runs) == [said for _, said in KINDS]


@pytest.mark.parametrize(
    ("one", "other", "labels"),
    [
        (beside("sync"), beside("sync", servers=4), ["servers 1", "servers 4"]),
        (beside("async"), beside("async", staleness="inverse"), ["constant", "inverse"]),
        (beside("buffered"), beside("buffered", buffer=4), ["buffer 10", "buffer 4"]),
        ({"task": {"lr": 0.1}}, {"task": {"lr": 0.3}}, ["lr 0.1", "lr 0.3"]),
        ({"seed": 1}, {"seed": 2}, ["seed 1", "seed 2"]),
        ({"network": {"loss": 0.1}}, {}, ["loss 0.1", "loss 0.0"]),
        ({"compression": {"name": "fp16"}} | beside("sync"), beside("sync"), ["fp16", "compression.name none"]),
        (on("ring", algorithm={"name": "d2"}), on("ring"), ["d2", "gossip"]),
        (on("star"), on("ring"), ["star gossip", "ring gossip"]),
    ],
)
def test_runs_of_one_kind_are_told_apart_by_what_differs(
    one: dict[str, Any], other: dict[str, Any], labels: list[str]
) -> None:
    assert labels_of([run("a", **one), run("b", **other)]) == labels


def test_what_differs_within_a_kind_stands_behind_the_kind() -> None:
    runs = [run("a", **beside("sync")), run("b", **beside("sync", servers=4)), run("c", **on("ring"))]
    assert labels_of(runs) == ["sync, servers 1", "sync, servers 4", "ring gossip"]


def test_beside_runs_of_another_name_the_name_stands_before() -> None:
    runs = [run("a", **beside("sync")), run("b", **on("ring")), run("c", name="other")]
    assert labels_of(runs) == ["experiment: sync", "experiment: ring gossip", "other"]


def test_a_run_whose_label_would_be_long_is_called_after_its_folder() -> None:
    shards = {"data": "inline", "model": "linear", "shards": [[[[1.0], 3.0]]] * 4}
    runs = [run(name, task=shards | {"init": [float(i) / 3]}) for i, name in enumerate(("left", "right"))]
    assert all(len(label) <= LONGEST for label in labels_of(runs))
    long = [run(name, faults={"schedule": [{"at_s": i, "kill": "peer-1"}]}) for i, name in enumerate(("few", "many"))]
    assert labels_of(long) == ["few", "many"]


def test_runs_of_one_experiment_are_told_apart_by_engine_or_folder() -> None:
    runs = [run("line"), run("other", "daemons"), run("third", "rounds"), run("again")]
    assert labels_of(runs) == ["events, line", "daemons", "rounds", "events, again"]


def test_no_two_labels_are_alike() -> None:
    assert labels_of([run("x/line"), run("y/line")]) == ["experiment #1", "experiment #2"]


def test_long_names_keep_what_differs() -> None:
    runs = [run(f"{'night ' * 20}{which}") for which in ("with", "without")]
    labels = labels_of(runs)
    assert [label.split()[-1] for label in labels] == ["with", "without"]
    assert all(label.startswith("night ") and len(label) <= SHOWN and plain(label) == label for label in labels)


# ---- Which keys count


def test_keys_without_an_effect_are_no_difference() -> None:
    found = differing([run(**beside("quorum")), run(**beside("buffered")), run()])
    assert found["coordinator.quorum"] == ["0.8", "", ""]
    assert found["coordinator.buffer"] == ["", "10", ""]
    assert found["topology.family"] == ["", "", '"ring"']
    assert found["algorithm.name"] == ["", "", '"dpsgd"']
    assert set(found) == {"coordinator.mode", "coordinator.quorum", "coordinator.buffer", *FAMILY}


FAMILY = ("topology.family", "algorithm.name")


def test_the_topology_has_no_effect_beside_a_coordinator() -> None:
    assert differing([run(**on("ring"), **beside("sync")), run(**on("star"), **beside("sync"))]) == {}


@pytest.mark.parametrize(("engine", "differs"), [("events", True), ("rounds", False), ("daemons", False)])
def test_the_virtual_world_has_an_effect_in_the_events_engine_alone(engine: str, differs: bool) -> None:
    runs = [run(engine=engine, network={"latency_ms": latency_ms}) for latency_ms in (1.0, 2.0)]
    assert bool(differing(runs)) == differs


@pytest.mark.parametrize(
    ("tables", "key", "counts"),
    [
        ({}, "coordinator.name", False),
        ({}, "coordinator.mode", True),
        (beside("ring"), "coordinator.name", False),
        (beside("ring"), "coordinator.engine", True),
        (beside("ring"), "algorithm.name", False),
        (beside("sync"), "algorithm.name", False),
        (beside("sync"), "topology.peers", True),
        (beside("sync"), "coordinator.fraction", True),
        (beside("sync"), "coordinator.beta1", False),
        (beside("sync", server_optimizer="adam"), "coordinator.beta1", True),
        (beside("async"), "coordinator.delay", False),
        (beside("async", arrival="round_robin"), "coordinator.delay", True),
        (beside("quorum"), "coordinator.staleness", False),
        (beside("quorum", late="stale"), "coordinator.staleness", True),
        (beside("sync") | {"algorithm": {"name": "easgd"}}, "algorithm.alpha", True),
        (beside("sync") | {"algorithm": {"name": "easgd"}}, "coordinator.server_optimizer", False),
        ({"algorithm": {"name": "local"}}, "topology.family", False),
        ({"algorithm": {"name": "adpsgd"}}, "algorithm.mode", False),
        ({}, "name", False),
    ],
)
def test_a_key_counts_where_something_uses_it(tables: dict[str, Any], key: str, counts: bool) -> None:
    assert (key in effective(run(**tables).experiment, "events")) == counts


# ---- Rounds


def test_the_work_of_a_round_is_said_of_those_that_are_odd() -> None:
    modes = {"sync": {}, "async": {}, "buffered": {"buffer": 4}, "quorum": {"quorum": 3}, "ring": {}}
    named = [(mode, run(**beside(mode, **keys))) for mode, keys in modes.items()]
    (note,) = rounds_apart([*named, ("a tenth", run(**beside("sync", fraction=0.1))), ("gossip", run())])
    assert note.startswith(
        "A round is not the same work everywhere. Of async it is one push. Of buffered it is 4 pushes. Of quorum it is "
        "the first 3 pushes. Of a tenth it is that of a share 0.1 of the peers. Of the others it is that of all peers."
    )
