"""From the [coordinator] table to what coordinators and workers are made of: who holds what, and by which rules."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

import torch
from torch import Tensor, nn

from peer.algorithms.beside import ElasticWorker, Member, Pushing
from peer.algorithms.compress import Codec, SparseRows, codec_of
from peer.algorithms.easgd import Elastic
from peer.algorithms.server import Adagrad, Adam, Momentum, Optimiser, Sgd, Staleness, Variant, Yogi
from peer.assembly.assembly import DTYPES, Assembly, schedule_of
from peer.assembly.choice import pushes_gradients
from peer.centre import Centre
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.parcels import Parcels, Span, even_spans
from peer.protocol.by_arrival import ByArrival
from peer.protocol.by_rounds import ByRounds
from peer.protocol.coordinator import Coordinator, Present
from peer.protocol.messages import PeerId
from peer.protocol.ring import Ring, cut
from peer.protocol.worker import Worker
from peer.seeds import stream
from peer.task.layout import Layout
from peer.task.local import PlainTrainer
from peer.task.task import Task

PIECE_BYTES = 512 * 1024
"""Of a piece of a ring all-reduce: one chunk on the wire."""

ELASTIC_PULL = 0.9
"""n alpha where the file gives no alpha: Zhang et al. 2015, section 5, take 0.9."""


# ---- Cores


def worker_of(assembly: Assembly, me: PeerId) -> Worker:
    """Return a worker's core."""
    e = assembly.experiment
    return Worker(me, assembly.coordinator_ids, e.rounds, return_s=e.transport.join_s)


def coordinator_of(
    assembly: Assembly,
    weights: Mapping[PeerId, float] | None,
    me: PeerId,
    present: Present,
    *,
    may_be_left: bool = True,
) -> Coordinator:
    """Return a coordinator's core that begins from `present`. `weights` are those of `weights_of`.

    `may_be_left`: if all workers are lost, one may come back.
    """
    e, n = assembly.experiment, len(assembly.names)
    c, workers, return_s = e.coordinator, range(n), e.transport.join_s if may_be_left else 0.0
    match c.mode:
        case "async":
            return ByArrival(
                me,
                workers,
                e.rounds,
                present,
                max_staleness=c.max_staleness,
                arrival="round_robin" if c.arrival == "round_robin" else "clock",
                delay=c.delay or None,
                return_s=return_s,
            )
        case "buffered":
            return ByArrival(me, workers, e.rounds, present, size=c.buffer, return_s=return_s)
        case "quorum":
            return ByRounds(
                me,
                workers,
                e.rounds,
                present,
                count=c.quorum if isinstance(c.quorum, int) else ceil(c.quorum * n - 1e-9),
                timer_s=c.timer_s,
                late="stale" if c.late == "stale" else "drop",
                weights=weights,
                return_s=return_s,
            )
    chosen = chosen_of(e, n)
    return ByRounds(me, workers, e.rounds, present, chosen=chosen, weights=weights, return_s=return_s)


def ring_of(assembly: Assembly, task: Task, me: PeerId) -> Ring:
    """Return the core of a ring's member."""
    e, d, n = assembly.experiment, task.layout.size, len(assembly.names)
    pieces = [len(segment) for segment in cut(d, n, piece_elements(task.layout))]
    by = weights_of(assembly, task)
    counts = None if by is None else [by[peer] for peer in range(n)]
    return Ring(me, e.rounds, pieces, weights=counts, round_deadline_s=e.transport.round_deadline_s)


