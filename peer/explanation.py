"""What an experiment will be, before anything trains."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import networkx as nx
import torch

import topology
from peer.algorithms.algorithm import bytes_of
from peer.assembly import Assembly, assemble, prepare_task
from peer.assembly.coordination import beside_of, centre_of, chosen_of, parcels_of
from peer.assembly.demands import limit_warnings, stochasticities
from peer.assembly.pace import seconds_per_round
from peer.errors import ConfigError, TrainingError
from peer.experiment import Experiment
from peer.experiment.choices import ORDERS
from peer.learner import wire_forms
from peer.record import Row, finite
from peer.require import parse_stop
from peer.task.layout import Layout
from peer.task.local import PlainTrainer
from peer.task.task import Task

MATRIX_PEERS = 2000
"""One matrix of so many peers is shown, or several with as many numbers in all."""

LIMIT_ROUNDS, LIMIT_PEER_ROUNDS = 10_000, 1_000_000
"""For how many rounds, and rounds times peers, consensus is waited for where it is measured."""

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

    @property
    def has_orders(self) -> bool:
        """Whether the algorithm has more than one order."""
        return self.assembly.experiment.algorithm.name in ORDERS

    @property
    def rounds_waited(self) -> int:
        """For how many rounds consensus is waited for where W changes from round to round."""
        return _rounds_waited(self.assembly)


def explain(experiment: Experiment, *, matrix: bool = False) -> Explanation:
    """Describe an experiment. Raises ConfigError for what cannot work."""
    parse_stop(experiment.stop_when)
    assembly = assemble(experiment)
    ground = replace(assembly.ground, schedule=topology.Remembered(assembly.ground.schedule))
    assembly = replace(assembly, ground=ground)
    task = prepare_task(assembly)
    try:
        document = _document(assembly, task)
        if matrix:
            document |= _matrices(assembly)
    except TrainingError as error:  # a round of the user's own, of those that are looked at; nothing runs yet
        raise ConfigError("", str(error), error.details) from error
    return Explanation(document, warnings_of(assembly), assembly, task.layout)


def _document(assembly: Assembly, task: Task) -> Row:
    n, t, ground = len(assembly.names), assembly.experiment.topology, assembly.ground
    seen = topology.overview(ground.schedule, len(ground.rounds_seen))
    in_rounds = assembly.uses_topology and assembly.experiment.algorithm.name != "adpsgd"
    messages = seen.messages if in_rounds else assembly.messages_in(0)
    payload_bytes = payload_bytes_of(assembly, task)
    apart = coordination_of(assembly, payload_bytes)
    document: Row = {
        "peers": n,
        "edges": ground.graph.number_of_edges(),
        "connected": topology.is_connected(ground.graph),
        "diameter": topology.diameter(ground.graph) if n <= DIAMETER_PEERS else None,
        "degree": _degree(ground.graph),
        "metric": t.metric,
        "threshold": finite(t.threshold),
        "neighbours": {name: _heard(assembly, i) for i, name in enumerate(assembly.names)},
        "weights": ground.rule,
        "stochastic": _stochastic(assembly),
        **_mixing_speed(assembly),
        "parameters": task.layout.trainable,
        "memory_bytes": n * memory_bytes(assembly, task) + _coordinators_bytes(assembly, task),
        "payload_bytes_per_message": sum(payload_bytes) if apart is None else payload_bytes[0],
        "bytes_per_round": round(messages * sum(payload_bytes)) if apart is None else apart["bytes_per_round"],
        "seconds_per_round": finite(seconds_per_round(assembly, payload_bytes)),
    }
    if apart is not None:
        document["coordinator"] = apart
    if ground.period != 1:
        document["schedule"] = {
            "period": ground.period,
            "rounds_seen": seen.rounds,
            "connected_share": seen.connected / seen.rounds,
            "edges": seen.edges._asdict(),
            "degree": seen.heard._asdict(),
        }
    return document


def _matrices(assembly: Assembly) -> Row:
    n, period = len(assembly.names), assembly.ground.period
    count = min(MATRICES_SHOWN, len(assembly.ground.rounds_seen)) if period is None else period
    if count * n * n > MATRIX_PEERS**2:
        of = "" if count == 1 else f"{count} times "
        most = int(MATRIX_PEERS / count**0.5)
        raise ConfigError("--matrix", f"{of}{n} x {n} numbers are too many to print; up to {most} peers")
    rounds = [assembly.ground.matrix(t).toarray().tolist() for t in range(count)]
    return {"matrix": rounds[0]} if period == 1 else {"matrices": rounds}


def _mixing_speed(assembly: Assembly) -> Row:
    """Return slem and rounds to consensus; where W changes, how much a round shrinks disagreement, as measured."""
    ground = assembly.ground
    if ground.period == 1:
        slem = topology.slem(ground.matrix(0))
        rounds = topology.rounds_to_consensus(slem)
    else:
        slem = topology.contraction(ground.schedule, len(ground.rounds_seen))
        rounds = topology.measured_rounds_to_consensus(ground.schedule, limit=_rounds_waited(assembly))
    return {"slem": finite(slem), "spectral_gap": finite(1.0 - slem), "rounds_to_consensus": rounds}


def _rounds_waited(assembly: Assembly) -> int:
    affordable = min(LIMIT_ROUNDS, max(len(assembly.ground.rounds_seen), LIMIT_PEER_ROUNDS // len(assembly.names)))
    return min(affordable, assembly.ground.rounds or affordable)


def _degree(graph: nx.Graph) -> Row:
    """Return how many others a peer hears."""
    degrees = [d for _, d in (graph.in_degree() if graph.is_directed() else graph.degree())]
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
    e = assembly.experiment
    algorithm = assembly.fitted(task.layout)
    if e.coordinator.mode != "none":
        algorithm = beside_of(e, len(assembly.names), task.layout)
    state = bytes_of(algorithm.init(x))
    if task.built is None:
        return state
    model = bytes_of(task.built.module.state_dict())
    trainer = task.trainer(torch.device("cpu"))
    assert isinstance(trainer, PlainTrainer)
    memory = trainer.memory()
    momentum = 0 if memory.momentum is None else memory.momentum.numel() * memory.momentum.element_size()
    work = 3 * x.numel() * x.element_size()  # gradient, delta, and the point they belong to
    return int(model + state + momentum + work)


def payload_bytes_of(assembly: Assembly, task: Task) -> list[int]:
    """Return the bytes that one peer sends to one listener in each exchange of a round.

    Beside coordinators they are what a worker pushes, to all of them, and what it is given; of a sparse push the most
    that there can be. In a ring they are those of all parameters.
    """
    x = task.start(0)
    if assembly.experiment.is_ring:
        return [bytes_of({"x": x})]
    if assembly.coordinators:
        parcels = parcels_of(assembly, task)
        given = sum(bytes_of(parcels.give(x[a:b])) for a, b in parcels.spans)
        return [sum(map(bytes_of, parcels.push(torch.ones_like(x)))), given]
    return [bytes_of(form) for form in wire_forms(assembly.fitted(task.layout), x)]


def coordination_of(assembly: Assembly, payload_bytes: Sequence[int]) -> Row | None:
    """Return what there is to say of the coordinators, or of a ring; None where peers gossip."""
    c, n = assembly.experiment.coordinator, len(assembly.names)
    if c.mode == "none":
        return None
    if c.mode == "ring":
        return {"mode": c.mode, "names": [], "bytes_per_round": 2 * (n - 1) * payload_bytes[0]}
    chosen = chosen_of(assembly.experiment, n)
    pushes = {"async": 1, "buffered": c.buffer}.get(c.mode, n if chosen is None else len(chosen(0)))
    return {
        "mode": c.mode,
        "names": list(assembly.coordinators),
        "pushes_per_round": pushes,
        "push_bytes": payload_bytes[0],
        "given_bytes": payload_bytes[1],
        "bytes_per_round": pushes * sum(payload_bytes),
    }


def _coordinators_bytes(assembly: Assembly, task: Task) -> int:
    """Return what all coordinators need: their parameters and what their optimiser keeps."""
    centres = [centre_of(assembly, task, me, torch.device("cpu")) for me in assembly.coordinator_ids]
    return sum(bytes_of(centre.tensors()) for centre in centres)


def _heard(assembly: Assembly, i: int) -> list[str]:
    graph = assembly.ground.graph
    heard = graph.predecessors(i) if graph.is_directed() else graph.neighbors(i)
    return [assembly.names[j] for j in sorted(heard)]
