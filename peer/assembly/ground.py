"""From the [topology] table to the ground that the peers stand on: who they are, and who hears whom in each round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

import topology
from peer.assembly.latency import latencies_of
from peer.errors import ConfigError
from peer.experiment import Experiment, disagreement
from peer.experiment.choices import is_factory
from peer.task.factory import call_factory, load_factory

LOOKED_AT_ROUNDS = 200
"""How many rounds of a schedule without a period are looked at, where somebody wants to know what it is like."""


@dataclass(frozen=True, eq=False)
class Ground:
    """Peers in node order, and the mixing matrix of each round.

    `graph` holds who ever hears whom: the topology within the threshold, or the union over a schedule's period, over
    its first rounds where it has none. `own_weights` says whether W came with the topology. `is_measured`: these are
    candidates, and daemons find out by measuring who of them is near.
    """

    names: tuple[str, ...]
    schedule: topology.Schedule
    graph: nx.Graph
    positions: NDArray[np.float64] | None = None
    own_weights: bool = False
    is_measured: bool = False

    @property
    def period(self) -> int | None:
        """After how many rounds the topology repeats: 1 for one that stays, None for never."""
        return self.schedule.period

    @cached_property
    def rounds_seen(self) -> range:
        """The rounds by which the topology is judged: its period, or the first of those without one."""
        return range(self.period or LOOKED_AT_ROUNDS)

    def matrix(self, round: int) -> csr_array:
        """Return W of a round, (n, n) in float64."""
        return self.schedule.matrix(round)


def ground_of(experiment: Experiment, *, measures: bool = False) -> Ground:
    """Build the topology; `measures` is for daemons, which measure round trips instead of reading them from [network].

    Raises ConfigError naming the key, and the components of a graph that falls apart.
    """
    try:
        if experiment.topology.family in topology.SCHEDULES:
            return _time_varying(experiment)
        if is_factory(experiment.topology.family):
            return _given(experiment, measures)
        return _static(experiment, _net(experiment), measures)
    except topology.TopologyError as error:
        raise ConfigError(f"topology.{error.key}" if error.key else "topology", error.problem) from error


# ---- The three kinds


def _static(experiment: Experiment, net: topology.Net, measures: bool) -> Ground:
    t = experiment.topology
    names = _names(experiment, net.names, net.named)
    is_measured = measures and t.metric == "rtt"
    graph = _within_earshot(experiment, net, names, is_measured)
    if not _may_fall_apart(experiment) and not topology.is_connected(graph):
        raise _apart(experiment, net, graph, names)
    own = net.matrix if t.metric == "hops" and t.threshold == 1 else None  # it stands while the neighbours are its own
    weights = topology.mixing_matrix(graph, _rule(experiment, graph, own), family=net.family, matrix=own)
    is_own = own is not None and t.weights == "auto"
    return Ground(names, topology.Cycle((weights,)), graph, net.positions, is_own, is_measured)


def _time_varying(experiment: Experiment) -> Ground:
    t = experiment.topology
    count = _stated_count(experiment) or topology.DEFAULT_PEERS
    _check_count(experiment, experiment.stated_counts())
    among = _among(experiment, count)
    needs_push = t.weights == "auto" and t.variant == "local" and experiment.algorithm.name == "push_sum"
    schedule = topology.schedule(
        t.family,
        count,
        weights="push" if needs_push else t.weights,
        threshold=t.threshold,
        k=t.k,
        fanout=t.fanout,
        variant=t.variant,
        pairs=t.pairs,
        among=among,
        speed=t.speed,
        margin=t.margin,
        seed=experiment.seed if t.seed is None else t.seed,
        positions=_stated_positions(experiment),
    )
    names = _names(experiment, tuple(f"peer-{i}" for i in range(count)), named=False)
    ground = _scheduled(experiment, names, schedule)
    if among is not None and not _may_fall_apart(experiment) and not topology.is_connected(among):
        raise _schedule_apart(names, among, "topology.among")
    return ground


def _given(experiment: Experiment, measures: bool) -> Ground:
    """What a user's own function makes."""
    t = experiment.topology
    counts = experiment.stated_counts()
    factory = load_factory(t.family, "topology.family", experiment.folder)
    offered = {
        "peers": _stated_count(experiment) or topology.DEFAULT_PEERS,
        "seed": experiment.seed if t.seed is None else t.seed,
        "rounds": experiment.rounds,
        **(t.args or {}),
    }
    made = topology.given(call_factory(factory, t.family, "topology.family", **offered), t.family, t.weights)
    if isinstance(made, topology.Net):
        _check_count(experiment, counts | {t.family: len(made.names)})
        return _static(experiment, made, measures)
    _check_count(experiment, counts | {t.family: made.peers})
    if t.metric != "hops" or t.threshold != 1:
        raise topology.TopologyError("metric", f"{t.family} says itself who hears whom in which round; leave it out")
    return _scheduled(experiment, _names(experiment, tuple(f"peer-{i}" for i in range(made.peers)), False), made)


def _scheduled(experiment: Experiment, names: tuple[str, ...], schedule: topology.Schedule) -> Ground:
    graph = topology.union_graph(schedule, LOOKED_AT_ROUNDS)
    if schedule.period is not None and not _may_fall_apart(experiment) and not topology.is_connected(graph):
        raise _schedule_apart(names, graph, "topology.family")
    positions = schedule.positions(0) if isinstance(schedule, topology.Mobile) else None
    return Ground(names, schedule, graph, positions, experiment.topology.weights == "auto")


# ---- Parts


