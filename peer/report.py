"""Pictures of runs: accuracy against rounds, and the topology drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from peer.assembly import Assembly
from peer.record import Row

COLOURS = ("#1b6ca8", "#c2571a", "#4a7c3a", "#7b4a8c", "#8a6d1f", "#a8324a")
DRAWN_EDGES = 5000


@dataclass(frozen=True)
class Run:
    """A summary with a name for it in the picture."""

    label: str
    summary: Row


def draw(runs: Sequence[Run], assembly: Assembly, path: Path) -> None:
    """Draw the runs' accuracy (loss where there is none) against rounds, beside the topology, into an image file."""
    figure = Figure(figsize=(11, 4.6), layout="constrained", dpi=130)
    curves, network = figure.subplots(1, 2, width_ratios=(1.35, 1))
    draw_curves(curves, runs)
    draw_topology(network, assembly)
    figure.savefig(path)


def draw_curves(axes: Any, runs: Sequence[Run]) -> None:
    """Draw each run's mean over the peers, with a band from the worst peer to the best."""
    has_accuracy = all(run.summary["accuracy"]["mean"] is not None for run in runs)
    figure = "accuracy" if has_accuracy else "loss"
    for colour, run in zip(COLOURS, runs, strict=False):
        history = [entry for entry in run.summary["history"] if entry[figure]["mean"] is not None]
        rounds = [entry["round"] for entry in history]
        low, mean, high = ([entry[figure][which] for entry in history] for which in ("min", "mean", "max"))
        axes.plot(rounds, mean, color=colour, label=run.label, linewidth=1.8)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.set_xlabel("rounds")
    axes.set_ylabel(f"{figure} on the common test rows")
    axes.set_title("mean over the peers, band from worst to best", fontsize=10)
    if has_accuracy:
        axes.set_ylim(0, 1)
    else:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right" if has_accuracy else "upper right")


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
