"""Local steps of many peers at once: whether that can be done, and whether it gains."""

from collections.abc import Sequence

from torch import Tensor

from peer.task.local import PlainTrainer, Shard, Trainer
from peer.task.rows import RowTrainer, has_convolutions
from peer.task.task import Task


def vectorised(
    task: Task, trainer: Trainer, shards: Sequence[Shard | None], wanted: str, x: Tensor
) -> RowTrainer | None:
    """Return what does the local steps of all peers, parameters (n, d), at once; None where that cannot be done.

    `wanted` is task.step: under "auto" it must gain, too, with a result that does not depend on it.
    """
    if wanted == "plain" or not isinstance(trainer, PlainTrainer) or task.own is not None:
        return None
    if wanted == "auto" and not _gains(task, trainer, shards, x):
        return None
    rows = RowTrainer(trainer)
    return rows if rows.can_vectorise(x, [s for s in shards if s is not None]) else None


def _gains(task: Task, trainer: PlainTrainer, shards: Sequence[Shard | None], x: Tensor) -> bool:
    if any(segment.dtype != x.dtype for segment in task.layout.segments):  # sums in bf16 depend on their order
        return False
    alike = len(x) == 1 or _sizes(task, shards) * 2 <= len(x)  # or next to nothing is done at once
    return alike and not has_convolutions(trainer.module)


def _sizes(task: Task, shards: Sequence[Shard | None]) -> int:
    """Return how many sizes the peers' batches have."""
    batch_size = task.wish.schedule.batch_size
    sizes = (len(shard) for shard in shards if shard is not None)
    return len({min(size, batch_size) if batch_size else size for size in sizes})
