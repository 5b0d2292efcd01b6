"""From the [topology] table to the peers: their names and number, what may fall apart, and the rule behind W."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import topology
from peer.assembly import assemble, prepare_task
from peer.assembly.ground import LOOKED_AT_ROUNDS, Ground, ground_of
from peer.errors import ConfigError
from peer.experiment import Experiment, from_dict


def experiment(tables: dict[str, Any] | None = None, *, folder: Path = Path(), **topology: Any) -> Experiment:
    task = {"data": "none", "init": [1.0]}
    return from_dict({"task": task, "topology": topology, **(tables or {})}, folder=folder)


def ground(tables: dict[str, Any] | None = None, *, folder: Path = Path(), **topology: Any) -> Ground:
    return ground_of(experiment(tables, folder=folder, **topology))


def refusal(tables: dict[str, Any] | None = None, *, folder: Path = Path(), **topology: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        ground(tables, folder=folder, **topology)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def machines(*names: str, **positions: list[float]) -> dict[str, Any]:
    return {"peers": [{"name": name} for name in names] or [{"name": n, "position": p} for n, p in positions.items()]}


def dense(found: Ground, round: int = 0) -> np.ndarray:
    return np.asarray(found.matrix(round).toarray())


SCHEDULES: dict[str, dict[str, Any]] = {
    "one_peer_exponential": {},
    "base_k": {"k": 2},
    "random_matching": {},
    "epidemic": {"fanout": 2},
    "mobile": {"threshold": 0.5},
}


def test_these_are_all_the_families_that_change() -> None:
    assert tuple(SCHEDULES) == topology.SCHEDULES


# ---- Names and counts


@pytest.mark.parametrize("family", ["ring", *SCHEDULES])
def test_names_and_number_of_peers(family: str) -> None:
    keys = {"family": family, **SCHEDULES.get(family, {})}
    assert ground(**keys).names == tuple(f"peer-{i}" for i in range(topology.DEFAULT_PEERS))
    assert len(ground(**keys, peers=5).names) == ground(**keys, peers=5).schedule.peers == 5
    assert ground(machines("lab", "attic", "bus"), **keys).names == ("lab", "attic", "bus")
    nested = {"task": {"data": "none", "init": [[1.0], [2.0], [3.0], [4.0]]}}
    assert len(ground(nested, **keys).names) == 4
    assert refusal(machines("a", "b"), **keys, peers=3).startswith("topology.peers = 3, but [[peers]] has 2")


def test_a_graph_file_gives_the_number_of_peers_and_the_names(tmp_path: Path) -> None:
    (tmp_path / "five.edges").write_text("0 1\n1 2\n2 3\n3 4\n")
    (tmp_path / "named.edges").write_text("lab attic\nattic bus\n")
    assert len(ground(family="file:five.edges", folder=tmp_path).names) == 5
    named = ground(family="file:named.edges", folder=tmp_path)
    assert named.names == ("lab", "attic", "bus")
    assert refusal(family="file:five.edges", peers=4, folder=tmp_path).startswith("topology.peers: peers = 4, but ")
    by_entries = refusal(machines(a=[0.0, 0.0], b=[1.0, 0.0]), family="file:five.edges", folder=tmp_path)
    assert by_entries == "[[peers]] has 2, but file:five.edges has 5"


def test_entries_may_stand_in_another_order_than_the_names_of_the_graph(tmp_path: Path) -> None:
    """Each keeps its place: positions go by name, not by the order of [[peers]]."""
    (tmp_path / "named.edges").write_text("lab attic\nattic bus\n")
    tables = machines(bus=[2.0, 0.0], lab=[0.0, 0.0], attic=[1.0, 0.0])
    found = ground(tables, family="file:named.edges", metric="position", threshold=1.5, folder=tmp_path)
    assert found.names == ("lab", "attic", "bus")
    assert found.positions is not None
    assert found.positions.tolist() == [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    assert sorted(found.graph.edges) == [(0, 1), (1, 2)]


def test_each_has_its_own_data_whatever_the_order_of_entries(tmp_path: Path) -> None:
    (tmp_path / "named.edges").write_text("lab attic\nattic bus\n")
    for label, name in enumerate(("lab", "attic", "bus")):
        np.savez(tmp_path / f"{name}.npz", x=np.full((2, 3), float(label)), y=np.array([label, label]))
    np.savez(tmp_path / "common.npz", x=np.zeros((3, 3)), y=np.arange(3))
    tables = {
        "task": {"model": "softmax", "data": "npz:common.npz", "partition": "own"},
        "peers": [{"name": name, "data": f"npz:{name}.npz"} for name in ("bus", "lab", "attic")],
        "topology": {"family": "file:named.edges"},
    }
    assembly = assemble(from_dict(tables, folder=tmp_path))
    assert assembly.names == ("lab", "attic", "bus")
    own = prepare_task(assembly).own
    assert own is not None
    assert [int(data.y[0]) for data in own if data is not None] == [0, 1, 2]


def test_names_in_entries_and_graph_that_differ_are_listed(tmp_path: Path) -> None:
    (tmp_path / "named.edges").write_text("lab attic\n")
    found = refusal(machines("lab", "bus"), family="file:named.edges", folder=tmp_path)
    assert found == "peers: the names in [[peers]] and in the graph differ: attic, bus"


@pytest.mark.parametrize("name", ["../../evil", "a/b", "..", "x" * 65])
def test_a_name_from_a_graph_must_do_for_a_folder(tmp_path: Path, name: str) -> None:
    """It names the folder of the peer's model, which is not to lie outside that of the run."""
    (tmp_path / "named.edges").write_text(f"{name} b\n")
    assert refusal(family="file:named.edges", folder=tmp_path).startswith("topology.family: the node's name ")


