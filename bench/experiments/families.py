"""The three families on one network: a server that waits, a server that does not, and no server; and a ring all-reduce.

Sixteen peers train softmax regression on mnist5k, split by Dirichlet 0.3: same shards, starts and batches everywhere. A
local step takes 0.1 s, a message 10 ms, and a machine has one line of 40 Mb/s each way for all that it says and hears;
a coordinator is a machine of its own. All runs get the same simulated seconds: `--rounds` steps of one peer.

The lr is such that one gradient moves the mean of all parameters by lr / n times itself, whatever the family: a server
that applies each by itself has lr / n, one that applies the mean of K has K lr / n. (A quorum has lr, for the mean of
those that it waits for.) No family was given the lr that suits it best.

Four conditions: even peers; one straggler, four times slower; one peer that dies and never comes back; a coordinator
that dies and comes back. Who has none loses a peer in its place, for as long. A ring all-reduce does not outlive that,
so there nobody comes back. What is claimed follows from the protocol and the lines; see claims of `family_claims.py`.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from claims import conclude, json_line, options_of, over_seeds, screen, table
from family_claims import (
    ALL_REDUCE,
    ASYNC,
    ASYNC_RING,
    BUFFERED,
    CONDITIONS,
    COORDINATOR,
    DEAD,
    EXPONENTIAL,
    FAMILIES,
    GEOMETRIC,
    GOALS,
    LATENCY_S,
    NODE_MBPS,
    PEERS,
    QUORUM,
    RING,
    SERVERS,
    SILENT_S,
    SLOW,
    SLOWER,
    STEP_S,
    SYNC,
    Trained,
    claims_of,
)
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peer import explain, simulate
from peer.experiment import from_dict
from peer.record import Row
from peer.report import COLOURS

ROUNDS = 240
LR = 0.5
BUFFER = PEERS // 2
MIDDLE = PEERS // 2
"""The peer that is slow, or dies."""

Tables = dict[str, dict[str, Any]]

COORDINATORS: dict[str, Tables] = {
    SYNC: {"coordinator": {"mode": "sync"}},
    QUORUM: {"coordinator": {"mode": "quorum", "quorum": 0.8}},
    ASYNC: {"coordinator": {"mode": "async", "server_lr": LR / PEERS}},
    BUFFERED: {"coordinator": {"mode": "buffered", "buffer": BUFFER, "server_lr": LR * BUFFER / PEERS}},
}
GRAPHS: dict[str, Tables] = {
    RING: {"topology": {"family": "ring"}},
    EXPONENTIAL: {"topology": {"family": "exponential"}},
    GEOMETRIC: {"topology": {"family": "geometric", "threshold": 0.45, "seed": 0}},
    ASYNC_RING: {"topology": {"family": "ring"}, "algorithm": {"mode": "async"}},
}
WAYS = COORDINATORS | GRAPHS | {ALL_REDUCE: {"coordinator": {"mode": "ring"}}}

EVAL_EVERY = {SYNC: 2, QUORUM: 2, ASYNC: 4 * PEERS, BUFFERED: 4 * PEERS // BUFFER, ALL_REDUCE: 1}
"""In rounds or versions, about half a second each; 4 of those that gossip."""

BLUE, ORANGE, GREEN, VIOLET, SKY, RED = COLOURS
LOOKS: dict[str, dict[str, Any]] = {
    SYNC: {"color": BLUE, "linestyle": "-", "marker": "o"},
    QUORUM: {"color": SKY, "linestyle": "-", "marker": "s"},
    ASYNC: {"color": RED, "linestyle": "-", "marker": "D"},
    BUFFERED: {"color": ORANGE, "linestyle": "-", "marker": "^"},
    RING: {"color": GREEN, "linestyle": "--", "marker": "v"},
    EXPONENTIAL: {"color": VIOLET, "linestyle": "--", "marker": "P"},
    GEOMETRIC: {"color": "#22272e", "linestyle": "--", "marker": "*"},
    ASYNC_RING: {"color": GREEN, "linestyle": ":", "marker": "x"},
    ALL_REDUCE: {"color": "#7a7a7a", "linestyle": "-.", "marker": "d"},
}
"""Solid: a server. Broken: gossip. Dots and strokes: neither."""

ENDED = "ended: a member died"

# ---- Measuring


def tables_of(family: str, condition: str, seed: int, rounds: int) -> dict[str, Any]:
    """Return the tables of one run's experiment file."""
    factors = [SLOWER if condition == SLOW and peer == MIDDLE else 1.0 for peer in range(PEERS)]
    shared = {
        "seed": seed,
        "rounds": 0,
        "stop_after_s": rounds * STEP_S,
        "eval_every": EVAL_EVERY.get(family, 4),
        "task": {"model": "softmax", "lr": LR, "batch_size": 16, "partition": "dirichlet", "alpha": 0.3},
        "network": {"latency_ms": 1000 * LATENCY_S, "node_mbps": NODE_MBPS},
        "speed": {"step_s": STEP_S, "factors": factors},
        "faults": {"schedule": faults_of(family, condition, rounds * STEP_S)},
        "transport": {"suspect_s": SILENT_S / 2, "dead_s": SILENT_S},
    }
    way: Tables = {"topology": {}} | WAYS[family]
    return shared | way | {"topology": {**way["topology"], "peers": PEERS}}


