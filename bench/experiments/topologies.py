"""What the topology does: one-peer exponential against static, sparse graphs on heterogeneous data, Base-(k+1).

Sixteen peers train softmax regression on mnist5k with D-PSGD (adapt then combine), with their data IID and then split
by Dirichlet 0.1. Apart from that, vectors are gossiped without training, among several numbers of peers
(finite_time.py).

- One-peer exponential trains as well as the static exponential graph: Ying et al. 2021, "Exponential Graph is Provably
  Efficient for Decentralized Deep Training". Their repository has 91.84 % against 91.21 %, for ResNet-56 on CIFAR-10
  with 4 nodes.
- On heterogeneous data a sparse topology costs accuracy, and the Base-(k+1) graph reaches exact consensus in at most
  2 log_(k+1) n + 2 rounds for every n: Takezawa et al. 2023, "Beyond Exponential Graph: Communication-Efficient
  Topologies for Decentralized Learning via Finite-time Convergence".
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import finite_time
import numpy as np
import torch
from claims import Claim, conclude, finished, json_line, options_of, over_seeds, screen, table
from finite_time import TAKEZAWA, YING, Gossip
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from softmax import Floats, Labels, accuracy

from peer.experiment import from_dict
from peer.report import COLOURS
from peer.task.data import load_data

ROUNDS = 300
PEERS = 16
IID, SKEWED = "IID", "Dirichlet 0.1"
SPLITS: dict[str, dict[str, object]] = {
    IID: {"partition": "iid"},
    SKEWED: {"partition": "dirichlet", "alpha": 0.1},
}
GRAPHS = ("complete", "exponential", "one_peer_exponential", "ring")  # in the order in which they are said to do well
NO_GOSSIP = "no gossip"
LOOKS = dict(zip((*GRAPHS, NO_GOSSIP), COLOURS, strict=False))


@dataclass(frozen=True)
class Trained:
    """One training run. Accuracies are shares of the common test rows."""

    split: str
    topology: str
    seed: int
    local_accuracy: float  # the mean over the peers
    mean_model_accuracy: float  # of the mean of the peers' parameters
    consensus_distance: float
    history: list[dict[str, float]]


# ---- Measuring


def test_rows() -> tuple[Floats, Labels]:
    """Return the common test rows of mnist5k: (n, 784) and (n,)."""
    data = load_data("mnist5k", folder=Path(), dtype=torch.float32)
    assert data.x_test is not None
    assert data.y_test is not None
    return data.x_test.flatten(1).numpy(), data.y_test.numpy()


def train(split: str, topology: str, seed: int, rounds: int, test: tuple[Floats, Labels]) -> Trained:
    gossips = topology != NO_GOSSIP
    tables = {
        "seed": seed,
        "rounds": rounds,
        "eval_every": max(1, rounds // 12),
        "task": {"model": "softmax", "lr": 0.5, "batch_size": 16, **SPLITS[split]},
        "topology": {"family": topology if gossips else "ring", "peers": PEERS},
        "algorithm": {"name": "dpsgd" if gossips else "local"},
        "record": {"params": "final"},
    }
    summary = finished(from_dict(tables))
    mean_model = np.array(summary.params).mean(axis=0)
    history = [
        {"round": entry.round, "accuracy": entry.accuracy.mean, "consensus_distance": entry.consensus_distance}
        for entry in summary.history
    ]
    local, apart = summary.accuracy.mean, summary.consensus_distance
    return Trained(split, topology, seed, local, accuracy(mean_model, *test), apart, history)


# ---- What is claimed


def claims_of(runs: Sequence[Trained], rows: int) -> list[Claim]:
    """Compare training with the papers. `rows` is how many an accuracy was measured on."""
    return [*one_peer_claims(runs, rows), *heterogeneity_claims(runs)]


def one_peer_claims(runs: Sequence[Trained], rows: int) -> list[Claim]:
    accuracies = [_mean(runs, IID, graph, lambda run: run.mean_model_accuracy) for graph in GRAPHS]
    apart = max(accuracies) - min(accuracies)
    noise = sqrt(accuracies[0] * (1 - accuracies[0]) / rows)
    found = f"mean models within {points(apart)} of each other, complete and ring included; the standard error "
    found += f"of an accuracy on {rows} rows is {points(noise)}"
    in_order = []
    for seed in dict.fromkeys(run.seed for run in runs):
        mine = [run for run in runs if run.seed == seed]
        distances = [_mean(mine, IID, graph, lambda run: run.consensus_distance) for graph in GRAPHS]
        in_order.append(all(closer < farther for closer, farther in pairwise(distances)))
    seeds = f"in {sum(in_order)} of {len(in_order)} seeds"
    return [
        Claim(YING, "One-peer exponential trains as well as static exponential (IID)", found, apart <= noise),
        Claim(f"after {YING}", f"Consensus distance (IID): {chain(GRAPHS, ' < ')}", seeds, all(in_order)),
    ]


def heterogeneity_claims(runs: Sequence[Trained]) -> list[Claim]:
    even, skewed = ([_mean(runs, s, graph, lambda run: run.local_accuracy) for graph in GRAPHS] for s in SPLITS)
    alone = _mean(runs, SKEWED, NO_GOSSIP, lambda run: run.local_accuracy)
    costs = even[0] - even[-1], skewed[0] - skewed[-1]
    found = f"the ring is {points(costs[0])} below complete with IID data, {points(costs[1])} with {SKEWED}"
    ordered = all(better >= worse for better, worse in pairwise(skewed))
    order = f"Average local accuracy ({SKEWED}): {chain(GRAPHS, ' ≥ ')}"
    none = f"{percent(alone)} against the ring's {percent(skewed[-1])}"
    return [
        Claim(f"after {TAKEZAWA}", order, ", ".join(percent(share) for share in skewed), ordered),
        Claim(TAKEZAWA, "A sparse topology costs more where data are heterogeneous", found, costs[1] > costs[0]),
        Claim(
            f"after {TAKEZAWA}", f"No gossip is far below, not half as good ({SKEWED})", none, alone < skewed[-1] / 2
        ),
    ]


def _mean(runs: Sequence[Trained], split: str, topology: str, figure: Callable[[Trained], float]) -> float:
    return fmean(figure(run) for run in runs if (run.split, run.topology) == (split, topology))


# ---- Showing


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(share: float) -> str:
    return f"{100 * share:.2f} points"


def spoken(topology: str) -> str:
    return topology.replace("one_peer_", "one-peer ")


def chain(topologies: Sequence[str], relation: str) -> str:
    return relation.join(spoken(topology) for topology in topologies)


def table_of(runs: Sequence[Trained]) -> Table:
    title = f"D-PSGD, {PEERS} peers, softmax on mnist5k: mean over the seeds (lowest to highest)"
    shown = table(title, "", "average local accuracy", "accuracy of the mean model", "consensus distance")
    for split in SPLITS:
        for topology in LOOKS:
            mine = [run for run in runs if (run.split, run.topology) == (split, topology)]
            shown.add_row(
                f"{split}, {spoken(topology)}",
                over_seeds((run.local_accuracy for run in mine), percent),
                over_seeds((run.mean_model_accuracy for run in mine), percent),
                over_seeds((run.consensus_distance for run in mine), "{:.3g}".format),
            )
        shown.add_section()
    return shown


def draw(runs: Sequence[Trained], gossips: Sequence[Gossip], path: Path) -> None:
    figure = Figure(figsize=(11.5, 8.4), layout="constrained", dpi=130)
    (distance, local), (vectors, lengths) = figure.subplots(2, 2)
    draw_training(distance, [run for run in runs if run.split == IID], "consensus_distance")
    distance.set(yscale="log", ylabel="consensus distance", ylim=(1e-3, 1e3))
    distance.set_title("training, IID (complete: 0)", fontsize=10)
    draw_training(local, [run for run in runs if run.split == SKEWED], "accuracy")
    local.set(ylabel="average local accuracy", ylim=(0, 1))
    local.set_title(f"training, {SKEWED}", fontsize=10)
    finite_time.draw_distances(vectors, gossips)
    finite_time.draw_rounds(lengths, gossips)
    for axes, place in (
        (distance, "upper center"),
        (local, "lower right"),
        (vectors, "right"),
        (lengths, "upper left"),
    ):
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, loc=place, ncols=2 if axes is distance else 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_training(axes: Any, runs: Sequence[Trained], figure: str) -> None:
    """Draw a figure of the history against rounds, with a band from the lowest seed to the highest."""
    for topology, colour in LOOKS.items():
        mine = [run for run in runs if run.topology == topology]
        rounds = [entry["round"] for entry in mine[0].history]
        values = np.array([[entry[figure] for entry in run.history] for run in mine])
        values[values == 0] = np.nan  # has no place on a logarithmic axis
        if np.isnan(values).all():
            continue
        axes.plot(rounds, values.mean(axis=0), color=colour, linewidth=1.8, label=spoken(topology))
        axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.16, linewidth=0)
    axes.set_xlabel("rounds")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options_of(__doc__, rounds=ROUNDS, picture="topologies.png")
    parser.add_argument("--sizes", type=int, nargs="+", default=finite_time.SIZES, help="numbers of gossiping peers")
    options = parser.parse_args(arguments)
    began_s = perf_counter()
    console, progress = screen(options.json), Console(stderr=True)
    test = test_rows()
    runs, gossips = [], []
    jobs = [(split, topology, seed) for split in SPLITS for topology in LOOKS for seed in options.seeds]
    for job in track(jobs, "training", console=progress, transient=True):
        runs.append(train(*job, options.rounds, test))
        if options.json:
            json_line("training", asdict(runs[-1]))
    for one in track(finite_time.jobs(options.sizes, options.seeds), "gossip", console=progress, transient=True):
        gossips.append(finite_time.gossip(*one))
        if options.json:
            json_line("gossip", asdict(gossips[-1]) | {"exact_after": gossips[-1].exact_after})
    console.print(table_of(runs))
    console.print(finite_time.table_of(gossips))
    draw(runs, gossips, options.out)
    claims = [*claims_of(runs, len(test[1])), *finite_time.claims_of(gossips)]
    code = conclude(claims, console, options.json)
    console.print(f"Picture: {options.out}. {perf_counter() - began_s:.0f} s in all.", soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
