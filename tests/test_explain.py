"""What an experiment will be, before anything trains: the document, the warnings, and the text for people."""

import json
import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from peer import explanation
from peer.errors import ConfigError
from peer.experiment import from_dict
from peer.explanation import Explanation, explain
from peer.tables import explanation_text, summary_text
from tests.commands import Command, Write

KEYS = [
    *("peers", "edges", "connected", "diameter", "degree", "metric", "threshold", "neighbours", "weights"),
    *("stochastic", "slem", "spectral_gap", "rounds_to_consensus", "parameters", "memory_bytes"),
    *("payload_bytes_per_message", "bytes_per_round", "seconds_per_round"),
]

D = 784 * 10 + 10  # the parameters of softmax on the digits


def explained(topology: Any = (), *, matrix: bool = False, folder: Path = Path(), **tables: Any) -> Explanation:
    tables.setdefault("task", {"model": "softmax"})
    return explain(from_dict({"topology": dict(topology), **tables}, folder=folder), matrix=matrix)


def document(topology: Any = (), **tables: Any) -> dict[str, Any]:
    return explained(topology, **tables).document


def test_a_ring_of_eight() -> None:
    found = document()
    assert list(found) == KEYS
    ring = {f"peer-{i}": sorted((f"peer-{(i - 1) % 8}", f"peer-{(i + 1) % 8}")) for i in range(8)}
    expected = {
        "peers": 8,
        "edges": 8,
        "connected": True,
        "diameter": 4,
        "degree": {"min": 2, "max": 2, "mean": 2.0},
        "metric": "hops",
        "threshold": 1.0,
        "neighbours": ring,
        "weights": "metropolis",
        "stochastic": "doubly",
        "slem": pytest.approx((1 + 2**0.5) / 3, rel=1e-9),  # 1/3 + 2/3 cos(pi/4)
        "spectral_gap": pytest.approx((2 - 2**0.5) / 3, rel=1e-9),
        "rounds_to_consensus": 64,  # ln 1e-6 / ln slem = 63.6
        "parameters": D,
        "memory_bytes": 8 * 5 * 4 * D,  # model, state; gradient, delta, and where they belong
        "payload_bytes_per_message": 4 * D,
        "bytes_per_round": 8 * 2 * 4 * D,
        "seconds_per_round": 1.0,
    }
    assert found == expected


def test_bytes_and_memory_follow_dtype_momentum_and_degree() -> None:
    task = {"model": "softmax", "dtype": "float64", "momentum": 0.9}
    found = document({"family": "star", "peers": 5}, task=task)
    assert found["payload_bytes_per_message"] == 8 * D
    assert found["bytes_per_round"] == 2 * 4 * 8 * D
    assert found["memory_bytes"] == 5 * 6 * 8 * D
    assert document(algorithm={"order": "cta"})["memory_bytes"] == 8 * 6 * 4 * D  # the delta waits in the state


def test_one_peer() -> None:
    found = document({"peers": 1})
    assert (found["edges"], found["connected"], found["diameter"]) == (0, True, 0)
    assert found["degree"] == {"min": 0, "max": 0, "mean": 0.0}
    assert found["neighbours"] == {"peer-0": []}
    assert (found["slem"], found["spectral_gap"], found["rounds_to_consensus"]) == (0.0, 1.0, 1)
    assert found["bytes_per_round"] == 0


def test_two_peers() -> None:
    found = explained({"peers": 2}, matrix=True).document
    assert (found["edges"], found["diameter"]) == (1, 1)
    assert found["matrix"] == [[0.5, 0.5], [0.5, 0.5]]
    assert found["slem"] == pytest.approx(0, abs=1e-12)
    assert found["rounds_to_consensus"] == 1


