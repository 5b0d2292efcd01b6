"""An experiment made ready to run: the topology, the mixing matrix, the algorithm and the task, all checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np
import torch
from scipy.sparse import csr_array, eye_array

import topology
from peer.algorithms.algorithm import Algorithm
from peer.algorithms.dpsgd import AdaptThenCombine, CombineThenAdapt
from peer.errors import ConfigError
from peer.experiment import Experiment, disagreement
from peer.protocol.messages import Neighbourhood
from peer.task.local import Schedule
from peer.task.task import Partition, Task, Wish, prepare

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Assembly:
    """An experiment with its peers and who hears whom. Node order is the order of `names`.

    `graph` is the topology within the threshold, `weights` its mixing matrix, (n, n) in float64. What is exchanged
    may differ: see `mixing`.
    """

    experiment: Experiment
    names: tuple[str, ...]
    net: topology.Net
    graph: nx.Graph
    weights: csr_array
    algorithm: Algorithm

    @property
    def everyone(self) -> bool:
        """Whether the algorithm hears all peers with equal weight, whatever the topology."""
        return self.experiment.algorithm.name == "exact"

    @cached_property
    def mixing(self) -> csr_array:
        """The matrix that the algorithm mixes with: the topology's, or nobody's, or everyone's."""
        n = len(self.names)
        match self.experiment.algorithm.name:
            case "local":
                return csr_array(eye_array(n))
            case "exact":
                return csr_array(np.full((n, n), 1.0 / n))
        return self.weights

    @cached_property
    def neighbourhoods(self) -> list[Neighbourhood]:
        """Each peer's row of the mixing matrix and its listeners."""
        return neighbourhoods(self.mixing)

    def messages_per_round(self) -> int:
        """Return how many payloads travel in one round, all peers together."""
        n = len(self.names)
        if self.everyone:
            return n * (n - 1) * self.algorithm.exchanges
        return int(self.mixing.nnz - np.count_nonzero(self.mixing.diagonal())) * self.algorithm.exchanges


def neighbourhoods(matrix: csr_array) -> list[Neighbourhood]:
    """Split a mixing matrix, (n, n), into what each peer has to know of it."""
    by_column = matrix.tocsc()
    rows = []
    for i in range(matrix.shape[0]):
        span = slice(matrix.indptr[i], matrix.indptr[i + 1])
        weights = {
            int(j): float(w) for j, w in zip(matrix.indices[span], matrix.data[span], strict=True) if w != 0.0 or j == i
        }
        weights.setdefault(i, 0.0)
        span = slice(by_column.indptr[i], by_column.indptr[i + 1])
        listeners = tuple(
            sorted(
                int(j)
                for j, w in zip(by_column.indices[span], by_column.data[span], strict=True)
                if j != i and w != 0.0
            )
        )
        rows.append(Neighbourhood(weights, listeners))
    return rows


def assemble(experiment: Experiment) -> Assembly:
    """Build the topology and the algorithm. Raises ConfigError naming the key, and the components of a graph that
    falls apart."""
    try:
        net = _net(experiment)
        graph = topology.neighbours(net, experiment.topology.metric, experiment.topology.threshold)
        names = _names(experiment, net)
        _check_connected(experiment, net, graph, names)
        weights = topology.mixing_matrix(
            graph, experiment.topology.weights, family=net.family, matrix=_own_matrix(experiment, net)
        )
    except topology.TopologyError as error:
        raise ConfigError(f"topology.{error.key}" if error.key else "topology", error.problem) from error
    _check_rows(experiment, weights)
    return Assembly(experiment, names, net, graph, weights, _algorithm(experiment))


