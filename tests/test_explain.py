"""What an experiment will be, before anything trains: the document, the warnings, and the text for people."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.errors import ConfigError
from peer.experiment import from_dict
from peer.explanation import Explanation, explain
from peer.tables import explanation_text, summary_text
from tests.commands import Command, Write

KEYS = [
    *("peers", "edges", "connected", "diameter", "degree", "metric", "threshold", "neighbours", "weights"),
    *("stochastic", "slem", "spectral_gap", "rounds_to_consensus", "parameters", "memory_bytes"),
    *("payload_bytes_per_message", "bytes_per_round"),
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
        ({"peers": [{"name": "[red]"}, {"name": ":a:"}]}, "[red]  :a:"),
    ],
)
def test_the_text_for_people(tables: dict[str, Any], words: str) -> None:
    task = {"data": "none", "init": [1.0]}
    assert words in explanation_text(explain(from_dict({"task": task, **tables})))


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