@pytest.mark.parametrize("threshold", [4, 4.5, float("inf")])
def test_a_threshold_that_makes_everybody_a_neighbour(threshold: float) -> None:
    found = explained({"threshold": threshold}, matrix=True).document
    assert found["edges"] == 8 * 7 // 2
    assert found["diameter"] == 1
    assert found["slem"] == pytest.approx(0, abs=1e-12)
    assert np.allclose(found["matrix"], 1 / 8)
    assert found["bytes_per_round"] == 8 * 7 * 4 * D
    assert json.loads(json.dumps(found, allow_nan=False))["threshold"] in (4, 4.5, None)


def test_a_threshold_of_two_hops() -> None:
    found = document({"threshold": 2})
    assert found["degree"] == {"min": 4, "max": 4, "mean": 4.0}
    assert found["neighbours"]["peer-0"] == ["peer-1", "peer-2", "peer-6", "peer-7"]


def test_local_and_exact_say_what_they_send() -> None:
    local, exact = document(algorithm={"name": "local"}), document(algorithm={"name": "exact"})
    assert local["bytes_per_round"] == 0
    assert exact["bytes_per_round"] == 8 * 7 * 4 * D
    assert local["neighbours"] == exact["neighbours"] == document()["neighbours"], "the topology is shown as it is"
    apart = {"family": "path", "peers": 3, "threshold": 0}
    assert document(apart, algorithm={"name": "local"})["connected"] is False


def test_rounds_of_a_graph_that_stays_follow_from_its_slem() -> None:
    """They are not measured, and so hold for any start: on this one mixing itself would say 264."""
    found = document({"family": "networkx:lollipop_graph", "args": {"m": 4, "n": 5}, "weights": "uniform"})
    assert found["rounds_to_consensus"] == math.ceil(math.log(1e-6) / math.log(found["slem"])) == 282
    star = document({"family": "star", "peers": 4, "weights": "uniform"})
    assert (star["slem"], star["rounds_to_consensus"]) == (pytest.approx(0.5, rel=1e-12), 20)


def test_peers_that_cannot_agree_never_do() -> None:
    found = document({"peers": 2, "threshold": 0, "allow_disconnected": True})
    assert (found["connected"], found["diameter"]) == (False, None)
    assert (found["slem"], found["rounds_to_consensus"]) == (1.0, None)


def test_matrix_is_given_when_asked_for() -> None:
    found = explained({"family": "path", "peers": 3}, matrix=True).document
    assert list(found) == [*KEYS, "matrix"]
    third = 1 / 3
    assert np.allclose(found["matrix"], [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]])
    with pytest.raises(ConfigError, match=r"^--matrix: 2001 x 2001 numbers are too many"):
        explained({"peers": 2001}, matrix=True)


def test_pure_gossip_counts_its_vectors() -> None:
    task = {"data": "none", "init": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "dtype": "float64"}
    found = document({"family": "path"}, task=task)
    assert found["parameters"] == 3
    assert (found["payload_bytes_per_message"], found["bytes_per_round"]) == (24, 48)
    assert found["memory_bytes"] == 2 * 24


def test_arcs_are_heard_from_their_tails(tmp_path: Path) -> None:
    (tmp_path / "arcs.edges").write_text("0 1\n1 2\n2 0\n")
    found = explained({"family": "file:arcs.edges", "directed": True}, folder=tmp_path, matrix=True).document
    assert found["neighbours"] == {"peer-0": ["peer-2"], "peer-1": ["peer-0"], "peer-2": ["peer-1"]}
    assert found["matrix"] == [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]]
    assert (found["weights"], found["stochastic"], found["edges"]) == ("uniform", "doubly", 3)


def test_random_graphs_take_the_experiments_seed_unless_they_have_their_own() -> None:
    regular = {"family": "regular", "peers": 20, "degree": 4}
    by_experiment = document(regular, seed=5)["neighbours"]
    assert by_experiment == document({**regular, "seed": 5})["neighbours"]
    assert by_experiment != document(regular)["neighbours"]


# ---- Topologies that change with the round

