"""From the [topology] table to the ground that the peers stand on: who they are, and who hears whom in each round."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

import topology
from peer.assembly.choice import mixes_without_topology
from peer.assembly.links import links_of
from peer.errors import ConfigError, TrainingError
from peer.experiment import Experiment, disagreement
from peer.experiment.choices import is_factory
from peer.experiment.values import check_peer_name
from peer.task.factory import call_factory, load_factory, own_traceback

LOOKED_AT_ROUNDS = 200
"""How many rounds of a schedule without a period are looked at, where somebody wants to know what it is like."""


@dataclass(frozen=True, eq=False)
class Ground:
    """Peers in node order, and the mixing matrix of each round.

    `fixed` is who hears whom where that stays: the topology within the threshold. `rule` is what W was made by: one of
    topology.RULES, or "own" or "file" where it came with the topology. `is_measured`: these are candidates, and daemons
    find out by measuring who of them is near. `rounds` are those of the experiment where the schedule knows no others:
    that of a user's own function.
    """

    names: tuple[str, ...]
    schedule: topology.Schedule
    fixed: nx.Graph | None
    rule: str
    positions: NDArray[np.float64] | None = None
    is_measured: bool = False
    rounds: int | None = None

    @property
    def period(self) -> int | None:
        """After how many rounds the topology repeats: 1 for one that stays, None for never."""
        return self.schedule.period

    @cached_property
    def graph(self) -> nx.Graph:
        """Who ever hears whom: over a schedule's period, over its first rounds where it has none."""
        return topology.union_graph(self.schedule, len(self.rounds_seen)) if self.fixed is None else self.fixed

    @cached_property
    def rounds_seen(self) -> range:
        """The rounds by which the topology is judged: its period, or the first of those without one."""
        return range(self.period or min(LOOKED_AT_ROUNDS, self.rounds or LOOKED_AT_ROUNDS))

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
        key = f"topology.{error.key}" if error.key else "topology"
        raise ConfigError(key, error.problem, _details(error)) from error


# ---- The three kinds


def _static(experiment: Experiment, net: topology.Net, measures: bool) -> Ground:
    t = experiment.topology
    names = _names(experiment, net.names, net.named)
    net = replace(net, positions=_places(experiment, names, net))
    is_measured = measures and t.metric == "rtt"
    graph = _within_earshot(experiment, net, names, is_measured)
    if not _may_fall_apart(experiment) and not topology.is_connected(graph):
        raise _apart(experiment, net, graph, names)
    if t.weights == "auto" and t.metric == "hops" and t.threshold == 1 and net.matrix is not None:
        rule = "file" if t.family.startswith("file:") else "own"  # it stands while the neighbours are its own
        weights = topology.mixing_matrix(graph, matrix=net.matrix)
    else:
        rule = _rule(experiment, graph.is_directed())
        weights = topology.mixing_matrix(graph, rule, family=net.family)
    return Ground(names, topology.Cycle((weights,)), graph, rule, net.positions, is_measured)


def _time_varying(experiment: Experiment) -> Ground:
    t = experiment.topology
    _check_count(experiment, experiment.stated_counts())
    among, stated = _among(experiment), _stated_count(experiment)
    count = stated or (len(among) if among is not None else topology.DEFAULT_PEERS)
    rule = _schedule_rule(experiment)
    schedule = topology.schedule(
        t.family,
        count,
        weights="auto" if rule == "own" else rule,
        threshold=t.threshold,
        k=t.k,
        fanout=t.fanout,
        variant=t.variant,
        pairs=t.pairs,
        among=among,
        speed=t.speed,
        margin=t.margin,
        seed=experiment.seed if t.seed is None else t.seed,
        positions=_stated_positions(experiment) if t.family == "mobile" else None,
    )
    names = _names(experiment, tuple(f"peer-{i}" for i in range(count)), named=False)
    if among is not None and not _may_fall_apart(experiment) and not topology.is_connected(among):
        raise _never_meet(names, among, "topology.among")
    positions = schedule.positions(0) if isinstance(schedule, topology.Mobile) else None
    return Ground(names, schedule, None, rule, positions)


def _given(experiment: Experiment, measures: bool) -> Ground:
    """What a user's own function makes."""
    t = experiment.topology
    counts = experiment.stated_counts()
    factory = load_factory(t.family, "topology.family", experiment.folder)
    _check_arguments(factory, experiment)
    offered = {
        "peers": _stated_count(experiment) or topology.DEFAULT_PEERS,
        "seed": experiment.seed if t.seed is None else t.seed,
        "rounds": experiment.rounds,
        **(t.args or {}),
    }
    made = topology.given(
        call_factory(factory, t.family, "topology.family", **offered),
        t.family,
        t.weights,
        pushes=experiment.algorithm.name == "push_sum",
        rounds=experiment.rounds,
    )
    if isinstance(made, topology.Net):
        _check_count(experiment, counts | {t.family: len(made.names)})
        return _static(experiment, made, measures)
    _check_count(experiment, counts | {t.family: made.schedule.peers})
    return _in_rounds(experiment, made)


