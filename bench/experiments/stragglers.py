"""What slow peers cost: synchronous and asynchronous gossip with none, one and two stragglers, in simulated time.

Sixteen peers on a random graph, each with four neighbours, train softmax regression on mnist5k, split by Dirichlet 1.
A local step takes a second, on a straggler four; a message takes 20 ms. All runs get the same simulated seconds, as
many as `--rounds` says: a peer that waits for nobody and is no straggler does so many rounds.

- D-PSGD, in step: all wait for the slowest.
- asynchronous averaging: each takes the newest that it has heard of its neighbours.
- AD-PSGD: each averages with one neighbour after each step, and trains meanwhile. Lian et al. 2018, "Asynchronous
  Decentralized Parallel Stochastic Gradient Descent": it is robust against slow workers, where a synchronous run goes
  at the pace of the slowest.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from claims import Claim, conclude, finished, json_line, options_of, over_seeds, screen, table
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peer.experiment import from_dict
from peer.record import Row
from peer.report import Run, draw_curves

ROUNDS = 100
PEERS = 16
SLOWER = 4.0
STRAGGLERS = (0, 1, 2)
GOAL = 0.8
"""The accuracy that it is timed to reach."""

IN_STEP, ASYNCHRONOUS, PAIRWISE = "D-PSGD, in step", "asynchronous averaging", "AD-PSGD"
WAYS: dict[str, dict[str, str]] = {IN_STEP: {}, ASYNCHRONOUS: {"mode": "async"}, PAIRWISE: {"name": "adpsgd"}}
UNWAITING = (ASYNCHRONOUS, PAIRWISE)
LIAN = "Lian et al. 2018"


@dataclass(frozen=True)
class Trained:
    """One training run. Accuracies are means over the peers, shares of the common test rows.

    `rounds` is what the slowest peer has completed, in step; of those that do not wait, the mean over the peers.
    """

    way: str
    stragglers: int
    seed: int
    rounds: int
    gradients: int
    accuracy: float
    goal_after_s: float | None  # when GOAL is reached, in simulated seconds; None: not within the run
    summary: Row


# ---- Measuring


def train(way: str, stragglers: int, seed: int, rounds: int) -> Trained:
    tables = {
        "seed": seed,
        "rounds": 0,
        "stop_after_s": float(rounds),
        "eval_every": 2,
        "task": {"model": "softmax", "lr": 0.2, "batch_size": 16, "partition": "dirichlet", "alpha": 1.0},
        "topology": {"family": "regular", "degree": 4, "peers": PEERS},
        "algorithm": WAYS[way],
        "network": {"latency_ms": 20.0},
        "speed": {"step_s": 1.0, "factors": factors(stragglers)},
    }
    summary = finished(from_dict(tables)).as_dict()
    reached = (entry["simulated_seconds"] for entry in summary["history"] if entry["accuracy"]["mean"] >= GOAL)
    figures = summary["rounds"], summary["gradients"], summary["accuracy"]["mean"], next(reached, None)
    return Trained(way, stragglers, seed, *figures, summary)


def factors(stragglers: int) -> list[float]:
    """Return by how much each peer is slower: the first is a straggler, and then the one half way round."""
    slow = [0, PEERS // 2][:stragglers]
    return [SLOWER if peer in slow else 1.0 for peer in range(PEERS)]


# ---- What is claimed


def claims_of(runs: Sequence[Trained]) -> list[Claim]:
    return [*pace_claims(runs), *accuracy_claims(runs)]


def pace_claims(runs: Sequence[Trained]) -> list[Claim]:
    """Compare how much is done with what is done without stragglers."""
    slow = STRAGGLERS[1:]
    of_rounds = [mean_of(runs, IN_STEP, s, "rounds") / mean_of(runs, IN_STEP, 0, "rounds") for s in slow]
    shares = {
        (way, s): mean_of(runs, way, s, "gradients") / mean_of(runs, way, 0, "gradients")
        for way in UNWAITING
        for s in slow
    }
    left = {s: sum(1 / factor for factor in factors(s)) / PEERS for s in slow}
    found = "; ".join(f"{way} {listed(percent(shares[way, s]) for s in slow)}" for way in UNWAITING)
    return [
        Claim(
            f"after {LIAN}",
            f"In step, {SLOWER:g} times slower stragglers leave 1/{SLOWER:g} of the rounds, be it one or two",
            f"{listed(percent(share) for share in of_rounds)} of the rounds without",
            all(abs(share - 1 / SLOWER) <= 0.02 for share in of_rounds),
        ),
        Claim(
            f"after {LIAN}",
            "Who does not wait loses no more gradients than the stragglers' own: "
            f"{listed(percent(left[s]) for s in slow)} are left",
            found,
            all(abs(share - left[s]) <= 0.02 for (_, s), share in shares.items()),
        ),
    ]


def accuracy_claims(runs: Sequence[Trained]) -> list[Claim]:
    ends = {way: mean_of(runs, way, 0, "accuracy") for way in WAYS}
    apart = max(ends.values()) - min(ends.values())
    slow = STRAGGLERS[1:]
    sooner = [
        goal_s(run) < goal_s(in_step)
        for run in runs
        for in_step in runs
        if run.way in UNWAITING and in_step.way == IN_STEP and run.stragglers in slow
        if (run.stragglers, run.seed) == (in_step.stragglers, in_step.seed)
    ]
    later = {way: [goal_mean_s(runs, way, s) / goal_mean_s(runs, way, 0) for s in slow] for way in WAYS}
    times = {way: listed(seconds(goal_mean_s(runs, way, s)) for s in slow) for way in WAYS}
    goal = percent(GOAL)
    return [
        Claim(
            f"after {LIAN}",
            "Without stragglers all three end at about the same accuracy",
            f"{', '.join(percent(end) for end in ends.values())}: within {100 * apart:.1f} points",
            apart <= 0.02,
        ),
        Claim(
            LIAN,
            f"With stragglers, who does not wait reaches {goal} sooner than who is in step",
            f"in {sum(sooner)} of {len(sooner)} runs; {', '.join(f'{way} {times[way]}' for way in WAYS)}",
            all(sooner),
        ),
        Claim(
            f"after {LIAN}",
            f"Two stragglers make who does not wait at most 1.5 times later at {goal}, and who is in step 3 times",
            "; ".join(f"{way} {later[way][-1]:.2f} times" for way in WAYS),
            all(later[way][-1] <= 1.5 for way in UNWAITING) and later[IN_STEP][-1] >= 3.0,
        ),
        Claim(
            f"after {LIAN}",
            f"Without stragglers, who does not wait is no sooner at {goal}: what it mixes is older",
            ", ".join(f"{way} {seconds(goal_mean_s(runs, way, 0))}" for way in WAYS),
            all(goal_mean_s(runs, way, 0) >= goal_mean_s(runs, IN_STEP, 0) for way in UNWAITING),
        ),
    ]


def mean_of(runs: Sequence[Trained], way: str, stragglers: int, figure: str) -> float:
    return fmean(getattr(run, figure) for run in runs if (run.way, run.stragglers) == (way, stragglers))


def goal_mean_s(runs: Sequence[Trained], way: str, stragglers: int) -> float:
    return fmean(goal_s(run) for run in runs if (run.way, run.stragglers) == (way, stragglers))


def goal_s(run: Trained) -> float:
    return inf if run.goal_after_s is None else run.goal_after_s


# ---- Showing


def percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace(".0 %", " %")


def seconds(time_s: float) -> str:
    return "not at all" if time_s == inf else f"{time_s:.0f} s"


def listed(words: Iterable[str]) -> str:
    return " and ".join(words)


def table_of(runs: Sequence[Trained], rounds: int) -> Table:
    title = f"{PEERS} peers, softmax on mnist5k, {rounds} simulated seconds: mean over the seeds (lowest to highest)"
    shown = table(title, "", "rounds", "gradients", "accuracy", f"{percent(GOAL)} after")
    for stragglers in STRAGGLERS:
        for way in WAYS:
            mine = [run for run in runs if (run.way, run.stragglers) == (way, stragglers)]
            shown.add_row(
                f"{spoken(stragglers)}: {way}",
                over_seeds((run.rounds for run in mine), "{:.0f}".format),
                over_seeds((run.gradients for run in mine), "{:.0f}".format),
                over_seeds((run.accuracy for run in mine), percent),
                over_seeds((goal_s(run) for run in mine), seconds),
            )
        shown.add_section()
    return shown


def spoken(stragglers: int) -> str:
    return ("no straggler", "one straggler", "two stragglers")[stragglers]


def draw(runs: Sequence[Trained], path: Path) -> None:
    """Draw accuracy against simulated seconds, a panel for each number of stragglers; of the first seed."""
    figure = Figure(figsize=(13, 4.6), layout="constrained", dpi=130)
    panels = figure.subplots(1, len(STRAGGLERS), sharey=True)
    for axes, stragglers in zip(panels, STRAGGLERS, strict=True):
        mine = [run for run in runs if run.stragglers == stragglers and run.seed == runs[0].seed]
        draw_curves(axes, [Run(run.way, run.summary) for run in mine], "simulated_seconds")
        axes.axhline(GOAL, color="#888888", linewidth=1, linestyle=":")
        axes.set_title(f"{spoken(stragglers)}, {SLOWER:g} times slower" if stragglers else spoken(0), fontsize=10)
        axes.label_outer()
    figure.suptitle("mean over the peers, band from worst to best", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(__doc__, rounds=ROUNDS, picture="stragglers.png").parse_args(arguments)
    began_s = perf_counter()
    console = screen(options.json)
    runs = []
    jobs = [(way, stragglers, seed) for stragglers in STRAGGLERS for way in WAYS for seed in options.seeds]
    for job in track(jobs, "training", console=Console(stderr=True), transient=True):
        runs.append(train(*job, options.rounds))
        if options.json:
            json_line("training", without_summary(runs[-1]))
    console.print(table_of(runs, options.rounds))
    draw(runs, options.out)
    code = conclude(claims_of(runs), console, options.json)
    console.print(f"Picture: {options.out}. {perf_counter() - began_s:.0f} s in all.", soft_wrap=True)
    return code


def without_summary(run: Trained) -> dict[str, Any]:
    """Return a run's figures with its history in brief."""
    figures = {key: value for key, value in asdict(run).items() if key != "summary"}
    brief = ("round", "simulated_seconds", "payload_bytes_sent")
    history = [
        {key: entry[key] for key in brief} | {"accuracy": entry["accuracy"]["mean"]} for entry in run.summary["history"]
    ]
    return figures | {"staleness": run.summary.get("staleness"), "history": history}


if __name__ == "__main__":
    sys.exit(main())