SCHEDULES: dict[str, dict[str, Any]] = {
    "one_peer_exponential": {},
    "base_k": {"k": 2},
    "random_matching": {"pairs": 2},
    "epidemic": {"fanout": 2},
    "epidemic, local": {"family": "epidemic", "fanout": 2, "variant": "local"},
    "mobile": {"threshold": 0.4},
}


def rounds_of(found: Explanation) -> list[nx.DiGraph]:
    """Who hears whom in each of the rounds that are looked at: an arc from who speaks to who hears."""
    ground = found.assembly.ground
    graphs = [nx.from_numpy_array(ground.matrix(t).toarray().T, create_using=nx.DiGraph) for t in ground.rounds_seen]
    for graph in graphs:
        graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graphs


@pytest.mark.parametrize("which", SCHEDULES)
def test_the_document_of_a_schedule(which: str) -> None:
    """Against networkx, round by round; a schedule without a period is looked at for 200 rounds."""
    e = explained({"family": which, "peers": 6, **SCHEDULES[which]})
    found, schedule, rounds = e.document, e.document["schedule"], rounds_of(e)
    assert list(found) == [*KEYS, "schedule"]
    assert list(schedule) == ["period", "rounds_seen", "connected_share", "edges", "degree"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert len(rounds) == schedule["rounds_seen"] == (schedule["period"] or 200)
    ways = 1 if which.startswith(("one_peer", "epidemic")) else 2  # there arcs count, here edges, which are two
    edges = [graph.number_of_edges() / ways for graph in rounds]
    assert schedule["edges"] == {"min": min(edges), "max": max(edges), "mean": pytest.approx(np.mean(edges))}
    heard = [degree for graph in rounds for _, degree in graph.in_degree()]
    assert schedule["degree"] == {"min": min(heard), "max": max(heard), "mean": pytest.approx(np.mean(heard))}
    assert schedule["connected_share"] == pytest.approx(np.mean([nx.is_strongly_connected(g) for g in rounds]))
    ever = nx.compose_all(rounds)
    assert found["edges"] == ever.number_of_edges() / ways
    assert found["connected"] == nx.is_strongly_connected(ever)
    assert found["diameter"] == nx.diameter(ever)
    assert found["degree"]["mean"] == pytest.approx(np.mean([degree for _, degree in ever.in_degree()]))
    assert found["neighbours"] == {f"peer-{i}": [f"peer-{j}" for j in sorted(ever.pred[i])] for i in range(6)}
    assert found["bytes_per_round"] == round(float(np.mean([g.number_of_edges() for g in rounds])) * 4 * D)
    assert found["weights"] == ("metropolis" if which == "mobile" else "own")
    assert found["stochastic"] == ("row" if which == "epidemic, local" else "doubly")
    assert (found["metric"], found["threshold"]) == (("position", 0.4) if which == "mobile" else ("hops", 1.0))


def test_one_peer_exponential_of_eight() -> None:
    found = document({"family": "one_peer_exponential"})
    figures = {key: found[key] for key in ("edges", "diameter", "slem", "spectral_gap", "rounds_to_consensus")}
    assert figures == {"edges": 24, "diameter": 3, "slem": 0.0, "spectral_gap": 1.0, "rounds_to_consensus": 3}
    assert found["bytes_per_round"] == 8 * 4 * D
    assert found["schedule"] == {
        "period": 3,
        "rounds_seen": 3,
        "connected_share": pytest.approx(1 / 3),  # the ring of the first round; then two rings of four, four of two
        "edges": {"min": 8, "max": 8, "mean": 8.0},
        "degree": {"min": 1, "max": 1, "mean": 1.0},
    }


def test_a_schedule_that_is_not_exact_has_the_slem_of_its_period() -> None:
    found = explained({"family": "one_peer_exponential", "peers": 6}, matrix=True).document
    first, second, third = map(np.array, found["matrices"])
    moduli = np.sort(np.abs(np.linalg.eigvals(third @ second @ first)))
    assert found["slem"] == pytest.approx(moduli[-2] ** (1 / 3), rel=1e-9)
    assert found["spectral_gap"] == pytest.approx(1 - found["slem"])
    left, product, rounds = 1.0, np.eye(6), 0
    while left > 1e-6:
        product, rounds = np.array(found["matrices"][rounds % 3]) @ product, rounds + 1
        left = float(np.linalg.norm(product - 1 / 6, 2))
    assert found["rounds_to_consensus"] == rounds


@pytest.mark.parametrize(("peers", "k"), [(7, 1), (7, 2), (6, 1), (5, 4), (5, 100)])
def test_base_k_is_exact_after_its_period(peers: int, k: int) -> None:
    found = explained({"family": "base_k", "peers": peers, "k": k}, matrix=True).document
    matrices = found.get("matrices") or [found["matrix"]]
    assert ("schedule" in found) == (len(matrices) > 1), "with k for all others it is the complete graph"
    assert found["rounds_to_consensus"] == len(matrices)
    assert found["slem"] == 0.0
    product = np.linalg.multi_dot([*map(np.array, reversed(matrices)), np.eye(peers)])
    assert np.allclose(product, 1 / peers, atol=1e-12)
    assert max(sum(w > 0 for w in row) - 1 for rows in matrices for row in rows) <= k


@pytest.mark.parametrize("family", ["random_matching", "epidemic", "mobile"])
def test_of_what_never_repeats_the_first_matrices_are_shown(family: str) -> None:
    e = explained({"family": family, "peers": 5, **SCHEDULES[family]}, matrix=True)
    assert "matrix" not in e.document
    assert len(e.document["matrices"]) == 8
    for t, rows in enumerate(e.document["matrices"]):
        assert rows == e.assembly.ground.matrix(t).toarray().tolist()


def test_too_many_matrices_are_not_printed() -> None:
    with pytest.raises(ConfigError, match=r"^--matrix: 10 times 1000 x 1000 numbers are too many .* up to 632 peers"):
        explained({"family": "one_peer_exponential", "peers": 1000}, matrix=True)


@pytest.mark.parametrize("which", SCHEDULES)
def test_one_peer_has_nothing_to_change(which: str) -> None:
    keys = {key: value for key, value in SCHEDULES[which].items() if key not in ("pairs", "fanout", "k")}
    found = explained({"family": which, "peers": 1, **keys}, matrix=True).document
    assert list(found) == [*KEYS, "matrix"]
    assert found["matrix"] == [[1.0]]
    assert (found["slem"], found["spectral_gap"], found["rounds_to_consensus"]) == (0.0, 1.0, 1)
    assert (found["edges"], found["connected"], found["diameter"], found["bytes_per_round"]) == (0, True, 0, 0)


def test_a_family_that_changes_under_an_algorithm_that_does_not_use_it() -> None:
    matching = {"family": "random_matching", "pairs": 1}
    for algorithm, messages in [
        ({"name": "dpsgd"}, 2),
        ({"name": "local"}, 0),
        ({"name": "exact"}, 8 * 7),
        ({"name": "diloco"}, 8 * 7),
        ({"name": "diloco", "among": "neighbours"}, 2),
    ]:
        found = document(matching, algorithm=algorithm)
        assert found["bytes_per_round"] == messages * 4 * D
        assert found["schedule"]["edges"] == {"min": 1, "max": 1, "mean": 1.0}


def test_push_sum_sends_numbers_of_eight_bytes_and_a_weight() -> None:
    found = document({"family": "epidemic", "variant": "local", "fanout": 2}, algorithm={"name": "push_sum"})
    assert (found["weights"], found["stochastic"]) == ("push", "column")
    assert found["payload_bytes_per_message"] == 8 * (D + 1)
    assert found["bytes_per_round"] == 8 * 2 * 8 * (D + 1)
    assert 0 < found["slem"] < 1
    assert found["rounds_to_consensus"] > 0


def test_both_exchanges_of_a_round_are_counted() -> None:
    tracking = document(algorithm={"name": "gradient_tracking"})
    assert tracking["payload_bytes_per_message"] == 2 * 4 * D
    assert tracking["bytes_per_round"] == 8 * 2 * 2 * 4 * D


def test_a_schedule_in_which_some_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "LIMIT_ROUNDS", 250)
    (tmp_path / "apart.edges").write_text("0 1\n2 3\n")
    keys = {"family": "random_matching", "among": "file:apart.edges", "allow_disconnected": True}
    e = explained(keys, folder=tmp_path)
    found = e.document
    assert (found["connected"], found["diameter"], found["rounds_to_consensus"]) == (False, None, None)
    assert found["slem"] == pytest.approx(1.0, abs=0.01)
    text = explanation_text(e)
    assert "not within 250 rounds (differences down to a millionth)" in text
    assert "all of them at once  edges: 2; a peer hears 1; not connected\n" in text