def _in_rounds(experiment: Experiment, made: topology.Rounds) -> Ground:
    """What a user's own list, or function of the round, comes to."""
    t, schedule = experiment.topology, made.schedule
    if t.metric != "hops" or t.threshold != 1:
        key = "metric" if t.metric != "hops" else "threshold"
        raise topology.TopologyError(key, f"{t.family} says itself who hears whom in which round; leave it out")
    default = tuple(f"peer-{i}" for i in range(schedule.peers))
    names = _names(experiment, made.names or default, made.names is not None)
    rule = "own" if made.brings_weights and t.weights == "auto" else _rule(experiment, schedule.directed)
    if schedule.period is None:
        return Ground(names, _Reported(schedule), None, rule, rounds=experiment.rounds or None)
    ground = Ground(names, schedule, None, rule)
    if not _may_fall_apart(experiment) and not topology.is_connected(ground.graph):
        raise _never_meet(names, ground.graph, "topology.family")
    return ground


@dataclass(frozen=True, eq=False)
class _Reported:
    """The schedule of a user's function: what is wrong in a round that comes up later ends the run in words."""

    schedule: topology.Schedule

    @property
    def peers(self) -> int:
        return self.schedule.peers

    @property
    def period(self) -> int | None:
        return self.schedule.period

    @property
    def directed(self) -> bool:
        return self.schedule.directed

    def matrix(self, round: int) -> csr_array:
        try:
            return self.schedule.matrix(round)
        except topology.TopologyError as error:
            raise TrainingError(f"topology.{error.key}: {error.problem}", _details(error)) from error


def _details(error: topology.TopologyError) -> str:
    """Return the traceback of the user's own function, "" where it raised nothing."""
    return "" if error.__cause__ is None else own_traceback(error.__cause__)


# ---- Parts


def _net(experiment: Experiment) -> topology.Net:
    t = experiment.topology
    is_file = t.family.startswith("file:")  # which has its own count, and positions go by its names
    try:
        net = topology.build(
            t.family,
            t.peers if is_file else _stated_count(experiment),
            shape=t.shape,
            degree=t.degree,
            k=t.k,
            p=t.p,
            m=t.m,
            args=t.args,
            seed=experiment.seed if t.seed is None else t.seed,
            positions=None if is_file else _stated_positions(experiment),
            directed=bool(t.directed),
            folder=experiment.folder,
        )
    except topology.TopologyError as error:
        raise _blaming_who_counts(experiment, error) from None
    _check_count(experiment, experiment.stated_counts() | {t.family: len(net.names)})
    return net


def _blaming_who_counts(experiment: Experiment, error: topology.TopologyError) -> Exception:
    """Return the error, with the key that gives the number of peers to blame where topology.peers does not."""
    counts = experiment.stated_counts()
    if error.key != "peers" or experiment.topology.peers is not None or not counts:
        return error
    return ConfigError(next(iter(counts)), f"gives {_stated_count(experiment)} peers, but {error.problem}")


def _stated_count(experiment: Experiment) -> int | None:
    """Return how many peers the file says there are, in whatever way it says so."""
    stated = experiment.topology.peers
    return stated if stated is not None else next(iter(experiment.stated_counts().values()), None)


def _stated_positions(experiment: Experiment) -> NDArray[np.float64] | None:
    positions = [entry.position for entry in experiment.peer_entries() if entry.position is not None]
    return np.array(positions) if positions else None


def _places(experiment: Experiment, names: Sequence[str], net: topology.Net) -> NDArray[np.float64] | None:
    """Return where the peers stand, (n, 2), in node order: [[peers]] go before what the graph says."""
    stated = {entry.name: entry.position for entry in experiment.peer_entries() if entry.position is not None}
    return np.array([stated[name] for name in names]) if stated else net.positions


