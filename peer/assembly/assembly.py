"""An experiment made ready to run: the topology, the mixing matrices, the algorithm and the task, all checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array

import topology
from peer.algorithms.algorithm import Algorithm
from peer.assembly.choice import (
    algorithm_of,
    check_fitted,
    fitted,
    mixes_without_topology,
    pushes_gradients,
    shared_spans,
)
from peer.assembly.demands import check_demands, check_round
from peer.assembly.faults import Fault, faults_of
from peer.assembly.ground import Ground, ground_of
from peer.assembly.links import LinkTable, links_of
from peer.assembly.speeds import Speeds, speeds_of
from peer.errors import ConfigError
from peer.experiment import Experiment, coordinator_problem, quorum_problem
from peer.protocol.messages import Neighbourhood, PeerId
from peer.task.layout import Layout
from peer.task.local import Schedule
from peer.task.task import Partition, Task, Wish, prepare

DTYPES = {"float32": torch.float32, "float64": torch.float64}

LOOK_AGAIN = 10
"""`look_again` where the file says nothing."""

KEPT_ROUNDS = 16
"""Of how many rounds the neighbourhoods are kept at a time; peers are never further apart that hear each other."""


@dataclass(frozen=True, eq=False)
class Assembly:
    """An experiment with its peers, and who hears whom in which round with what weight.

    Node order is the order of `names`. `ground` is the topology; what is exchanged may differ: see `mixing`.
    `links`, `speeds` and `faults` are those of the simulator's world: see the file of each.
    """

    experiment: Experiment
    ground: Ground
    algorithm: Algorithm
    links: LinkTable
    speeds: Speeds
    faults: tuple[Fault, ...]
    _kept: dict[int, list[Neighbourhood]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return self.ground.names

    @property
    def graph(self) -> nx.Graph:
        """Who ever hears whom in the topology."""
        return self.ground.graph

    @cached_property
    def coordinators(self) -> tuple[str, ...]:
        """The coordinators' names, in the order of their numbers, which follow those of the peers."""
        e = self.experiment
        if not e.coordinates:
            return ()
        if e.coordinator.name in self.names:
            return (f"coordinator@{e.coordinator.name}",)
        return e.coordinator_entries()

    @property
    def coordinator_ids(self) -> range:
        """The coordinators' numbers."""
        return range(len(self.names), len(self.names) + len(self.coordinators))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all that exchange something: peers, then coordinators."""
        return self.names + self.coordinators

    def dials(self, me: PeerId, other: PeerId) -> bool:
        """Say whether of two that both can be reached it is this one that dials: the later in node order, and every
        worker its coordinators."""
        n = len(self.names)
        return other >= n if (me < n) != (other < n) else me > other

    def host_of(self, node: PeerId) -> PeerId:
        """Return in whose process a node is: its own, or that of a peer which is the coordinator, too."""
        is_guest = node in self.coordinator_ids and self.experiment.coordinator.name in self.names
        return self.names.index(self.experiment.coordinator.name) if is_guest else node

    @property
    def first_graph(self) -> nx.Graph:
        """Who hears whom in round 0."""
        if self.ground.period == 1:
            return self.graph
        return topology.graph_of(self.ground.matrix(0), self.ground.schedule.directed)

    @cached_property
    def everyone(self) -> bool:
        """Whether the algorithm hears all peers with equal weight, whatever the topology."""
        e = self.experiment
        return not self.uses_topology and e.algorithm.name != "local" and e.coordinator.mode == "none"

    @cached_property
    def uses_topology(self) -> bool:
        """Whether it matters to the algorithm who hears whom in the topology."""
        return not mixes_without_topology(self.experiment)

    @cached_property
    def period(self) -> int | None:
        """After how many rounds the mixing matrix repeats; None for never."""
        return self.ground.period if self.uses_topology else 1

    @property
    def model_threshold(self) -> float | None:
        """How far apart the parameters of two peers may be that hear each other; None where that is not the metric."""
        t = self.experiment.topology
        return t.threshold if t.metric == "model" and self.uses_topology else None

    @property
    def look_again(self) -> int:
        """After how many rounds two peers that were too far apart by their parameters look at each other again."""
        return self.experiment.topology.look_again or LOOK_AGAIN

    def mixing(self, round: int) -> csr_array:
        """Return the matrix that the algorithm mixes with in a round: the topology's, or nobody's, or everyone's."""
        if not self.uses_topology:
            return self._apart_from_topology
        matrix = self.ground.matrix(round)
        if self.ground.rounds is not None:  # a user's own function: its later rounds are not known in advance
            check_round(self.experiment, self.algorithm, matrix, round)
        return matrix

    def around(self, me: PeerId, round: int) -> Neighbourhood:
        """Return a peer's row and column of the mixing matrix of a round."""
        key = round % self.period if self.period else round
        if key not in self._kept:
            if len(self._kept) >= KEPT_ROUNDS and not self.period:
                del self._kept[min(self._kept)]
            self._kept[key] = neighbourhoods(self.mixing(round))
        return self._kept[key][me]

    def neighbours(self, me: PeerId) -> frozenset[PeerId]:
        """Return all with whom a peer, or a coordinator, ever has to do."""
        n = len(self.names)
        if self.experiment.is_ring:
            return frozenset({(me - 1) % n, (me + 1) % n} - {me})
        if self.coordinators:
            return frozenset(range(n) if me >= n else self.coordinator_ids)
        return self._ever[me]

    @property
    def exchange_graph(self) -> nx.Graph:
        """Who has to do with whom, coordinators included."""
        if self.experiment.coordinator.mode == "none":
            return self.graph
        nodes = range(len(self.nodes))
        graph = nx.Graph()
        graph.add_nodes_from(nodes)
        graph.add_edges_from((a, b) for a in nodes for b in self.neighbours(a) if a < b)
        return graph

    def fitted(self, layout: Layout) -> Algorithm:
        """Return the algorithm for flat parameters in this layout. Raises ConfigError for a share that is none."""
        return fitted(self.algorithm, self.experiment, layout)

    def shared_columns(self, layout: Layout) -> NDArray[np.int64] | None:
        """Return which of the flat parameters are gossiped, None for all."""
        spans = shared_spans(self.experiment, layout)
        return None if spans is None else np.concatenate([np.arange(a, b) for a, b in spans])

    def messages_in(self, round: int) -> int:
        """Return how many payloads of one exchange travel in a round, all peers together."""
        n = len(self.names)
        if self.experiment.coordinator.mode != "none":
            return 0
        if self.everyone:
            return n * (n - 1)
        if self.experiment.algorithm.name == "adpsgd":  # to one neighbour and back, of each that has any
            return 2 * sum(1 for i in range(n) if self.graph.degree[i])
        matrix = self.mixing(round)
        return int(np.count_nonzero(matrix.data) - np.count_nonzero(matrix.diagonal()))

    @cached_property
    def _apart_from_topology(self) -> csr_array:
        n = len(self.names)
        return csr_array(np.full((n, n), 1.0 / n)) if self.everyone else csr_array(eye_array(n))

    @cached_property
    def _ever(self) -> list[frozenset[PeerId]]:
        n, rounds = len(self.names), self.period or self.experiment.rounds
        if not rounds:  # until stopped: in time anybody may hear anybody
            return [frozenset(range(n)) - {i} for i in range(n)]
        if self.period == 1:
            rows = [self.around(i, 0) for i in range(n)]
            return [frozenset({*row.weights, *row.listeners}) - {i} for i, row in enumerate(rows)]
        ever = topology.union_graph(self.ground.schedule, rounds).to_undirected(as_view=True)
        return [frozenset(ever[i]) for i in range(n)]