def faults_of(family: str, condition: str, run_s: float) -> list[dict[str, Any]]:
    """Return what goes wrong in a run of so many simulated seconds."""
    if condition not in (DEAD, COORDINATOR):
        return []
    dies_s, back_s = outage(condition, run_s)
    is_hub = condition == COORDINATOR and family in SERVERS
    dies = {"at_s": dies_s, "kill": "coordinator" if is_hub else f"peer-{MIDDLE}"}
    return [dies if condition == DEAD or family == ALL_REDUCE else {**dies, "for_s": back_s - dies_s}]


def outage(condition: str, run_s: float) -> tuple[float, float]:
    """Return from when until when somebody is dead, in simulated seconds."""
    return (run_s / 6, run_s) if condition == DEAD else (run_s / 3, run_s / 2)


def train(job: tuple[str, str, int], rounds: int) -> Trained:
    summary = simulate(from_dict(tables_of(*job, rounds))).as_dict()
    return Trained(*job, rounds * STEP_S, *outage(job[1], rounds * STEP_S), summary)


def measured(jobs: Sequence[tuple[str, str, int]], rounds: int, processes: int) -> Iterator[Trained]:
    """Train in as many processes, in the order of the jobs."""
    if processes == 1:
        yield from map(partial(train, rounds=rounds), jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(train, rounds=rounds), jobs)


def spectral_gaps() -> dict[str, float]:
    """Return 1 - slem of the mixing matrices of those that gossip in step."""
    graphs = (RING, EXPONENTIAL, GEOMETRIC)
    return {g: explain(from_dict({"topology": {**GRAPHS[g]["topology"], "peers": PEERS}})).spectral_gap for g in graphs}


# ---- Showing


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def amount(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.1f}"


def table_of(runs: Sequence[Trained], run_s: float) -> Table:
    title = f"{PEERS} peers, softmax on mnist5k, Dirichlet 0.3, {run_s:g} simulated seconds: mean over the seeds"
    goals = [f"{unit} to {goal:.0%}" for goal in GOALS for unit in ("s", "MB")]
    shown = table(title, "", "rounds", "s a round", *goals, "accuracy", "longest pause (s)")
    for condition in CONDITIONS:
        for family in FAMILIES:
            mine = [run for run in runs if (run.family, run.condition) == (family, condition)]
            reached = [
                over_seeds((run.reached(goal)[key] for run in mine), amount) for goal in GOALS for key in ("s", "mb")
            ]
            ended = [run for run in mine if run.outcome != "finished"]
            paused = f"ended: {ended[0].outcome}" if ended else over_seeds((r.pause_s for r in mine), amount)
            shown.add_row(
                f"{condition}: {family}",
                over_seeds((run.rounds for run in mine), "{:.0f}".format),
                over_seeds((run.round_s for run in mine), "{:.3f}".format),
                *reached,
                over_seeds((run.accuracy for run in mine), percent),
                paused,
            )
        shown.add_section()
    return shown


