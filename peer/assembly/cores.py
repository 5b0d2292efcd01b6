"""From an assembly to each peer's core and learner: the same for the daemons and for the events engine."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from torch import Tensor

from peer.assembly.assembly import Assembly
from peer.assembly.coordination import beside_of, ring_of, worker_of
from peer.learner import Learner
from peer.protocol.asynchronous import Asynchronous
from peer.protocol.gossip import Gossip
from peer.protocol.messages import Neighbourhood, PeerId
from peer.protocol.pairwise import Pairwise
from peer.protocol.ring import Ring
from peer.protocol.survey import Rule, Survey
from peer.protocol.worker import Worker
from peer.seeds import stream
from peer.task.local import Shard, Trainer
from peer.task.task import Task

Exchange = Gossip | Asynchronous | Pairwise | Worker | Ring


def core_of(assembly: Assembly, task: Task, me: PeerId, *, endless: bool = False) -> Exchange | Survey:
    """Return a daemon's core: what exchanges parameters, or where round trips are to be measured, the survey that
    leads to it.

    `endless`: somebody else counts the rounds of peers that do not wait for each other.
    """
    if not (assembly.ground.is_measured and assembly.uses_topology):
        return exchange_of(assembly, task, me, endless=endless)
    t = assembly.experiment.topology
    rule: Rule = "uniform" if t.weights == "uniform" else "lazy" if t.weights == "lazy" else "metropolis"

    def among_the_near(here: Neighbourhood) -> Gossip:
        return _gossip(assembly, me, lambda _: here, {*here.weights, *here.listeners})

    return Survey(me, assembly.neighbours(me), t.threshold, rule, among_the_near)


def exchange_of(assembly: Assembly, task: Task, me: PeerId, *, endless: bool = False) -> Exchange:
    """Return the core that exchanges one peer's parameters, where it is known in advance who hears whom."""
    e, around = assembly.experiment, partial(assembly.around, me)
    if e.is_ring:
        return ring_of(assembly, task, me)
    if e.coordinates:
        return worker_of(assembly, me)
    if not e.is_asynchronous:
        return _gossip(assembly, me, around, assembly.neighbours(me))
    rounds = 0 if endless else e.rounds
    if e.algorithm.name == "adpsgd":
        return Pairwise(me, rounds, around, partners=partial(partners, e.seed, me, sorted(assembly.neighbours(me))))
    return Asynchronous(me, rounds, around, max_staleness=e.algorithm.max_staleness)


def partners(seed: int, me: PeerId, neighbours: Sequence[PeerId], round: int) -> list[PeerId]:
    """Return a peer's neighbours in the order in which it wants to average with them after a local round."""
    order = stream(seed, "partner", me, round).permutation(len(neighbours))
    return [neighbours[i] for i in order]


def _gossip(
    assembly: Assembly, me: PeerId, around: Callable[[int], Neighbourhood], neighbours: Iterable[PeerId]
) -> Gossip:
    e, algorithm = assembly.experiment, assembly.algorithm
    return Gossip(
        me,
        e.rounds,
        around,
        neighbours=neighbours,
        exchanges=algorithm.exchanges,
        conserves="mean" if assembly.everyone else "columns" if algorithm.stochastic == "column" else "rows",
        look_again=1 if assembly.model_threshold is None else assembly.look_again,
        round_deadline_s=e.transport.round_deadline_s,
    )


def learner_of(
    assembly: Assembly,
    task: Task,
    me: PeerId,
    trainer: Trainer,
    start: Tensor,
    shard: Shard | None,
    test: tuple[Tensor, Tensor] | None,
    core: Exchange | Survey,
) -> Learner:
    """Return what holds one peer's tensors, on the device of `start`, (d,)."""
    if isinstance(core, Worker | Ring):
        algorithm = beside_of(assembly.experiment, len(assembly.names), task.layout)
        return Learner(me, algorithm, trainer, start, shard, test)
    gossiped, threshold = assembly.fitted(task.layout), assembly.model_threshold
    return Learner(me, gossiped, trainer, start, shard, test, core.around, threshold)
