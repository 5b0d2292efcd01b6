"""Who talks with whom, drawn: a topology, the star around coordinators, or a ring."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection

import topology
from peer.assembly.ground import Ground
from peer.experiment import Experiment
from peer.report.look import LIGHT, Look, plain

DRAWN_EDGES = 5000
ARROWS = 300
"""Of so many arcs the directions are drawn; the arrows of more would be a black spot."""
NAMED_PEERS = 30
SPRUNG_PEERS = 400
"""The places of so many peers are sought by springs, which takes time with the square of their number."""

Place = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Network:
    """A graph to be drawn. Nodes are 0 to n-1, those from `peers` on coordinators; `places` are (x, y), in node order.

    `edges` are pairs of nodes, arcs from the first to the second if `directed`.
    """

    title: str
    names: tuple[str, ...]
    peers: int
    places: list[Place]
    edges: list[tuple[int, int]]
    directed: bool = False


def network_of(experiment: Experiment, ground: Ground) -> Network:
    """Return who talks with whom: around the coordinators if there are any, else in the topology, in its round 0."""
    mode = experiment.coordinator.mode
    if mode == "none":
        return _topology(experiment, ground)
    return _ring(ground.names) if mode == "ring" else _star(experiment, ground.names)


def coordinators_of(experiment: Experiment, names: Sequence[str]) -> tuple[str, ...]:
    """Return what the coordinators are called: one that lives in a peer's process has that peer's name in its own."""
    name, servers = experiment.coordinator.name, experiment.coordinator.servers
    if servers > 1:
        return tuple(f"{name}-{j}" for j in range(servers))
    return (f"coordinator@{name}" if name in names else name,)


# ---- The three kinds


def _topology(experiment: Experiment, ground: Ground) -> Network:
    graph = ground.graph
    if ground.period != 1:
        graph = topology.graph_of(ground.matrix(0), ground.schedule.directed)
    edges = [(int(a), int(b)) for a, b in graph.edges if a != b]
    places = _places(experiment, ground, graph)
    return Network(_title(experiment, ground), ground.names, len(ground.names), places, edges, graph.is_directed())


def _title(experiment: Experiment, ground: Ground) -> str:
    t = experiment.topology
    family = f"file:{Path(t.family[5:]).name}" if t.family.startswith("file:") else t.family
    near = "" if t.metric == "hops" and t.threshold == 1 else f", {t.metric} within {t.threshold:g}"
    may = " (who may hear whom)" if t.metric == "model" or ground.is_measured else ""
    when = "" if ground.period == 1 else ", round 0"
    return f"{family}: {len(ground.names)} peers{near}{may}{when}"


def _ring(names: tuple[str, ...]) -> Network:
    n = len(names)
    edges = [(i, (i + 1) % n) for i in range(n) if n > 1]
    return Network(f"ring all-reduce: {n} peers", names, n, _circle(n), edges, directed=True)


def _star(experiment: Experiment, names: tuple[str, ...]) -> Network:
    """The coordinators stand in the middle, below each other."""
    n, coordinators = len(names), coordinators_of(experiment, names)
    k = len(coordinators)
    middle = [(0.0, 0.0)] if k == 1 else [(x * 0.35, y * 0.35) for x, y in _circle(k)]
    edges = [(i, n + j) for i in range(n) for j in range(k)]
    many = "a coordinator" if k == 1 else f"{k} coordinators"
    title = f"{n} peers around {many}"
    return Network(title, (*names, *coordinators), n, [*_circle(n), *middle], edges)


# ---- Places


BEND = 0.4
ROUND_FAMILIES = ("ring", "path", "complete", "smallworld", "exponential", "one_peer_exponential", "base_k")


def _places(experiment: Experiment, ground: Ground, graph: nx.Graph) -> list[Place]:
    n, family = len(ground.names), experiment.topology.family
    if family == "torus" and not any(entry.position for entry in experiment.peers):
        return _bent_lattice(experiment, n)
    if ground.positions is not None:
        return [(float(x), float(y)) for x, y in np.asarray(ground.positions)[:, :2]]
    if family == "star" and n > 2:
        hub = max(range(n), key=graph.degree)
        around = iter(_circle(n - 1))
        return [(0.0, 0.0) if i == hub else next(around) for i in range(n)]
    if family in ROUND_FAMILIES or ground.period != 1 or n > SPRUNG_PEERS:
        return _circle(n)
    sprung = nx.spring_layout(nx.Graph(graph), seed=experiment.seed % 2**32, iterations=200)
    return [(float(x), float(y)) for x, y in (sprung[i] for i in range(n))]


def _circle(n: int) -> list[Place]:
    """Return n places on a circle, clockwise from the top."""
    return [(sin(2 * pi * i / n), cos(2 * pi * i / n)) for i in range(n)]


def _bent_lattice(experiment: Experiment, n: int) -> list[Place]:
    """Return the places of a torus, row by row. Rows and columns are bent a little, so that an edge from one end to the
    other does not lie on those between."""
    rows = (experiment.topology.shape or (max(d for d in range(1, int(n**0.5) + 1) if n % d == 0),))[0]
    columns = n // rows
    middle_row, middle_column = (rows - 1) / 2 or 1.0, (columns - 1) / 2 or 1.0
    return [
        (j - BEND * (i / middle_row - 1) ** 2, -i - BEND * (j / middle_column - 1) ** 2)
        for i in range(rows)
        for j in range(columns)
    ]


# ---- Drawing


def draw_network(axes: Any, network: Network, look: Look = LIGHT) -> None:
    """Draw a network; peers are round, coordinators are squares."""
    n = len(network.names)
    size = 240.0 if n <= NAMED_PEERS else max(6.0, 5000 / n)
    axes.set_facecolor(look.paper)
    _draw_edges(axes, network, look, size)
    for nodes, shape, colour, larger in (
        (range(network.peers), "o", look.colours[0], 1.0),
        (range(network.peers, n), "s", look.colours[1], 1.7),
    ):
        x, y = ([network.places[i][axis] for i in nodes] for axis in (0, 1))
        axes.scatter(x, y, s=size * larger, marker=shape, c=colour, edgecolors=look.paper, linewidths=0.8, zorder=2)
    if n <= NAMED_PEERS:
        _write_names(axes, network, look)
    axes.set_title(plain(network.title, 70), fontsize=9.5, color=look.ink)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.16)
    axes.set_axis_off()


def _draw_edges(axes: Any, network: Network, look: Look, size: float) -> None:
    edges = network.edges[:DRAWN_EDGES]
    width = 1.1 if len(edges) <= 200 else 0.5
    if not network.directed or len(edges) > ARROWS:
        lines = [(network.places[a], network.places[b]) for a, b in edges]
        axes.add_collection(LineCollection(lines, colors=look.faint, linewidths=width, zorder=1))
        return
    arcs = nx.DiGraph(edges)
    bent = "arc3,rad=0.12" if any(arcs.has_edge(b, a) for a, b in edges) else "arc3"
    nx.draw_networkx_edges(
        arcs,
        dict(enumerate(network.places)),
        ax=axes,
        edge_color=look.faint,
        width=width,
        node_size=size,
        arrowsize=9,
        connectionstyle=bent,
    )


def _write_names(axes: Any, network: Network, look: Look) -> None:
    """Write short names into the nodes; longer ones beside them."""
    for i, name in enumerate(network.names):
        short, (x, y) = name.removeprefix("peer-"), network.places[i]
        if len(short) <= 2 and i < network.peers:
            axes.text(x, y, plain(short), fontsize=8, color=look.paper, ha="center", va="center", zorder=3)
        else:
            below = {"xytext": (0, -9), "textcoords": "offset points", "ha": "center", "va": "top"}
            paper = {"facecolor": look.paper, "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
            axes.annotate(plain(short, 18), (x, y), fontsize=7.5, color=look.ink, bbox=paper, zorder=3, **below)
