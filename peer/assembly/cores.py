"""From an assembly to each peer's gossip core and learner: the same for the daemons and for the events engine."""

from functools import partial

from torch import Tensor

from peer.assembly.assembly import Assembly
from peer.learner import Learner
from peer.protocol.gossip import Gossip
from peer.protocol.messages import PeerId
from peer.task.local import Shard, Trainer
from peer.task.task import Task

LOOK_AGAIN = 10
"""After how many rounds two peers that were too far apart look at each other again."""


def gossip_of(assembly: Assembly, me: PeerId) -> Gossip:
    """Return the core that exchanges one peer's parameters."""
    e, algorithm = assembly.experiment, assembly.algorithm
    return Gossip(
        me,
        e.rounds,
        partial(assembly.around, me),
        neighbours=assembly.neighbours(me),
        exchanges=algorithm.exchanges,
        conserves="columns" if algorithm.stochastic == "column" else "rows",
        look_again=e.topology.look_again or LOOK_AGAIN,
    )


def learner_of(
    assembly: Assembly,
    task: Task,
    me: PeerId,
    trainer: Trainer,
    start: Tensor,
    shard: Shard | None,
    test: tuple[Tensor, Tensor] | None,
) -> Learner:
    """Return what holds one peer's tensors, on the device of `start`, (d,)."""
    return Learner(
        me,
        assembly.fitted(task.layout),
        trainer,
        start,
        shard,
        test,
        partial(assembly.around, me),
        assembly.model_threshold,
    )