def prepare_task(assembly: Assembly, only: int | None = None) -> Task:
    """Load data and model and check them against the peers. `only` is the one peer whose own data are needed."""
    e = assembly.experiment
    schedule = Schedule(
        lr=e.task.lr,
        lr_schedule=e.task.lr_schedule,
        warmup_rounds=e.task.warmup_rounds,
        rounds=e.rounds,
        momentum=e.task.momentum,
        weight_decay=e.task.weight_decay,
        proximal_mu=e.task.proximal_mu,
        batch_size=e.task.batch_size,
        local_steps=e.task.local_steps,
    )
    how = Partition(
        kind=e.task.partition,
        alpha=e.task.alpha,
        classes_per_peer=e.task.classes_per_peer,
        sizes=e.task.sizes,
        rows_per_peer=e.task.rows_per_peer,
        own=[entry.data for entry in e.peers],
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
    return prepare(wish, only)


def device_of(wanted: str, turn: int, key: str = "task.device") -> torch.device:
    """Return the device of a peer; "auto" and "cuda" deal the GPUs out by `turn`. Raises ConfigError."""
    if wanted == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda", turn % count) if count else torch.device("cpu")
    index = turn % max(1, count) if wanted == "cuda" else int(wanted.removeprefix("cuda:"))
    if index >= count:
        raise ConfigError(key, f'"{wanted}" is not there: torch finds {count} CUDA devices; "cpu" always works')
    return torch.device("cuda", index)


def check_devices(assembly: Assembly) -> None:
    """Refuse a device that this machine does not have. Raises ConfigError."""
    e = assembly.experiment
    device_of(e.task.device, 0)
    for entry in e.peers:
        if entry.device is not None:
            device_of(entry.device, 0, key=f"peers.{entry.name}.device")


# ---- Inside


def _net(experiment: Experiment) -> topology.Net:
    t = experiment.topology
    counts = experiment.stated_counts()
    stated = t.peers if t.peers is not None else next(iter(counts.values()), None)
    positions = [entry.position for entry in experiment.peers if entry.position is not None]
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
            positions=np.array(positions) if positions else None,
            directed=bool(t.directed),
            folder=experiment.folder,
        )
    except topology.TopologyError as error:
        if error.key == "peers" and t.peers is None and counts:
            key = next(iter(counts))
            raise ConfigError(key, f"gives {stated} peers, but {error.problem}") from error
        raise
    counts[t.family] = net.graph.number_of_nodes()
    if t.peers is not None:
        counts["topology.peers"] = t.peers
    if text := disagreement(counts):
        raise ConfigError("", text)
    return net


def _names(experiment: Experiment, net: topology.Net) -> tuple[str, ...]:
    """Return the peers' names in node order: the file's [[peers]], else the graph's, else peer-0 and so on."""
    entries = [entry.name for entry in experiment.peers]
    if not entries:
        return net.names
    if net.named and set(entries) != set(net.names):
        strangers = sorted(set(entries) ^ set(net.names))
        raise ConfigError("peers", f"the names in [[peers]] and in the graph differ: {', '.join(strangers[:8])}")
    return net.names if net.named else tuple(entries)


def _check_connected(experiment: Experiment, net: topology.Net, graph: nx.Graph, names: Sequence[str]) -> None:
    t = experiment.topology
    if t.allow_disconnected or experiment.algorithm.name in ("local", "exact") or topology.is_connected(graph):
        return
    parts = topology.components(graph)
    if len(parts) == 1:
        raise ConfigError(
            "topology", "not every peer can reach every other along the arcs; add arcs or set allow_disconnected = true"
        )
    shown = "; ".join(_component(part, names) for part in parts[:8])
    more = f"; and {len(parts) - 8} more" if len(parts) > 8 else ""
    enough = topology.connecting_threshold(net, t.metric)
    mend = f"{enough:.4g} would connect them" if enough is not None else "raise it"
    raise ConfigError(
        "topology.threshold",
        f"at {t.threshold:g} the peers fall apart into {len(parts)} components: {shown}{more}. "
        f"{mend[0].upper() + mend[1:]}, or set topology.allow_disconnected = true",
    )


def _component(nodes: Sequence[int], names: Sequence[str]) -> str:
    shown = ", ".join(names[i] for i in nodes[:6])
    return f"{{{shown}{f', and {len(nodes) - 6} more' if len(nodes) > 6 else ''}}}"


def _own_matrix(experiment: Experiment, net: topology.Net) -> csr_array | None:
    """A matrix from a file stands as it is while the neighbours are its own: hops and threshold 1."""
    t = experiment.topology
    return net.matrix if t.metric == "hops" and t.threshold == 1 else None


def _check_rows(experiment: Experiment, weights: csr_array) -> None:
    if experiment.algorithm.name == "dpsgd" and topology.stochasticity(weights) == "column":
        raise ConfigError(
            "topology.family",
            "the columns of W sum to 1 and its rows do not, and D-PSGD mixes by rows: W[i, j] is the weight that i "
            "gives to what it hears from j; transpose the file if it was meant the other way round",
        )


def _algorithm(experiment: Experiment) -> Algorithm:
    if experiment.algorithm.name == "dpsgd" and experiment.algorithm.order == "cta":
        return CombineThenAdapt()
    return AdaptThenCombine()
