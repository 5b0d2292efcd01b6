"""What heterogeneous data do to D-PSGD, and what removes it: gradient tracking and D2.

Eight peers in a ring, Dirichlet 0.1, softmax regression with full batches and l2 = 0.1, so that there is one optimum
and no noise (600 digits of 7 x 7 pixels, float64). What is measured is the distance of the peers from that optimum,
the root of the mean square over the peers; the optimum is found by Newton's method in numpy.

- D-PSGD with a constant learning rate ends at a plateau, which shrinks with the rate: Yuan, Ling & Yin 2016, "On the
  Convergence of Decentralized Gradient Descent".
- Gradient tracking converges to the optimum, linearly: Nedic, Olshevsky & Shi 2017, "Achieving Geometric Convergence
  for Distributed Optimization over Time-Varying Graphs".
- So does D2, whose error has no term for the heterogeneity: Tang et al. 2018, "D2: Decentralized Training over
  Decentralized Data".
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
import torch
from claims import Claim, conclude, finished, json_line, options_of, over_seeds, screen, table
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from softmax import Floats, optimum

from peer.assembly import assemble, prepare_task
from peer.experiment import Experiment, from_dict
from peer.report import COLOURS

ROUNDS = 1500
L2 = 0.1
# Distances from the optimum; the start is about 3 away from it.
REACHED = 1e-8
PLATEAU = 1e-2  # at least so far, and
STANDS_STILL = 0.05  # the last third of the rounds changes it by less than this share


@dataclass(frozen=True)
class Way:
    """One way to train: an algorithm on a topology."""

    label: str
    algorithm: str = "dpsgd"
    order: str = "atc"
    family: str = "ring"
    weights: str = "auto"
    lr: float = 0.2


DPSGD = tuple(Way(f"D-PSGD, ring, lr {lr}", lr=lr) for lr in (0.2, 0.1, 0.05))
EXPONENTIAL = Way("D-PSGD, exponential", family="exponential")
COMPLETE = Way("D-PSGD, complete", family="complete")
TRACKING = (
    Way("gradient tracking, ring", "gradient_tracking"),
    Way("gradient tracking (DIGing), ring", "gradient_tracking", order="diging"),
)
D2 = (Way("D2, ring", "d2"), Way("D2, ring, lazy W", "d2", weights="lazy"))
WAYS = (*DPSGD, EXPONENTIAL, COMPLETE, *TRACKING, *D2)


@dataclass(frozen=True)
class Descent:
    """How far from the optimum the peers were after so many rounds, in one run."""

    way: Way
    seed: int
    rounds: list[int]
    distances: list[float]

    @property
    def end(self) -> float:
        return self.distances[-1]

    @property
    def still(self) -> bool:
        """Whether the last third of the rounds brought next to nothing."""
        before = np.interp(self.rounds[-1] * 2 / 3, self.rounds, self.distances)
        return abs(float(before) - self.end) < STANDS_STILL * self.end


# ---- Measuring


def experiment_of(way: Way, seed: int, rounds: int) -> Experiment:
    return from_dict(
        {
            "seed": seed,
            "rounds": rounds,
            "eval_every": max(1, rounds // 60),
            "task": {
                "model": "softmax",
                "data": "pooled_digits:rows",
                "partition": "dirichlet",
                "alpha": 0.1,
                "batch_size": 0,
                "lr": way.lr,
                "weight_decay": L2,
                "dtype": "float64",
                "step": "plain",  # the shards differ in size, and then one by one is faster than vectorised
            },
            "topology": {"family": way.family, "peers": 8, "weights": way.weights},
            "algorithm": {"name": way.algorithm, "order": way.order},
            "record": {"params": "every"},
        },
        folder=Path(__file__).parent,
    )


def optimum_of(seed: int) -> tuple[Floats, float]:
    """Return the minimum of the mean of the peers' losses, (d,), and its largest gradient entry."""
    task = prepare_task(assemble(experiment_of(COMPLETE, seed, rounds=1)))
    shards = [shard.take(None) for shard in task.shards(torch.device("cpu")) if shard is not None]
    x = np.concatenate([sx.numpy() for sx, _ in shards])
    y = np.concatenate([sy.numpy() for _, sy in shards])
    row_weights = np.concatenate([np.full(len(sy), 1 / len(sy) / len(shards)) for _, sy in shards])
    return optimum(x, y, row_weights, L2)


def descend(way: Way, seed: int, rounds: int, best: Floats) -> Descent:
    history = finished(experiment_of(way, seed, rounds)).history
    return Descent(way, seed, [e.round for e in history], [rms_distance(e.params, best) for e in history])


def rms_distance(params: Sequence[Sequence[float]], best: Floats) -> float:
    """Return sqrt(1/n sum_i |x_i - best|^2) of the peers' parameters, (n, d)."""
    return float(np.sqrt(((np.array(params) - best) ** 2).sum(axis=1).mean()))


# ---- What is claimed