def neighbourhoods(matrix: csr_array) -> list[Neighbourhood]:
    """Split a mixing matrix, (n, n), into what each peer has to know of it."""
    by_column = matrix.tocsc()
    return [
        Neighbourhood({i: 0.0, **_entries(matrix, i, i)}, _entries(by_column, i, None)) for i in range(matrix.shape[0])
    ]


def _entries(matrix: csr_array, i: int, kept: int | None) -> dict[PeerId, float]:
    """Return the entries of row i, or of column i of a matrix by columns, that are not 0; of the own one if kept."""
    span = slice(matrix.indptr[i], matrix.indptr[i + 1])
    pairs = sorted(zip(matrix.indices[span].tolist(), matrix.data[span].tolist(), strict=True))
    return {j: w for j, w in pairs if (w != 0.0 and j != i) or j == kept}


def assemble(experiment: Experiment, *, measures: bool = False) -> Assembly:
    """Build the topology and the algorithm and check that they go together. `measures`: round trips are measured.

    Raises ConfigError.
    """
    algorithm, ground = algorithm_of(experiment), ground_of(experiment, measures=measures)
    check_demands(experiment, algorithm, ground)
    bare = Assembly(experiment, ground, algorithm, LinkTable(), Speeds(0), ())
    check_coordinator(experiment, ground.names)
    faults = faults_of(experiment, bare.nodes)
    if measures:  # real links and real steps: the files of the simulated ones need not be there
        return replace(bare, faults=faults)
    within = {(node, host) for node in bare.coordinator_ids if (host := bare.host_of(node)) != node}
    links, speeds = links_of(experiment, bare.nodes, within), speeds_of(experiment, ground.names)
    return replace(bare, links=links, speeds=speeds, faults=faults)