def _check_arguments(factory: Callable[..., object], experiment: Experiment) -> None:
    """Refuse arguments in topology.args that the factory does not take: it would do without them, and say nothing."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (ValueError, TypeError):  # some functions written in C tell nothing of theirs
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    taken = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in experiment.topology.args or {}:
        if name not in taken:
            takes = ", ".join(taken) or "none"
            text = f"{experiment.topology.family} takes no argument {name}; it takes {takes}"
            raise ConfigError(f"topology.args.{name}", text)


def _check_count(experiment: Experiment, counts: Mapping[str, int]) -> None:
    stated = experiment.topology.peers
    if text := disagreement(dict(counts) if stated is None else {"topology.peers": stated, **counts}):
        raise ConfigError("", text)


def _among(experiment: Experiment) -> nx.Graph | None:
    """Return the graph along whose edges peers are matched, None where anybody may meet anybody."""
    t = experiment.topology
    if t.among is None or t.among == "complete":
        return None
    is_file = t.among.startswith("file:")
    try:
        net = topology.build(t.among, None if is_file else _stated_count(experiment), folder=experiment.folder)
    except topology.TopologyError as error:
        if error.key == "family":
            raise topology.TopologyError("among", error.problem) from None
        raise _blaming_who_counts(experiment, error) from None
    _check_count(experiment, experiment.stated_counts() | {t.among: len(net.names)})
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
    links, limit = links_of(experiment, names), experiment.topology.threshold * (1.0 + topology.ROUNDING)
    near = nx.Graph()
    near.add_nodes_from(graph)
    for a, b in graph.edges:
        rtt_ms = links.round_trip_ms(a, b)
        if rtt_ms <= limit:
            near.add_edge(a, b, distance=rtt_ms)
    return near


def _rule(experiment: Experiment, directed: bool) -> str:
    """Return the rule for W of a graph: "auto" on a directed one is what the algorithm needs."""
    if experiment.topology.weights != "auto":
        return experiment.topology.weights
    if not directed:
        return "metropolis"
    return "push" if experiment.algorithm.name == "push_sum" else "uniform"


def _schedule_rule(experiment: Experiment) -> str:
    """Return the rule for W of a family that changes: all but mobile bring their own."""
    t = experiment.topology
    if t.family == "mobile":
        return _rule(experiment, directed=False)
    if t.weights == "auto":
        needs_columns = t.variant == "local" and experiment.algorithm.name == "push_sum"
        return "push" if needs_columns else "own"
    return t.weights


def _names(experiment: Experiment, names: tuple[str, ...], named: bool) -> tuple[str, ...]:
    """Return the peers' names in node order: the file's [[peers]], else the graph's, else peer-0 and so on."""
    for name in names if named else ():
        try:
            check_peer_name(name)
        except ValueError as error:
            raise topology.TopologyError("family", f"the node's name {error}") from None
    entries = [entry.name for entry in experiment.peer_entries()]
    if not entries:
        return names
    if named and set(entries) != set(names):
        strangers = sorted(set(entries) ^ set(names))
        raise ConfigError("peers", f"the names in [[peers]] and in the graph differ: {', '.join(strangers[:8])}")
    return names if named else tuple(entries)


# ---- Graphs that fall apart


def _may_fall_apart(experiment: Experiment) -> bool:
    t = experiment.topology
    return t.allow_disconnected or t.family == "mobile" or mixes_without_topology(experiment)


def _apart(experiment: Experiment, net: topology.Net, graph: nx.Graph, names: Sequence[str]) -> ConfigError:
    t = experiment.topology
    parts = topology.components(graph)
    if len(parts) == 1 or t.metric == "model":
        return _never_meet(names, graph, "topology.family")
    enough = None if t.metric == "rtt" else topology.connecting_threshold(net, t.metric)
    mend = f"{enough:.4g} would connect them" if enough is not None else "raise it"
    return ConfigError(
        "topology.threshold",
        f"at {t.threshold:g} the peers fall apart into {_listed(parts, names)}. "
        f"{mend[0].upper() + mend[1:]}, or set topology.allow_disconnected = true",
    )


def _never_meet(names: Sequence[str], graph: nx.Graph, key: str) -> ConfigError:
    """Return the refusal of a graph, of all rounds together, in which some never hear of others."""
    parts = topology.components(graph)
    text = f"the peers fall apart into {_listed(parts, names)}, whatever the round"
    if len(parts) == 1:
        says, missed = next(
            (node, missed) for node in sorted(graph) if (missed := set(graph) - nx.descendants(graph, node) - {node})
        )
        text = f"what {names[says]} says never reaches {names[min(missed)]} along the arcs"
    return ConfigError(key, f"{text}; set topology.allow_disconnected = true if that is meant")


def _listed(parts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    shown = "; ".join(_component(part, names) for part in parts[:8])
    return f"{len(parts)} components: {shown}{f'; and {len(parts) - 8} more' if len(parts) > 8 else ''}"


def _component(nodes: Sequence[int], names: Sequence[str]) -> str:
    shown = ", ".join(names[i] for i in nodes[:6])
    return f"{{{shown}{f', and {len(nodes) - 6} more' if len(nodes) > 6 else ''}}}"
