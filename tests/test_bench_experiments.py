"""The experiments of bench/experiments: they run, show what they measured, and say no to figures that deny a claim."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

EXPERIMENTS = Path(__file__).parents[1] / "bench" / "experiments"
PNG = b"\x89PNG"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module


def lines_of(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def held(claims: list[Any], beginning: str) -> bool:
    (claim,) = (claim for claim in claims if claim.says.startswith(beginning))
    return bool(claim.held)


# ---- The scripts


def test_topologies_runs(tmp_path: Path) -> None:
    tiny = ("--json", "--seeds", "3", "--rounds", "2", "--sizes", "5", "8", "--out", "made/here.png")
    command = [sys.executable, str(EXPERIMENTS / "topologies.py"), *tiny]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    lines = lines_of(done.stdout)
    training = [line for line in lines if line.get("measured") == "training"]
    gossip = {(g["peers"], g["topology"], g["k"]): g for g in lines if g.get("measured") == "gossip"}
    claims = [line for line in lines if "claim" in line]
    assert len(training) == 10
    assert [entry["round"] for entry in training[0]["history"]] == [0, 1, 2]
    assert len(gossip) == 2 * 7
    assert gossip[5, "base_k", 1]["exact_after"] == 5
    assert gossip[8, "one_peer_exponential", None]["exact_after"] == 3
    assert gossip[8, "ring", None]["exact_after"] is None
    assert all(g["degree"] <= k for (_, _, k), g in gossip.items() if k)
    assert len(claims) == 9
    assert done.returncode == (0 if all(claim["held"] for claim in claims) else 1)
    for row in ("IID, complete", "Dirichlet 0.1, one-peer exponential", "Dirichlet 0.1, no gossip", "5, 4", "8, 1"):
        assert row in done.stderr
    assert (tmp_path / "made" / "here.png").read_bytes().startswith(PNG)


def test_heterogeneity_runs(
    tmp_path: Path, load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = load("heterogeneity").main(["--json", "--seeds", "3", "--rounds", "3"])
    stdout, tables = capsys.readouterr()
    lines = lines_of(stdout)
    measured = [line for line in lines if line.get("measured") == "distance_to_optimum"]
    claims = [line for line in lines if "claim" in line]
    assert [line["rounds"] for line in measured] == [[0, 1, 2, 3]] * 9
    starts = [line["distances"][0] for line in measured]
    assert starts == [starts[0]] * 9
    assert all(line["distances"][-1] < starts[0] for line in measured)
    assert len(claims) == 6
    assert code == 1  # nothing reaches the optimum in three rounds
    for row in ("D-PSGD, ring, lr 0.05", "gradient tracking, ring", "D2, ring, lazy W", "4 of 6 claims did not hold"):
        assert row in tables
    assert (tmp_path / "runs" / "heterogeneity.png").read_bytes().startswith(PNG)


# ---- The claims: made-up figures that fulfil them, then one thing at a time that does not


def trained(topologies: ModuleType) -> list[Any]:
    good = {"complete": (0.9, 0.0), "exponential": (0.89, 0.1), "one_peer_exponential": (0.87, 0.2)}
    good |= {"ring": (0.84, 0.3), topologies.NO_GOSSIP: (0.3, 9.0)}
    runs = []
    for split in topologies.SPLITS:
        for topology, (local, distance) in good.items():
            shown = local if split == topologies.SKEWED else 0.9
            runs += [topologies.Trained(split, topology, seed, shown, 0.9, distance, []) for seed in (0, 1)]
    return runs


def changed(runs: list[Any], split: str, topology: str, **figures: float) -> list[Any]:
    return [replace(r, **figures) if (r.split, r.topology) == (split, topology) else r for r in runs]


def test_claims_on_training(load: Any) -> None:
    topologies = load("topologies")
    good = trained(topologies)
    assert all(claim.held for claim in topologies.claims_of(good, 1000))
    worse = changed(good, "IID", "one_peer_exponential", mean_model_accuracy=0.88)
    assert not held(topologies.claims_of(worse, 1000), "One-peer exponential trains")
    assert held(topologies.claims_of(worse, 100), "One-peer exponential trains")  # fewer rows tell less
    farther = changed(good, "IID", "exponential", consensus_distance=0.25)
    assert not held(topologies.claims_of(farther, 1000), "Consensus distance")
    better = changed(good, "Dirichlet 0.1", "ring", local_accuracy=0.88)
    assert not held(topologies.claims_of(better, 1000), "Average local accuracy")
    same = changed(good, "IID", "ring", local_accuracy=0.8)
    assert not held(topologies.claims_of(same, 1000), "A sparse topology costs more")
    useless = changed(good, "Dirichlet 0.1", topologies.NO_GOSSIP, local_accuracy=0.5)
    assert not held(topologies.claims_of(useless, 1000), "No gossip is far below")


def test_claims_on_finite_time(load: Any) -> None:
    finite_time = load("finite_time")

    def gossip(topology: str, k: int | None, exact_after: int, degree: int = 1) -> Any:
        return finite_time.Gossip(8, topology, k, 0, degree, [0.5] * exact_after + [1e-33] * (12 - exact_after))

    one_peer = gossip("one_peer_exponential", None, 3)
    good = [gossip("base_k", 1, 8), gossip("ring", None, 12, degree=2), one_peer]  # the bound is 8
    assert [run.exact_after for run in good] == [8, None, 3]
    assert all(claim.held for claim in finite_time.claims_of(good))
    assert not held(finite_time.claims_of([gossip("base_k", 1, 9), *good[1:]]), "Base-(k+1) is exact")
    assert not held(finite_time.claims_of([gossip("base_k", 1, 12), *good[1:]]), "Base-(k+1) is exact")
    assert not held(finite_time.claims_of([gossip("base_k", 1, 8, degree=2), *good[1:]]), "With Base-(k+1) a peer")
    assert not held(finite_time.claims_of([*good, gossip("exponential", None, 7)]), "Ring, exponential")
    assert not held(finite_time.claims_of([*good[:2], gossip("one_peer_exponential", None, 4)]), "One-peer exponential")


def test_consensus_that_is_lost_again_is_not_exact(load: Any) -> None:
    assert load("finite_time").Gossip(4, "ring", None, 0, 2, [1.0, 0.0, 0.0, 0.5, 0.0]).exact_after == 4


def test_claims_on_heterogeneity(load: Any) -> None:
    heterogeneity = load("heterogeneity")
    ends = dict.fromkeys(heterogeneity.WAYS, 1e-12)
    ends |= dict(zip(heterogeneity.DPSGD, (0.4, 0.2, 0.1), strict=True)) | {heterogeneity.EXPONENTIAL: 0.1}

    def claims(**other: float) -> list[Any]:
        by_label = {way.label: end for way, end in ends.items()} | other
        return heterogeneity.claims_of(
            [
                heterogeneity.Descent(way, seed, [0, 50, 100], [3.0, by_label[way.label], by_label[way.label]])
                for way in heterogeneity.WAYS
                for seed in (0, 1)
            ]
        )

    assert all(claim.held for claim in claims())
    assert not held(claims(**{"D-PSGD, ring, lr 0.05": 1e-9}), "D-PSGD stays")
    assert not held(claims(**{"D-PSGD, ring, lr 0.05": 0.3}), "The plateau shrinks")
    assert not held(claims(**{"D-PSGD, exponential": 0.5}), "The plateau is lower")
    assert not held(claims(**{"D-PSGD, complete": 1e-7}), "There is no plateau")
    assert not held(claims(**{"gradient tracking (DIGing), ring": 1e-7}), "Gradient tracking")
    assert not held(claims(**{"D2, ring, lazy W": float("nan")}), "D2")


def test_a_distance_that_still_falls_is_no_plateau(load: Any) -> None:
    heterogeneity = load("heterogeneity")
    assert not heterogeneity.Descent(heterogeneity.DPSGD[0], 0, [0, 60, 90], [3.0, 0.5, 0.4]).still


# ---- The second opinion


def test_the_optimum_has_no_gradient(load: Any) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((30, 4)), draw.integers(3, size=30)
    row_weights = draw.uniform(0.1, 1.0, size=30)
    best, largest = load("softmax").optimum(x, y, row_weights, 0.1)
    at = torch.from_numpy(best).requires_grad_()
    scores = torch.from_numpy(x) @ at[:12].reshape(3, 4).T + at[12:]
    losses = torch.nn.functional.cross_entropy(scores, torch.from_numpy(y), reduction="none")
    ((losses * torch.from_numpy(row_weights)).sum() + 0.05 * (at**2).sum()).backward()
    assert at.grad is not None
    assert float(at.grad.abs().max()) < 1e-12
    assert largest < 1e-12
    assert load("softmax").accuracy(best, x, y) == float((scores.argmax(dim=1).numpy() == y).mean())


def test_stragglers_runs(
    tmp_path: Path, load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = load("stragglers").main(["--json", "--seeds", "3", "--rounds", "9"])
    stdout, tables = capsys.readouterr()
    lines = lines_of(stdout)
    measured = {(line["way"], line["stragglers"]): line for line in lines if line.get("measured") == "training"}
    assert len(measured) == 9
    assert measured["D-PSGD, in step", 0]["rounds"] == 8  # 8 of 1.02 s
    assert measured["D-PSGD, in step", 1]["rounds"] == measured["D-PSGD, in step", 2]["rounds"] == 2
    assert measured["asynchronous averaging", 2]["gradients"] == 14 * 9 + 2 * 2
    assert all(line["history"][-1]["simulated_seconds"] <= 9.0 for line in measured.values())
    assert len([line for line in lines if "claim" in line]) == 6
    assert code == 1  # nobody is good enough after nine seconds
    for row in ("no straggler: AD-PSGD", "two stragglers: D-PSGD, in step", "not at all"):
        assert row in tables
    assert (tmp_path / "runs" / "stragglers.png").read_bytes().startswith(PNG)


def test_claims_on_stragglers(load: Any) -> None:
    stragglers = load("stragglers")
    figures = {  # rounds, gradients, accuracy, seconds to the goal; with none, one and two stragglers
        stragglers.IN_STEP: [(100, 1600, 0.86, 20.0), (25, 400, 0.81, 80.0), (25, 400, 0.81, 80.0)],
        stragglers.ASYNCHRONOUS: [(100, 1600, 0.85, 30.0), (95, 1525, 0.85, 35.0), (90, 1450, 0.84, 40.0)],
        stragglers.PAIRWISE: [(96, 1536, 0.85, 35.0), (91, 1464, 0.85, 36.0), (86, 1392, 0.85, 37.0)],
    }
    good = [
        stragglers.Trained(way, number, seed, *figures[way][number], {})
        for way in stragglers.WAYS
        for number in stragglers.STRAGGLERS
        for seed in (0, 1)
    ]

    def with_one(way: str, number: int, seeds: tuple[int, ...] = (0, 1), **changes: object) -> list[Any]:
        here = (way, number)
        return [replace(r, **changes) if (r.way, r.stragglers) == here and r.seed in seeds else r for r in good]

    assert all(claim.held for claim in stragglers.claims_of(good))
    assert not held(stragglers.claims_of(with_one(stragglers.IN_STEP, 1, rounds=30)), "In step, 4 times")
    assert not held(stragglers.claims_of(with_one(stragglers.PAIRWISE, 2, gradients=1300)), "Who does not wait loses")
    assert not held(stragglers.claims_of(with_one(stragglers.PAIRWISE, 0, accuracy=0.83)), "Without stragglers all")
    late = with_one(stragglers.ASYNCHRONOUS, 2, seeds=(1,), goal_after_s=None)
    assert not held(stragglers.claims_of(late), "With stragglers, who does not wait")
    assert not held(stragglers.claims_of(late), "Two stragglers make")
    early = with_one(stragglers.PAIRWISE, 0, goal_after_s=15.0)
    assert not held(stragglers.claims_of(early), "Without stragglers, who does not wait")