def claims_of(descents: Sequence[Descent]) -> list[Claim]:
    """Compare the distances at the end with the papers, seed by seed."""

    def ends(way: Way) -> list[float]:
        return [d.end for d in descents if d.way == way]

    def worst(ways: Sequence[Way]) -> float:
        return float(np.max([ends(way) for way in ways]))  # unlike max, NaN where there is one

    def below(ways: Sequence[Way]) -> str:
        return f"at most {worst(ways):.1e} from the optimum, in all seeds"

    ring = [d for d in descents if d.way in DPSGD]
    stays = all(d.still and d.end > PLATEAU for d in ring)
    sizes = ", ".join(f"{fmean(ends(way)):.3f}" for way in DPSGD) + " at lr 0.2, 0.1, 0.05"
    still = sum(d.still for d in ring)
    shrinks = all(a > b > c for a, b, c in zip(*(ends(way) for way in DPSGD), strict=True))
    narrower = all(sparse > dense for sparse, dense in zip(ends(DPSGD[0]), ends(EXPONENTIAL), strict=True))
    gap = f"{fmean(ends(DPSGD[0])):.3f} on the ring, {fmean(ends(EXPONENTIAL)):.3f} on exponential"
    yuan, nedic, tang = "Yuan, Ling & Yin 2016", "Nedic, Olshevsky & Shi 2017", "Tang et al. 2018"
    return [
        Claim(
            yuan, "D-PSGD stays at a plateau, away from the optimum", f"{still} of {len(ring)} runs stand still", stays
        ),
        Claim(yuan, "The plateau shrinks with the learning rate", sizes, shrinks),
        Claim(f"after {yuan}", "The plateau is lower where the spectral gap is larger", gap, narrower),
        Claim(
            f"after {yuan}", "There is no plateau where W averages all", below([COMPLETE]), worst([COMPLETE]) <= REACHED
        ),
        Claim(nedic, "Gradient tracking converges to the optimum", below(TRACKING), worst(TRACKING) <= REACHED),
        Claim(tang, "D2 converges to the optimum", below(D2), worst(D2) <= REACHED),
    ]


# ---- Showing


def table_of(descents: Sequence[Descent], rounds: int, gradient: float) -> Table:
    title = f"Distance from the optimum (largest gradient entry there: {gradient:.0e}), 8 peers, Dirichlet 0.1"
    shown = table(title, "", f"after {rounds * 2 // 3} rounds", f"after {rounds} rounds", "claimed")
    for way in WAYS:
        mine = [d for d in descents if d.way == way]
        before = [float(np.interp(rounds * 2 / 3, d.rounds, d.distances)) for d in mine]
        figures = (over_seeds(values, "{:.2e}".format) for values in (before, [d.end for d in mine]))
        shown.add_row(way.label, *figures, "plateau" if way in (*DPSGD, EXPONENTIAL) else "optimum")
    return shown


def draw(descents: Sequence[Descent], path: Path) -> None:
    figure = Figure(figsize=(11.5, 5), layout="constrained", dpi=130)
    curves, plateaus = figure.subplots(1, 2, width_ratios=(1.7, 1))
    draw_curves(curves, descents)
    draw_plateaus(plateaus, descents)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_curves(axes: Any, descents: Sequence[Descent]) -> None:
    """Draw the distance against rounds, with a band from the lowest seed to the highest."""
    blue, orange, green, violet, _, red = COLOURS
    looks = [(blue, "-"), (blue, "--"), (blue, ":"), (violet, "-"), ("#999999", "-")]
    looks += [(green, "--"), ("black", ":"), (orange, "-"), (red, "--")]
    for at, (way, (colour, style)) in enumerate(zip(WAYS, looks, strict=True)):
        mine = [d for d in descents if d.way == way]
        rounds, distances = mine[0].rounds, np.array([d.distances for d in mine])
        width = 4.5 if way == COMPLETE else 1.8  # three curves lie on each other: the one below is wide
        mean = np.exp(np.log(distances).mean(axis=0))
        axes.plot(rounds, mean, color=colour, linestyle=style, linewidth=width, label=way.label, zorder=2 + at / 10)
        axes.fill_between(rounds, distances.min(axis=0), distances.max(axis=0), color=colour, alpha=0.13, linewidth=0)
    axes.set(yscale="log", xlabel="rounds", ylabel="RMS distance from the optimum")
    axes.set_title("eight peers, Dirichlet 0.1, full batches; lr 0.2 unless stated", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="lower left")


def draw_plateaus(axes: Any, descents: Sequence[Descent]) -> None:
    """Draw where D-PSGD ends against its learning rate."""
    for way in (*DPSGD, EXPONENTIAL):
        ends = [d.end for d in descents if d.way == way]
        colour, marker = (COLOURS[3], "s") if way == EXPONENTIAL else (COLOURS[0], "o")
        label = {DPSGD[0]: "ring", EXPONENTIAL: "exponential"}.get(way)
        axes.plot([way.lr] * len(ends), ends, marker, color=colour, label=label, alpha=0.8)
    rates = np.array([0.04, 0.25])
    first = fmean(d.end for d in descents if d.way == DPSGD[-1])
    axes.plot(rates, first * rates / DPSGD[-1].lr, color="#888888", linewidth=1, linestyle="--", label="proportional")
    axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="RMS distance at the end")
    axes.set_xticks([0.05, 0.1, 0.2], ["0.05", "0.1", "0.2"], minor=False)
    axes.set_yticks([0.1, 0.2, 0.4], ["0.1", "0.2", "0.4"], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks([], minor=True)
    axes.set_title("the plateau of D-PSGD, one point a seed", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(__doc__, rounds=ROUNDS, picture="heterogeneity.png").parse_args(arguments)
    began_s = perf_counter()
    console = screen(options.json)
    optima = {seed: optimum_of(seed) for seed in options.seeds}
    runs = [(way, seed) for way in WAYS for seed in options.seeds]
    descents = []
    for way, seed in track(runs, "training", console=Console(stderr=True), transient=True):
        descents.append(descend(way, seed, options.rounds, optima[seed][0]))
        if options.json:
            json_line("distance_to_optimum", asdict(descents[-1]))
    console.print(table_of(descents, options.rounds, max(gradient for _, gradient in optima.values())))
    draw(descents, options.out)
    code = conclude(claims_of(descents), console, options.json)
    console.print(f"Picture: {options.out}. {perf_counter() - began_s:.0f} s in all.", soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
