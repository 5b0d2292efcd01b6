"""From an assembly to each peer's gossip core and learner: the same for the daemons and for the events engine."""

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from peer.assembly.assembly import Assembly
from peer.learner import Learner
from peer.protocol.gossip import Gossip
from peer.protocol.messages import Neighbourhood, PeerId
from peer.protocol.survey import Rule, Survey
from peer.task.local import Shard, Trainer
from peer.task.task import Task


def core_of(assembly: Assembly, me: PeerId) -> Gossip | Survey:
    """Return a daemon's core: gossip, or where round trips are to be measured, the survey that leads to it."""
    if not (assembly.ground.is_measured and assembly.uses_topology):
        return gossip_of(assembly, me)
    t = assembly.experiment.topology
    rule: Rule = "uniform" if t.weights == "uniform" else "lazy" if t.weights == "lazy" else "metropolis"

    def among_the_near(here: Neighbourhood) -> Gossip:
        return _gossip(assembly, me, lambda _: here, {*here.weights, *here.listeners})

    return Survey(me, assembly.neighbours(me), t.threshold, rule, among_the_near)


def gossip_of(assembly: Assembly, me: PeerId) -> Gossip:
    """Return the core that exchanges one peer's parameters, where it is known in advance who hears whom."""
    return _gossip(assembly, me, partial(assembly.around, me), assembly.neighbours(me))


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
    )


def learner_of(
    assembly: Assembly,
    task: Task,
    me: PeerId,
    trainer: Trainer,
    start: Tensor,
    shard: Shard | None,
    test: tuple[Tensor, Tensor] | None,
    around: Callable[[int], Neighbourhood],
) -> Learner:
    """Return what holds one peer's tensors, on the device of `start`, (d,). `around` is that of its core."""
    return Learner(
        me,
        assembly.fitted(task.layout),
        trainer,
        start,
        shard,
        test,
        around,
        assembly.model_threshold,
    )