def test_a_count_that_a_family_cannot_have_blames_the_key_that_gives_it() -> None:
    nested = {"task": {"data": "none", "init": [[1.0], [2.0], [3.0]]}}
    assert refusal(nested, family="hypercube").startswith("task.init: gives 3 peers, but peers = 3: a hypercube has")
    among = refusal(nested, family="random_matching", among="hypercube")
    assert among.startswith("task.init: gives 3 peers, but peers = 3: a hypercube has a power of two")


# ---- Matchings along the edges of a graph


def test_the_graph_among_which_peers_are_matched_gives_their_number(tmp_path: Path) -> None:
    (tmp_path / "path.edges").write_text("0 1\n1 2\n2 3\n")
    found = ground(family="random_matching", among="file:path.edges", folder=tmp_path)
    assert len(found.names) == 4
    assert set(found.graph.edges) == {(0, 1), (1, 2), (2, 3)}, "over 200 rounds each edge has had its turn"
    by_entries = refusal(machines("a", "b"), family="random_matching", among="file:path.edges", folder=tmp_path)
    assert by_entries == "[[peers]] has 2, but file:path.edges has 4"
    assert set(ground(family="random_matching", among="star", peers=5).graph.edges) == {(0, i) for i in range(1, 5)}


def test_among_all_is_among_none_in_particular() -> None:
    stated = ground(family="random_matching", peers=6, among="complete")
    left_out = ground(family="random_matching", peers=6)
    for round in range(20):
        assert (dense(stated, round) == dense(left_out, round)).all()


# ---- Falling apart


def test_components_are_named_with_what_would_connect_them() -> None:
    tables = machines(a=[0.0, 0.0], b=[1.0, 0.0], c=[5.0, 0.0], d=[6.0, 0.0])
    assert refusal(tables, family="geometric", threshold=2) == (
        "topology.threshold: at 2 the peers fall apart into 2 components: {a, b}; {c, d}. 4 would connect them, or set "
        "topology.allow_disconnected = true"
    )
    allowed = ground(tables, family="geometric", threshold=2, allow_disconnected=True)
    assert topology.components(allowed.graph) == [[0, 1], [2, 3]]


def test_many_components_are_cut_and_so_are_long_ones(tmp_path: Path) -> None:
    alone = "; ".join(f"{{peer-{i}}}" for i in range(8))
    found = refusal(family="ring", peers=20, threshold=0)
    assert found.startswith(f"topology.threshold: at 0 the peers fall apart into 20 components: {alone}; and 12 more. ")
    (tmp_path / "long.edges").write_text("10\n" + "".join(f"{i} {i + 1}\n" for i in range(8)))
    found = refusal(family="file:long.edges", folder=tmp_path)
    assert "{peer-0, peer-1, peer-2, peer-3, peer-4, peer-5, and 3 more}; {peer-9}" in found


