"""What an experiment will be, before anything trains."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import networkx as nx
import torch

import topology
from peer.assembly import Assembly, assemble, prepare_task
from peer.assembly.demands import limit_warnings, stochasticities
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.learner import wire_forms
from peer.record import Row
from peer.task.layout import Layout
from peer.task.local import PlainTrainer
from peer.task.task import Task

MATRIX_PEERS = 2000

MATRICES_SHOWN = 8
"""Of a schedule that never repeats."""

DIAMETER_PEERS = 5000
"""The diameter takes time with the square of the peers; beyond so many it is left out."""


@dataclass(frozen=True)
class Explanation:
    """The document, what a person should be warned of, and the assembly for those who want to show more."""

    document: Row
    warnings: list[str]
    assembly: Assembly
    layout: Layout


def explain(experiment: Experiment, *, matrix: bool = False) -> Explanation:
    """Describe an experiment. Raises ConfigError for what cannot work."""
    assembly = assemble(experiment)
    task = prepare_task(assembly)
    n, graph = len(assembly.names), assembly.graph
    seen = assembly.ground.rounds_seen
    mean_messages = fsum(map(assembly.messages_in, seen)) / len(seen)
    payload_bytes = _payload_bytes(assembly, task)
    document: Row = {
        "peers": n,
        "edges": graph.number_of_edges(),
        "connected": topology.is_connected(graph),
        "diameter": topology.diameter(graph) if n <= DIAMETER_PEERS else None,
        "degree": _degrees([graph]),
        "metric": experiment.topology.metric,
        "threshold": experiment.topology.threshold if experiment.topology.threshold < float("inf") else None,
        "neighbours": {name: _heard(assembly, i) for i, name in enumerate(assembly.names)},
        "weights": _rule(assembly),
        "stochastic": _stochastic(assembly),
        **_mixing_speed(assembly),
        "parameters": task.layout.trainable,
        "memory_bytes": n * memory_bytes(assembly, task),
        "payload_bytes_per_message": payload_bytes,
        "bytes_per_round": round(mean_messages * payload_bytes),
    }
    if assembly.ground.period != 1:
        document["schedule"] = _schedule(assembly)
    if matrix:
        document |= _matrices(assembly)
    return Explanation(document, warnings_of(assembly), assembly, task.layout)


def _matrices(assembly: Assembly) -> Row:
    n, period = len(assembly.names), assembly.ground.period
    if n > MATRIX_PEERS:
        raise ConfigError("--matrix", f"{n} x {n} numbers are too many to print; up to {MATRIX_PEERS} peers")
    rounds = [assembly.ground.matrix(t).toarray().tolist() for t in range(period or MATRICES_SHOWN)]
    return {"matrix": rounds[0]} if period == 1 else {"matrices": rounds}


def _mixing_speed(assembly: Assembly) -> Row:
    """Return slem and rounds to consensus; where W changes, how much a round shrinks disagreement, as measured."""
    schedule = assembly.ground.schedule
    if schedule.period == 1:
        slem = topology.slem(schedule.matrix(0))
        rounds = topology.rounds_to_consensus(slem)
    else:
        slem = topology.contraction(schedule, len(assembly.ground.rounds_seen))
        rounds = topology.measured_rounds_to_consensus(schedule)
    return {"slem": slem, "spectral_gap": 1.0 - slem, "rounds_to_consensus": rounds}


def _schedule(assembly: Assembly) -> Row:
    """Return what the single rounds are like, where one is not like the other."""
    ground = assembly.ground
    graphs = [topology.graph_of(ground.matrix(t), ground.graph.is_directed()) for t in ground.rounds_seen]
    edges = [graph.number_of_edges() for graph in graphs]
    return {
        "period": ground.period,
        "rounds_seen": len(graphs),
        "connected_share": sum(map(topology.is_connected, graphs)) / len(graphs),
        "edges": {"min": min(edges), "max": max(edges), "mean": fsum(edges) / len(edges)},
        "degree": _degrees(graphs),
    }


def _degrees(graphs: Sequence[nx.Graph]) -> Row:
    """Return how many peers a peer hears, over all peers and graphs."""
    degrees = [d for graph in graphs for _, d in (graph.in_degree() if graph.is_directed() else graph.degree())]
    return {"min": min(degrees), "max": max(degrees), "mean": sum(degrees) / len(degrees)}


def _stochastic(assembly: Assembly) -> str:
    """Return which sums of W are 1 in all rounds."""
    kinds = stochasticities(assembly.ground)
    by_rows, by_columns = kinds <= {"doubly", "row"}, kinds <= {"doubly", "column"}
    return ("doubly" if by_columns else "row") if by_rows else ("column" if by_columns else "none")


def warnings_of(assembly: Assembly) -> list[str]:
    """Return what works, but not as one might think."""
    return limit_warnings(assembly.experiment, assembly.ground)


def memory_bytes(assembly: Assembly, task: Task) -> int:
    """Return what one peer needs for training: its model, the state of its algorithm, gradient and momentum, and
    the two vectors that a local step works on. Not the data, and not what the model keeps for the backward pass."""
    x = task.start(0)
    state = sum(t.numel() * t.element_size() for t in assembly.fitted(task.layout).init(x).values())
    if task.built is None:
        return state
    model: int = sum(t.numel() * t.element_size() for t in task.built.module.state_dict().values())
    trainer = task.trainer(torch.device("cpu"))
    assert isinstance(trainer, PlainTrainer)
    memory = trainer.memory()
    momentum = 0 if memory.momentum is None else memory.momentum.numel() * memory.momentum.element_size()
    work = 3 * x.numel() * x.element_size()  # gradient, delta, and the point they belong to
    return int(model + state + momentum + work)


def _payload_bytes(assembly: Assembly, task: Task) -> int:
    """Return the bytes that one peer sends to one listener in a round."""
    forms = wire_forms(assembly.fitted(task.layout), task.start(0))
    return sum(t.numel() * t.element_size() for form in forms for t in form.values())


def _heard(assembly: Assembly, i: int) -> list[str]:
    graph = assembly.graph
    heard = graph.predecessors(i) if graph.is_directed() else graph.neighbors(i)
    return [assembly.names[j] for j in sorted(heard)]


def _rule(assembly: Assembly) -> str:
    """Return the rule that W was made by; what a family or a file brings is its own."""
    t, ground = assembly.experiment.topology, assembly.ground
    if t.weights != "auto":
        return t.weights
    if ground.own_weights:
        return "file" if t.family.startswith("file:") else "own"
    if not ground.graph.is_directed():
        return "metropolis"
    return "push" if assembly.algorithm.stochastic == "column" else "uniform"