def piece_elements(layout: Layout) -> int:
    """Return how many numbers a piece of a ring all-reduce has at most."""
    return max(1, PIECE_BYTES // layout.dtype.itemsize)


def chosen_of(experiment: Experiment, peers: int) -> Callable[[int], set[PeerId]] | None:
    """Return who takes part in making each next version, None for all: a fraction of them, at least one.

    McMahan et al. 2017, algorithm 1: max(C K, 1) of K clients, drawn each round.
    """
    fraction = experiment.coordinator.fraction
    count = max(1, round(fraction * peers))
    if count >= peers:
        return None
    seed = experiment.seed
    return lambda version: set(stream(seed, "participants", version).permutation(peers)[:count].tolist())


def weights_of(assembly: Assembly, task: Task) -> Mapping[PeerId, float] | None:
    """Return what each peer counts: its rows, or None where all count the same. Raises ConfigError for no rows."""
    e = assembly.experiment
    if e.coordinator.weighting == "equal" or e.is_elastic or e.coordinator.mode in ("async", "buffered"):
        return None
    if task.data is None:
        return None
    shards = task.shards(torch.device("cpu"))
    rows = [0 if shard is None else len(shard) for shard in shards]
    unknown = [name for name, shard in zip(assembly.names, shards, strict=True) if shard is None]
    if unknown:
        raise ConfigError(
            "coordinator.weighting",
            f'"samples" needs the rows of all peers, and those of {", ".join(unknown[:4])} are on other machines; '
            'choose "equal"',
        )
    return None if len(set(rows)) == 1 else dict(enumerate(map(float, rows)))


# ---- Tensors


def beside_of(experiment: Experiment, peers: int, layout: Layout) -> Pushing | ElasticWorker | Member:
    """Return a peer's half of the algorithm."""
    if experiment.is_ring:
        return Member()
    return ElasticWorker(alpha_of(experiment, peers), layout.trainable) if experiment.is_elastic else Pushing()


def alpha_of(experiment: Experiment, peers: int) -> float:
    """Return how hard EASGD's centre and workers pull at each other."""
    alpha = experiment.algorithm.alpha
    return ELASTIC_PULL / peers if alpha is None else alpha


def optimiser_of(experiment: Experiment, peers: int, trainable: int) -> Optimiser:
    """Return how the server makes a step. Of its columns so many are parameters, and those behind are statistics."""
    c = experiment.coordinator
    if experiment.is_elastic:
        alpha, at_once = alpha_of(experiment, peers), peers if c.mode == "sync" else 1
        return Elastic(alpha, trainable, of_statistics=min(alpha, 1 / at_once))
    lr, variant = server_lr(experiment), _variant(experiment)
    match c.server_optimizer:
        case "momentum":
            return Momentum(lr, **_given(momentum=c.server_momentum))
        case "adam":
            return Adam(lr, variant=variant, **_given(beta1=c.beta1, beta2=c.beta2, tau=c.server_tau))
        case "yogi":
            return Yogi(lr, variant=variant, **_given(beta1=c.beta1, beta2=c.beta2, tau=c.server_tau))
        case "adagrad":
            return Adagrad(lr, variant=variant, **_given(beta1=c.beta1, tau=c.server_tau))
    return Sgd(lr)


def server_lr(experiment: Experiment) -> float:
    """Return the server's learning rate: by default the task's for gradients, 1 for models."""
    c = experiment.coordinator
    if c.server_lr is not None:
        return c.server_lr
    return experiment.task.lr if c.aggregate == "gradients" else 1.0


def spans_of(assembly: Assembly, layout: Layout) -> tuple[Span, ...]:
    """Return which of the flat parameters each coordinator holds. Raises ConfigError for more of them than numbers."""
    servers = len(assembly.coordinators)
    if servers > layout.size:
        raise ConfigError("coordinator.servers", f"{servers} for {layout.size} parameters; each holds one at least")
    return even_spans(layout.size, servers)


def parcels_of(assembly: Assembly, task: Task) -> Parcels:
    """Return how pushes and parameters travel."""
    spans, name = spans_of(assembly, task.layout), assembly.experiment.compression.name
    codec, sparse = codec_of(name), sparse_segments(task)
    pushed = tuple(_sparse(codec, sparse, span) for span in spans)
    return Parcels(spans, codec, pushed, task.layout.dtype)


def centre_of(assembly: Assembly, task: Task, me: PeerId, device: torch.device) -> Centre:
    """Return a coordinator's tensors, at the start."""
    e, n = assembly.experiment, len(assembly.names)
    a, b = spans_of(assembly, task.layout)[assembly.coordinator_ids.index(me)]
    start = first_parameters(assembly, task)[a:b].to(device)
    trainable = min(max(task.layout.trainable - a, 0), b - a)
    return Centre(
        optimiser_of(e, n, trainable),
        start,
        trainable=len(start) if e.is_elastic else trainable,
        staleness=_rule(e),
        factor=replace(schedule_of(e), lr=1.0).lr_at if pushes_gradients(e) else lambda _: 1.0,
        is_elastic=e.is_elastic,
        workers=n,
        measures=e.coordinator.mode != "sync",
    )


def first_parameters(assembly: Assembly, task: Task) -> Tensor:
    """Return where coordinators begin, (d,): where all peers do; with EASGD at the mean of their starts."""
    starts = [task.start(peer).double() for peer in range(len(assembly.names) if len(task.starts) > 1 else 1)]
    mean: Tensor = torch.stack(starts).mean(dim=0)
    return mean.to(DTYPES[assembly.experiment.task.dtype])


def sparse_segments(task: Task) -> tuple[tuple[int, int, int], ...]:
    """Return (offset, rows, columns) of each embedding whose gradients the model wants sparse."""
    if task.built is None:
        return ()
    trainer = task.trainer(torch.device("cpu"))
    assert isinstance(trainer, PlainTrainer)
    sparse = {
        id(module.weight)
        for module in trainer.module.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }
    names = {name for name, p in trainer.module.named_parameters() if id(p) in sparse}
    return tuple(
        (s.offset, s.shape[0], s.shape[1])
        for s in task.layout.parameters()
        if len(s.shape) == 2 and names & {s.name, *s.others}
    )


def _sparse(codec: Codec, segments: tuple[tuple[int, int, int], ...], span: Span) -> Codec:
    """Return the codec for pushes of the columns of a span: of sparse segments the whole rows in it."""
    a, b = span
    inside = []
    for offset, rows, columns in segments:
        first, end = max(0, -(-(a - offset) // columns)), min(rows, (b - offset) // columns)
        if first < end:
            inside.append((offset + first * columns - a, end - first, columns))
    return SparseRows(tuple(inside), codec) if inside else codec


def _rule(experiment: Experiment) -> Staleness:
    rule = experiment.coordinator.staleness
    return "inverse" if rule == "inverse" else "inverse_sqrt" if rule == "inverse_sqrt" else "constant"


def _variant(experiment: Experiment) -> Variant:
    variant = experiment.coordinator.variant
    return "flower" if variant == "flower" else "zero_start" if variant == "zero_start" else "paper"


def _given(**settings: float | None) -> dict[str, float]:
    """Return the settings that the file gives."""
    return {name: value for name, value in settings.items() if value is not None}


def owner_of(assembly: Assembly) -> str:
    """Return the coordinator whose model all peers are judged by, "" where each is judged by what it holds."""
    return "" if not assembly.coordinators or judges_copies(assembly) else assembly.coordinators[0]


def judges_copies(assembly: Assembly) -> bool:
    """Whether each peer is judged by what it holds, and not all by the one model that a coordinator has: with
    parameters or running statistics of their own, and where no coordinator has all parameters."""
    e = assembly.experiment
    return e.is_elastic or e.algorithm.buffers == "keep" or len(assembly.coordinators) > 1