def draw(runs: Sequence[Trained], run_s: float, path: Path) -> None:
    """Draw accuracy against seconds, and below against bytes: a column for each condition; of the first seed."""
    figure = Figure(figsize=(15, 7.8), layout="constrained", dpi=120)
    rows = figure.subplots(2, len(CONDITIONS), sharex="row", sharey=True)
    for column, condition in enumerate(CONDITIONS):
        mine = [run for run in runs if run.condition == condition and run.seed == runs[0].seed]
        rows[0][column].set_title(condition, fontsize=12)
        for axes, key, size in (
            (rows[0][column], "simulated_seconds", 1.0),
            (rows[1][column], "payload_bytes_sent", 1e6),
        ):
            for run in mine:
                draw_run(axes, run, key, size)
            for goal in GOALS:
                axes.axhline(goal, color="#888888", linewidth=0.8, linestyle=(0, (1, 3)))
            axes.grid(alpha=0.2)
            axes.set_ylim(0.6, 0.91)
            axes.spines[["top", "right"]].set_visible(False)
        if condition in (DEAD, COORDINATOR):
            rows[0][column].axvspan(*outage(condition, run_s), color="#000000", alpha=0.07, linewidth=0)
        rows[0][column].set_xlabel("simulated seconds")
        rows[1][column].set_xlabel("MB of payload sent by all")
    for row in rows:
        row[0].set_ylabel("accuracy, mean over the peers")
    rows[0][0].set_xlim(0, run_s)
    rows[1][0].set_xscale("log")
    rows[1][0].set_xlim(left=2)
    rows[1][0].set_xticks([2, 10, 50, 100, 400], ["2", "10", "50", "100", "400"])
    rows[1][0].minorticks_off()
    figure.suptitle(f"{PEERS} peers, softmax on mnist5k, Dirichlet 0.3; grey: while somebody is dead", fontsize=11)
    entries = {name: h for axes in rows[0] for h, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=5,
        fontsize=11,
        frameon=False,
        handlelength=3.2,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_run(axes: Any, run: Trained, key: str, size: float) -> None:
    """Draw one line; where a run ended before its time there is a cross."""
    places = [entry[key] / size for entry in run.history]
    values = [entry["accuracy"]["mean"] for entry in run.history]
    axes.plot(places, values, label=run.family, linewidth=1.6, markersize=5.5, markevery=0.16, **LOOKS[run.family])
    if run.outcome != "finished":
        axes.plot(places[-1:], values[-1:], "X", color="#22272e", markersize=10, zorder=4, label=ENDED)


def brief(run: Trained) -> Row:
    """Return a run's figures as a JSON line has them, its history in brief."""
    history = [
        {key: entry[key] for key in ("round", "simulated_seconds", "payload_bytes_sent")}
        | {"accuracy": entry["accuracy"]["mean"]}
        for entry in run.history
    ]
    names = ("family", "condition", "seed", "outcome", "rounds", "round_s", "gradients", "accuracy", "pause_s")
    reached = {f"{goal:g}": run.reached(goal) for goal in GOALS}
    finite = {goal: {k: v if v != float("inf") else None for k, v in at.items()} for goal, at in reached.items()}
    return {name: getattr(run, name) for name in names} | {"reached": finite, "history": history}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options_of(__doc__, rounds=ROUNDS, picture="families.png")
    parser.set_defaults(seeds=[0])
    parser.add_argument("--processes", type=int, default=2, help="how many runs go at once (%(default)s)")
    options = parser.parse_args(arguments)
    began_s = perf_counter()
    console = screen(options.json)
    runs = []
    jobs = [(family, condition, seed) for condition in CONDITIONS for family in FAMILIES for seed in options.seeds]
    made = measured(jobs, options.rounds, options.processes)
    for run in track(made, "training", len(jobs), console=Console(stderr=True), transient=True):
        runs.append(run)
        if options.json:
            json_line("training", brief(run))
    run_s = options.rounds * STEP_S
    console.print(table_of(runs, run_s))
    draw(runs, run_s, options.out)
    code = conclude(claims_of(runs, spectral_gaps()), console, options.json)
    console.print(f"Picture: {options.out}. {perf_counter() - began_s:.0f} s in all.", soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