def _net(experiment: Experiment) -> topology.Net:
    t = experiment.topology
    counts, stated = experiment.stated_counts(), _stated_count(experiment)
    try:
        net = topology.build(
            t.family,
            stated,
            shape=t.shape,
            degree=t.degree,
            k=t.k,
            p=t.p,
            m=t.m,
            args=t.args,
            seed=experiment.seed if t.seed is None else t.seed,
            positions=_stated_positions(experiment),
            directed=bool(t.directed),
            folder=experiment.folder,
        )
    except topology.TopologyError as error:
        if error.key == "peers" and t.peers is None and counts:
            key = next(iter(counts))
            raise ConfigError(key, f"gives {stated} peers, but {error.problem}") from error
        raise
    _check_count(experiment, counts | {t.family: net.graph.number_of_nodes()})
    return net


def _stated_count(experiment: Experiment) -> int | None:
    """Return how many peers the file says there are, in whatever way it says so."""
    stated = experiment.topology.peers
    return stated if stated is not None else next(iter(experiment.stated_counts().values()), None)


def _stated_positions(experiment: Experiment) -> NDArray[np.float64] | None:
    positions = [entry.position for entry in experiment.peers if entry.position is not None]
    return np.array(positions) if positions else None


def _check_count(experiment: Experiment, counts: Mapping[str, int]) -> None:
    stated = experiment.topology.peers
    if text := disagreement(dict(counts) if stated is None else {**counts, "topology.peers": stated}):
        raise ConfigError("", text)


def _among(experiment: Experiment, count: int) -> nx.Graph | None:
    """Return the graph along whose edges peers are matched, None where anybody may meet anybody."""
    t = experiment.topology
    if t.among is None or t.among == "complete":
        return None
    net = topology.build(t.among, count, folder=experiment.folder)
    if net.graph.is_directed():
        raise topology.TopologyError("among", f"{t.among} is directed, and two peers that are matched hear each other")
    return nx.Graph(net.graph)


def _within_earshot(experiment: Experiment, net: topology.Net, names: Sequence[str], is_measured: bool) -> nx.Graph:
    """Return who hears whom, or may: "model" and measured round trips decide only in the run."""
    t = experiment.topology
    if t.metric not in ("model", "rtt"):
        return topology.neighbours(net, t.metric, t.threshold)
    graph = topology.neighbours(net, "hops", 1.0)
    if graph.is_directed():
        raise topology.TopologyError("metric", f'"{t.metric}" is the same both ways, and the graph is directed')
    return graph if t.metric == "model" or is_measured else _within_round_trip(experiment, graph, names)


def _within_round_trip(experiment: Experiment, graph: nx.Graph, names: Sequence[str]) -> nx.Graph:
    latencies = latencies_of(experiment, names)
    near = nx.Graph()
    near.add_nodes_from(graph)
    for a, b in graph.edges:
        rtt_ms = latencies.round_trip_ms(a, b)
        if rtt_ms <= experiment.topology.threshold:
            near.add_edge(a, b, distance=rtt_ms)
    return near


def _rule(experiment: Experiment, graph: nx.Graph, own: csr_array | None) -> str:
    """Return the rule for W; what "auto" is for push-sum on a directed graph is push, for it needs columns."""
    t = experiment.topology
    if t.weights == "auto" and own is None and graph.is_directed() and experiment.algorithm.name == "push_sum":
        return "push"
    return t.weights


def _names(experiment: Experiment, names: tuple[str, ...], named: bool) -> tuple[str, ...]:
    """Return the peers' names in node order: the file's [[peers]], else the graph's, else peer-0 and so on."""
    entries = [entry.name for entry in experiment.peers]
    if not entries:
        return names
    if named and set(entries) != set(names):
        strangers = sorted(set(entries) ^ set(names))
        raise ConfigError("peers", f"the names in [[peers]] and in the graph differ: {', '.join(strangers[:8])}")
    return names if named else tuple(entries)


# ---- Graphs that fall apart


def _may_fall_apart(experiment: Experiment) -> bool:
    t = experiment.topology
    return t.allow_disconnected or t.family == "mobile" or experiment.algorithm.name in ("local", "exact")


def _apart(experiment: Experiment, net: topology.Net, graph: nx.Graph, names: Sequence[str]) -> ConfigError:
    t = experiment.topology
    parts = topology.components(graph)
    if len(parts) == 1:
        return _one_way_only("topology")
    if t.metric == "model":
        return _schedule_apart(names, graph, "topology.family")
    enough = None if t.metric == "rtt" else topology.connecting_threshold(net, t.metric)
    mend = f"{enough:.4g} would connect them" if enough is not None else "raise it"
    return ConfigError(
        "topology.threshold",
        f"at {t.threshold:g} the peers fall apart into {_listed(parts, names)}. "
        f"{mend[0].upper() + mend[1:]}, or set topology.allow_disconnected = true",
    )


def _schedule_apart(names: Sequence[str], graph: nx.Graph, key: str) -> ConfigError:
    parts = topology.components(graph)
    if len(parts) == 1:
        return _one_way_only(key)
    text = f"the peers fall apart into {_listed(parts, names)}, over all rounds"
    return ConfigError(key, f"{text}; set topology.allow_disconnected = true if that is meant")


def _one_way_only(key: str) -> ConfigError:
    text = "not every peer can reach every other along the arcs; add arcs or set allow_disconnected = true"
    return ConfigError(key, text)


def _listed(parts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    shown = "; ".join(_component(part, names) for part in parts[:8])
    return f"{len(parts)} components: {shown}{f'; and {len(parts) - 8} more' if len(parts) > 8 else ''}"


def _component(nodes: Sequence[int], names: Sequence[str]) -> str:
    shown = ", ".join(names[i] for i in nodes[:6])
    return f"{{{shown}{f', and {len(nodes) - 6} more' if len(nodes) > 6 else ''}}}"
