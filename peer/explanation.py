"""What an experiment will be, before anything trains."""

from dataclasses import dataclass

import torch

import topology
from peer.assembly import Assembly, assemble, prepare_task
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.learner import message_forms
from peer.record import Row
from peer.task.layout import Layout
from peer.task.local import PlainTrainer
from peer.task.task import Task

MATRIX_PEERS = 2000

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
    degrees = [d for _, d in (graph.in_degree() if graph.is_directed() else graph.degree())]
    slem = topology.slem(assembly.weights)
    payload_bytes = _payload_bytes(assembly, task)
    document: Row = {
        "peers": n,
        "edges": graph.number_of_edges(),
        "connected": topology.is_connected(graph),
        "diameter": topology.diameter(graph) if n <= DIAMETER_PEERS else None,
        "degree": {"min": min(degrees), "max": max(degrees), "mean": sum(degrees) / n},
        "metric": experiment.topology.metric,
        "threshold": experiment.topology.threshold if experiment.topology.threshold < float("inf") else None,
        "neighbours": {name: _heard(assembly, i) for i, name in enumerate(assembly.names)},
        "weights": _rule(assembly),
        "stochastic": topology.stochasticity(assembly.weights),
        "slem": slem,
        "spectral_gap": 1.0 - slem,
        "rounds_to_consensus": topology.rounds_to_consensus(slem),
        "parameters": task.layout.trainable,
        "memory_bytes": n * memory_bytes(assembly, task),
        "payload_bytes_per_message": payload_bytes,
        "bytes_per_round": assembly.messages_per_round() // assembly.algorithm.exchanges * payload_bytes,
    }
    if matrix:
        if n > MATRIX_PEERS:
            raise ConfigError("--matrix", f"{n} x {n} numbers are too many to print; up to {MATRIX_PEERS} peers")
        document["matrix"] = assembly.weights.toarray().tolist()
    return Explanation(document, warnings_of(assembly), assembly, task.layout)


def warnings_of(assembly: Assembly) -> list[str]:
    """Return what works, but not as one might think."""
    name = assembly.experiment.algorithm.name
    if name == "dpsgd" and topology.stochasticity(assembly.weights) == "row":
        return [
            "the rows of the mixing matrix sum to 1 and its columns do not: D-PSGD then tends to a weighted mean of "
            'the peers instead of their mean; on an undirected graph topology.weights = "metropolis" gives the mean'
        ]
    return []


def memory_bytes(assembly: Assembly, task: Task) -> int:
    """Return what one peer needs for training: its model, the state of its algorithm, gradient and momentum, and
    the two vectors that a local step works on. Not the data, and not what the model keeps for the backward pass."""
    x = task.start(0)
    state = sum(t.numel() * t.element_size() for t in assembly.algorithm.init(x).values())
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
    forms = message_forms(assembly.algorithm, task.start(0))
    return sum(t.numel() * t.element_size() for form in forms for t in form.values())


def _heard(assembly: Assembly, i: int) -> list[str]:
    graph = assembly.graph
    heard = graph.predecessors(i) if graph.is_directed() else graph.neighbors(i)
    return [assembly.names[j] for j in sorted(heard)]


def _rule(assembly: Assembly) -> str:
    t = assembly.experiment.topology
    if t.weights != "auto":
        return t.weights
    if assembly.net.matrix is not None and t.metric == "hops" and t.threshold == 1:
        return "file"
    return "uniform" if assembly.graph.is_directed() else "metropolis"