def test_what_runs_dry_is_not_known_rather_than_not_a_number(tmp_path: Path) -> None:
    """A peer that gives all away holds a push-sum weight of 0, and x / w is 0 / 0."""
    (tmp_path / "explain_dry.py").write_text("def make():\n    return lambda _: [[0.0, 0.0], [1.0, 1.0]]\n")
    tables: dict[str, Any] = {"algorithm": {"name": "push_sum"}, "task": {"data": "none", "init": [1.0]}}
    with np.errstate(all="ignore"):
        e = explained({"family": "explain_dry:make"}, folder=tmp_path, **tables)
    json.dumps(e.document, allow_nan=False)
    assert (e.document["slem"], e.document["spectral_gap"], e.document["rounds_to_consensus"]) == (None, None, None)
    assert "slem, spectral gap   not known, not known (" in explanation_text(e)


# ---- Warnings


def test_a_row_stochastic_matrix_is_warned_of() -> None:
    star = {"family": "star", "peers": 4, "weights": "uniform"}
    (warning,) = explained(star).warnings
    assert "weighted mean" in warning
    assert 'topology.weights = "metropolis"' in warning
    assert explained(star).document["stochastic"] == "row"
    for name in ("exact", "local"):
        assert explained(star, algorithm={"name": name}).warnings == [], "they do not mix with it"
    assert explained().warnings == []