@pytest.mark.parametrize(
    ("arcs", "says", "misses"),
    [("a b\nb c\nc b\n", "b", "a"), ("b a\nc b\nb c\n", "a", "b"), ("a b\nb c\nc d\nd c\nb a\n", "c", "a")],
)
def test_arcs_that_lead_nowhere_are_named(tmp_path: Path, arcs: str, says: str, misses: str) -> None:
    (tmp_path / "arcs.edges").write_text(arcs)
    found = refusal(family="file:arcs.edges", directed=True, folder=tmp_path)
    assert found == (
        f"topology.family: what {says} says never reaches {misses} along the arcs; set topology.allow_disconnected = "
        "true if that is meant"
    )
    allowed = ground(family="file:arcs.edges", directed=True, allow_disconnected=True, folder=tmp_path)
    assert not topology.is_connected(allowed.graph)


def test_peers_that_are_matched_among_a_graph_that_falls_apart(tmp_path: Path) -> None:
    (tmp_path / "apart.edges").write_text("0 1\n2 3\n")
    keys: dict[str, Any] = {"family": "random_matching", "among": "file:apart.edges"}
    found = refusal(**keys, folder=tmp_path)
    assert "topology.among: the peers fall apart into 2 components: {peer-0, peer-1}; {peer-2, peer-3}" in found
    assert len(ground(**keys, allow_disconnected=True, folder=tmp_path).names) == 4


def test_candidates_of_models_that_fall_apart_are_named_without_a_threshold(tmp_path: Path) -> None:
    (tmp_path / "apart.edges").write_text("0 1\n2 3\n")
    found = refusal(family="file:apart.edges", metric="model", threshold=9, folder=tmp_path)
    assert found.startswith("topology.family: the peers fall apart into 2 components")


@pytest.mark.parametrize("algorithm", [{"name": "local"}, {"name": "exact"}, {"name": "diloco"}])
def test_who_does_not_use_the_topology_does_not_mind(algorithm: dict[str, Any]) -> None:
    assert ground({"algorithm": algorithm}, threshold=0).graph.number_of_edges() == 0
    if algorithm["name"] == "diloco":
        among = {"algorithm": {**algorithm, "among": "neighbours"}}
        assert refusal(among, threshold=0).startswith("topology.threshold: at 0 the peers fall apart")


def test_walking_peers_may_be_apart_for_ever() -> None:
    found = ground(family="mobile", peers=12, threshold=0.01, speed=0.0)
    assert len(topology.components(found.graph)) > 1


# ---- What a schedule comes to


@pytest.mark.parametrize("family", SCHEDULES)
def test_the_graph_is_who_ever_hears_whom(family: str) -> None:
    found = ground(family=family, peers=6, **SCHEDULES[family])
    seen: set[tuple[int, int]] = set()
    for round in found.rounds_seen:
        receivers, senders = np.nonzero(dense(found, round) - np.diag(np.diag(dense(found, round))))
        seen |= set(zip(senders.tolist(), receivers.tolist(), strict=True))
    arcs = found.graph if found.graph.is_directed() else found.graph.to_directed()
    assert set(arcs.edges) == seen
    assert len(found.rounds_seen) == (found.period or LOOKED_AT_ROUNDS)


def test_the_seed_is_the_experiments_unless_the_topology_has_its_own() -> None:
    keys: dict[str, Any] = {"family": "random_matching", "peers": 8}
    by_experiment, own = ground({"seed": 5}, **keys), ground({"seed": 1}, **keys, seed=5)
    other = ground({"seed": 6}, **keys)
    rounds = range(10)
    assert all((dense(by_experiment, t) == dense(own, t)).all() for t in rounds)
    assert any((dense(by_experiment, t) != dense(other, t)).any() for t in rounds)


RULES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "dpsgd", "metropolis"),
    ({"weights": "lazy"}, "dpsgd", "lazy"),
    ({"family": "exponential"}, "dpsgd", "uniform"),
    ({"family": "exponential"}, "push_sum", "push"),
    ({"family": "exponential", "weights": "uniform"}, "push_sum", "uniform"),
    ({"family": "ring"}, "push_sum", "metropolis"),
    ({"family": "file:arcs.edges", "directed": True}, "push_sum", "push"),
    ({"family": "file:w.npy"}, "push_sum", "file"),
    ({"family": "file:w.npy"}, "dpsgd", "file"),
    ({"family": "file:w.npy", "weights": "metropolis"}, "dpsgd", "metropolis"),
    ({"family": "file:w.npy", "threshold": 2}, "dpsgd", "metropolis"),
    ({"family": "one_peer_exponential"}, "dpsgd", "own"),
    ({"family": "one_peer_exponential"}, "push_sum", "own"),
    ({"family": "one_peer_exponential", "weights": "push"}, "push_sum", "push"),
    ({"family": "epidemic"}, "push_sum", "own"),
    ({"family": "epidemic", "variant": "local"}, "dpsgd", "own"),
    ({"family": "epidemic", "variant": "local"}, "push_sum", "push"),
    ({"family": "mobile", "threshold": 0.5}, "push_sum", "metropolis"),
    ({"family": "mobile", "threshold": 0.5, "weights": "push"}, "push_sum", "push"),
    ({"family": "mobile", "threshold": 0.5, "weights": "uniform"}, "dpsgd", "uniform"),
]