def check_coordinator(experiment: Experiment, names: Sequence[str]) -> None:
    """Refuse a quorum that these peers cannot come to, and a coordinator that is nobody. Raises ConfigError."""
    if problem := quorum_problem(experiment, len(names)):
        raise ConfigError("coordinator.quorum", problem)
    if experiment.coordinates and (problem := coordinator_problem(experiment, names)):
        raise ConfigError("coordinator.name", problem)


def schedule_of(experiment: Experiment) -> Schedule:
    """Return the schedule of local steps as the file has it."""
    t = experiment.task
    return Schedule(
        lr=t.lr,
        lr_schedule=t.lr_schedule,
        warmup_rounds=t.warmup_rounds,
        rounds=experiment.rounds,
        momentum=t.momentum,
        weight_decay=t.weight_decay,
        proximal_mu=t.proximal_mu,
        batch_size=t.batch_size,
        local_steps=t.local_steps,
    )


def prepare_task(assembly: Assembly, only: PeerId | None = None) -> Task:
    """Load data and model and check them against the peers. `only` is the one peer whose own data are needed."""
    e = assembly.experiment
    schedule = schedule_of(e)
    if pushes_gradients(e):  # a step of rate 1 moves by the gradient itself
        schedule = replace(schedule, lr=1.0, lr_schedule="constant", warmup_rounds=0)
    own = {entry.name: entry.data for entry in e.peers}  # which may stand in another order than the nodes
    how = Partition(
        kind=e.task.partition,
        alpha=e.task.alpha,
        classes_per_peer=e.task.classes_per_peer,
        sizes=e.task.sizes,
        rows_per_peer=e.task.rows_per_peer,
        own=[own.get(name) for name in assembly.names],
    )
    wish = Wish(
        model=e.task.model,
        data=e.task.data,
        names=assembly.names,
        seed=e.seed,
        schedule=schedule,
        partition=how,
        dtype=DTYPES[e.task.dtype],
        average_buffers=e.algorithm.buffers == "average",
        shards=e.task.shards,
        starts=e.starts(),
        folder=e.folder,
    )
    task = prepare(wish, only)
    check_fitted(assembly.algorithm, e, task.layout)
    return task