def test_a_matrix_whose_columns_alone_sum_to_one_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", [[0.5, 0.5, 0.5], [0.25, 0.5, 0.5], [0.25, 0.0, 0.0]])
    with pytest.raises(ConfigError, match=r"^topology\.family: the columns of W sum to 1 and its rows do not"):
        explained({"family": "file:w.npy"}, folder=tmp_path)
    assert explained({"family": "file:w.npy"}, folder=tmp_path, algorithm={"name": "exact"}).document["peers"] == 3


def test_warnings_go_to_stderr_and_the_document_stays_alone(command: Command, write: Write) -> None:
    write('[task]\nmodel = "softmax"\n[topology]\nfamily = "star"\npeers = 4\nweights = "uniform"')
    outcome = command("explain", "exp.toml", "--json", "--matrix")
    assert outcome.code == 0
    assert outcome.err.startswith("warning: the rows of the mixing matrix sum to 1")
    assert outcome.document["matrix"][1] == [0.5, 0.5, 0.0, 0.0]
    assert list(outcome.document) == [*KEYS, "matrix"]


# ---- Seconds


def test_seconds_follow_links_speeds_and_the_size_of_a_message() -> None:
    found = document(speed={"factors": [1] * 7 + [4]}, network={"bandwidth_mbps": 1, "latency_ms": 100})
    assert found["seconds_per_round"] == pytest.approx(4.0), "while it trains, what it is to hear comes in"
    found = document(network={"bandwidth_mbps": 1, "latency_ms": 100})
    assert found["seconds_per_round"] == pytest.approx(1.1 + (4 * D + 64) * 8 / 1e6)


