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