@pytest.mark.parametrize(("keys", "algorithm", "rule"), RULES)
def test_the_rule_behind_w(tmp_path: Path, keys: dict[str, Any], algorithm: str, rule: str) -> None:
    """Push-sum needs columns that sum to 1, and gets them wherever they are not stated otherwise."""
    (tmp_path / "arcs.edges").write_text("0 1\n1 2\n2 0\n0 2\n")
    np.save(tmp_path / "w.npy", [[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]])
    found = ground({"algorithm": {"name": algorithm}}, folder=tmp_path, **keys)
    assert found.rule == rule
    columns, rows = np.abs(dense(found).sum(axis=0) - 1).max(), np.abs(dense(found).sum(axis=1) - 1).max()
    assert (columns if rule == "push" else rows) < 1e-12
    if algorithm == "push_sum" and keys.get("weights") != "uniform":
        assert columns < 1e-12


def test_auto_weights_of_push_sum_are_one_part_for_each_listener(tmp_path: Path) -> None:
    (tmp_path / "arcs.edges").write_text("0 1\n1 2\n2 0\n0 2\n")
    tables = {"algorithm": {"name": "push_sum"}}
    found = ground(tables, family="file:arcs.edges", directed=True, folder=tmp_path)
    np.testing.assert_allclose(dense(found), [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]], rtol=1e-15)


# ---- Where peers stand


def test_walking_peers_start_where_their_entries_say() -> None:
    tables = machines(a=[0.0, 0.0], b=[0.1, 0.0], c=[1.0, 1.0])
    found = ground(tables, family="mobile", threshold=0.2, speed=0.0)
    assert found.names == ("a", "b", "c")
    assert found.positions is not None
    assert found.positions.tolist() == [[0.0, 0.0], [0.1, 0.0], [1.0, 1.0]]
    assert set(found.graph.edges) == {(0, 1)}


def test_walking_peers_stay_in_the_unit_square() -> None:
    outside = machines(a=[0.0, 0.0], b=[1.5, 0.0])
    found = refusal(outside, family="mobile", threshold=0.2)
    assert found.startswith("peers.1.position: [1.5, 0.0] is outside the unit square, in which mobile peers walk")


@pytest.mark.parametrize("family", [family for family in SCHEDULES if family != "mobile"])
def test_elsewhere_positions_are_of_no_account(family: str) -> None:
    keys = {"family": family, **SCHEDULES[family]}
    far_away = ground(machines(a=[7.0, 0.0], b=[9.0, 0.0], c=[8.0, 0.0]), **keys)
    assert far_away.names == ("a", "b", "c")
    assert (dense(far_away) == dense(ground(**keys, peers=3))).all()


def test_a_generator_that_brings_positions_keeps_them_unless_entries_say_otherwise() -> None:
    keys: dict[str, Any] = {"family": "networkx:random_geometric_graph", "args": {"n": 3, "radius": 2.0}}
    own = ground(**keys)
    assert own.positions is not None
    assert own.positions.shape == (3, 2)
    moved = ground(machines(a=[0.0, 0.0], b=[1.0, 0.0], c=[2.0, 0.0]), **keys)
    assert moved.positions is not None
    assert moved.positions.tolist() == [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]


def test_graphml_names_that_look_like_numbers_keep_their_order(tmp_path: Path) -> None:
    graph = nx.path_graph([str(i) for i in range(12)])
    nx.write_graphml(graph, tmp_path / "twelve.graphml")
    found = ground(family="file:twelve.graphml", folder=tmp_path)
    assert found.names == tuple(str(i) for i in range(12))
    assert json.loads(json.dumps(found.names)) == [str(i) for i in range(12)]