def test_seconds_that_are_not_known_are_null_and_said_to_be() -> None:
    found = explained({"metric": "model", "threshold": 1.0})
    assert found.document["seconds_per_round"] is None
    assert "seconds per round    not known before the run" in explanation_text(found)


def test_peers_that_do_not_wait_have_a_pace_of_their_own_each() -> None:
    tables: dict[str, Any] = {"speed": {"factors": [1] * 7 + [4]}}
    found = explained(algorithm={"mode": "async", "order": "cta"}, **tables)
    assert found.document["seconds_per_round"] == pytest.approx(8 / 7.25)
    assert found.document["bytes_per_round"] == 8 * 2 * 4 * D, "as in rounds in step"
    text = explanation_text(found)
    assert "algorithm            dpsgd, cta, async" in text
    assert "seconds per round    1.103 predicted, in the events engine; 8 local rounds in all" in text


def test_pairs_exchange_two_messages_in_each_local_round() -> None:
    found = explained({"family": "star", "peers": 5}, algorithm={"name": "adpsgd"})
    assert found.document["bytes_per_round"] == 5 * 2 * 4 * D
    assert "adpsgd: neighbours average in pairs; the mixing matrix is not used" in explanation_text(found)


# ---- For people


def test_the_text_holds_the_same_figures(command: Command, write: Write) -> None:
    write('name = "digits"\n[task]\nmodel = "softmax"\n')
    text = command("explain", "exp.toml", "--matrix").out
    for words in (
        "digits: 8 peers, ring, hops within 1",
        "edges                8",
        "slem, spectral gap   0.804738, 0.195262",
        "rounds to consensus  64 ",
        "parameters           7,850 at each peer",
        "training state       1.3 MB in all",
        "a message            31.4 kB",
        "a round              502.4 kB in all",
        "seconds per round    1 predicted, in the events engine\n",
        "peer-7  peer-0, peer-6",
        " 0.3333  0.3333  0.0000",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"topology": {"peers": 1}}, "1 peer, ring"),
        ({"topology": {"peers": 1}}, "peer-0  nobody"),
        ({"topology": {"peers": 21}}, "\nand 1 more peer"),
        ({"topology": {"peers": 12, "family": "complete"}}, "peer-10 and 1 more"),
        ({"topology": {"peers": 2, "threshold": 0, "allow_disconnected": True}}, "rounds to consensus  never"),
        ({"algorithm": {"name": "local"}}, "local: nobody gossips"),
        ({"algorithm": {"name": "exact"}}, "exact: everybody hears everybody"),
        (
            {"algorithm": {"name": "diloco"}},
            "diloco: everybody hears everybody, with equal weight; the topology is not",
        ),
        ({"algorithm": {"name": "diloco", "among": "neighbours"}}, "algorithm            diloco\n"),
        ({"algorithm": {"order": "cta"}}, "algorithm            dpsgd, cta\n"),
        ({"algorithm": {"name": "gradient_tracking"}}, "a message            8 B, in 2 exchanges\n"),
        ({"topology": {"family": "exponential"}}, "  arcs                 24\n"),
        ({"topology": {"threshold": float("inf")}}, "8 peers, ring, hops within any distance\n"),
        ({"topology": {"metric": "model", "threshold": 0.5}}, "8 peers, ring, model within 0.5\n"),
        ({"topology": {"metric": "model", "threshold": 0.5}}, "who stands within 0.5 is mixed; two that are further"),
        ({"topology": {"metric": "model", "threshold": 0.5}}, "after 10 rounds. The figures are for all of them near"),
        ({"topology": {"metric": "model", "threshold": 0.5, "look_again": 3}}, "after 3 rounds. The"),
        ({"topology": {"metric": "rtt", "threshold": 5}}, "8 peers, ring, rtt within 5 ms\n"),
        ({"topology": {"metric": "rtt", "threshold": 5}}, "round trips          those of [network], as the simulator"),
        ({"topology": {"family": "base_k"}}, "8 peers, base_k, new in every round\n"),
        ({"topology": {"family": "base_k"}}, "schedule             repeats after 3 rounds\n"),
        ({"topology": {"family": "base_k"}}, "a round by itself    edges: 4; a peer hears 1\n"),
        ({"topology": {"family": "base_k"}}, "connected in 0 of 3 rounds\n"),
        ({"topology": {"family": "base_k"}}, "all of them at once  edges: 12; a peer hears 3; connected, diameter 3\n"),
        ({"topology": {"family": "base_k"}}, "0, 1 (of a round: after some, nothing is left of any difference)\n"),
        ({"topology": {"family": "base_k"}}, "peer    ever hears\npeer-0  peer-1, peer-2, peer-4\n"),
        ({"topology": {"family": "one_peer_exponential", "peers": 6}}, "(of a round, on average over the period)\n"),
        ({"topology": {"family": "one_peer_exponential", "peers": 6}}, "by itself    arcs: 6; a peer hears 1\n"),
        ({"topology": {"family": "mobile", "threshold": 0.4}}, "mobile, position within 0.4, new in every round\n"),
        ({"topology": {"family": "mobile", "threshold": 0.4}}, "never repeats; the figures here are of the first 200"),
        (
            {"topology": {"family": "mobile", "threshold": 0.4}},
            "itself    edges: 7 to 24, 14.43 on average; a peer hears 0",
        ),
        ({"topology": {"family": "mobile", "threshold": 0.4}}, "connected in 135 of 200 rounds\n"),
        ({"topology": {"family": "mobile", "threshold": 0.4}}, " (of a round, as measured)\n"),
        ({"topology": {"family": "base_k", "peers": 1}}, "1 peer, base_k, hops within 1\n"),
        ({"peers": [{"name": "[red]"}, {"name": ":a:"}]}, "[red]  :a:"),
    ],
)
def test_the_text_for_people(tables: dict[str, Any], words: str) -> None:
    task = {"data": "none", "init": [1.0]}
    assert words in explanation_text(explain(from_dict({"task": task, **tables})))


