"""Pictures of runs: accuracy against rounds, time or bytes, and the topology drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from peer.assembly import Assembly
from peer.record import Row

COLOURS = ("#1b6ca8", "#c2571a", "#4a7c3a", "#7b4a8c", "#8a6d1f", "#a8324a")
DRAWN_EDGES = 5000

Against = Literal["round", "simulated_seconds", "payload_bytes_sent"]

SCALES: dict[str, tuple[str, float]] = {
    "round": ("rounds", 1.0),
    "simulated_seconds": ("simulated time (s)", 1.0),
    "seconds": ("time (s)", 1.0),
    "payload_bytes_sent": ("payload sent by all peers (MB)", 1e-6),
}
"""What the horizontal axis says, and what a figure of the history is multiplied by to stand there."""


@dataclass(frozen=True)
class Run:
    """A summary with a name for it in the picture."""

    label: str
    summary: Row


def draw(runs: Sequence[Run], assembly: Assembly, path: Path, against: Against = "round") -> None:
    """Draw the runs' accuracy (loss where there is none) beside the topology, into an image file.

    `against` is the horizontal axis. Raises ValueError as `draw_curves` does.
    """
    figure = Figure(figsize=(11, 4.6), layout="constrained", dpi=130)
    curves, network = figure.subplots(1, 2, width_ratios=(1.35, 1))
    draw_curves(curves, runs, against)
    draw_topology(network, assembly)
    figure.savefig(path)


def draw_curves(axes: Any, runs: Sequence[Run], against: Against = "round") -> None:
    """Draw each run's mean over the peers, with a band from the worst peer to the best.

    `against` is the horizontal axis: rounds, simulated seconds (of runs that have none: their seconds), or the bytes of
    payload that all peers have sent. Raises ValueError where the runs' histories do not have it.
    """
    has_accuracy = all(run.summary["accuracy"]["mean"] is not None for run in runs)
    figure = "accuracy" if has_accuracy else "loss"
    histories = [[entry for entry in run.summary["history"] if entry[figure]["mean"] is not None] for run in runs]
    key = _known_of(against, histories)
    label, scale = SCALES[key]
    for colour, run, history in zip(COLOURS, runs, histories, strict=False):
        places = [entry[key] * scale for entry in history]
        low, mean, high = ([entry[figure][which] for entry in history] for which in ("min", "mean", "max"))
        axes.plot(places, mean, color=colour, label=run.label, linewidth=1.8)
        axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.set_xlabel(label)
    axes.set_ylabel(f"{figure} on the common test rows")
    axes.set_title("mean over the peers, band from worst to best", fontsize=10)
    if has_accuracy:
        axes.set_ylim(0, 1)
    else:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right" if has_accuracy else "upper right")


def _known_of(against: Against, histories: Sequence[Sequence[Row]]) -> str:
    """Return the key that stands for an axis in all entries."""
    for key in ("simulated_seconds", "seconds") if against == "simulated_seconds" else (against,):
        if all(entry.get(key) is not None for history in histories for entry in history):
            return key
    raise ValueError(f"a history of these runs has no {against}")


def draw_topology(axes: Any, assembly: Assembly) -> None:
    """Draw who hears whom, in round 0 where that changes; peers stand where they are, if they have positions."""
    graph, t = assembly.first_graph, assembly.experiment.topology
    places, when = _places(assembly), "" if assembly.ground.period == 1 else ", round 0"
    n = len(assembly.names)
    edges = list(graph.edges)[:DRAWN_EDGES]
    size = 260 if n <= 30 else max(8, 6000 / n)
    nx.draw_networkx_edges(graph, places, edgelist=edges, ax=axes, edge_color="#8d99a6", node_size=size)
    nx.draw_networkx_nodes(graph, places, ax=axes, node_color="#1b6ca8", node_size=size)
    if n <= 30:
        labels = {i: name.removeprefix("peer-") for i, name in enumerate(assembly.names)}
        nx.draw_networkx_labels(graph, places, labels, ax=axes, font_size=8, font_color="white")
    axes.set_title(f"{t.family}: {n} peers, {t.metric} within {t.threshold:g}{when}", fontsize=10)
    axes.margins(0.12)
    if assembly.ground.positions is not None:
        axes.set_aspect("equal")
    axes.set_axis_off()


def _places(assembly: Assembly) -> dict[int, Any]:
    if assembly.ground.positions is not None:
        return dict(enumerate(np.asarray(assembly.ground.positions)))
    places: dict[int, Any] = nx.spring_layout(assembly.first_graph, seed=assembly.experiment.seed % 2**32)
    return places