def test_the_text_says_how_much_of_a_model_is_gossiped() -> None:
    text = explanation_text(explained(algorithm={"share": ["*weight"]}))
    assert "parameters           7,850 at each peer; 7,840 of 7,850 numbers are gossiped\n" in text
    assert "are gossiped" not in explanation_text(explained())


def test_the_matrices_of_a_schedule_have_headings(command: Command, write: Write) -> None:
    write('[task]\ndata = "none"\ninit = [1.0]\n[topology]\nfamily = "base_k"\npeers = 4')
    lines = command("explain", "exp.toml", "--matrix").out.splitlines()
    assert lines[-11:-5] == [
        "round 0",
        *[" 0.5000  0.5000  0.0000  0.0000"] * 2,
        *[" 0.0000  0.0000  0.5000  0.5000"] * 2,
        "",
    ]
    assert lines[-5] == "round 1"
    write('[task]\ndata = "none"\ninit = [1.0]\n[topology]\npeers = 2')
    assert "round 0" not in command("explain", "exp.toml", "--matrix").out


def test_a_summary_for_people(command: Command, write: Write) -> None:
    write('name = "[b]"\nrounds = 1\n[task]\nmodel = "softmax"\n[topology]\npeers = 1')
    outcome = command("simulate", "exp.toml", "--quiet")
    lines = dict(line.split("  ", 1) for line in outcome.out.splitlines())
    assert lines["rounds"].strip() == "1 by 1 peer"
    assert lines["run folder"].strip().startswith("runs/[b]-"), "a name is no markup"
    assert summary_text(command("simulate", "exp.toml", "--json", "--no-folder").document).startswith("outcome")


def test_a_long_path_stays_in_one_piece(command: Command, write: Write) -> None:
    write('rounds = 1\n[task]\ndata = "none"\ninit = [1.0]')
    out = "/".join(["a folder"] * 20)
    assert out in command("simulate", "exp.toml", "--quiet", "--out", out).out
