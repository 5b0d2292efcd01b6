"""A task made ready: data, model, flat layout, and who trains on which rows.

Everything is checked here, once, before anything trains: labels against the model's outputs, targets against their
shape, rows against peers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peer.errors import ConfigError
from peer.seeds import torch_seed
from peer.task.data import DataSet, as_labels, as_targets, load_data, with_labels
from peer.task.factory import own_traceback, source_hash
from peer.task.layout import Layout, layout_of, vector_layout
from peer.task.local import Kind, PlainTrainer, PureGossip, Schedule, Shard, check_batch_norm
from peer.task.models import BuiltModel, build_model, pick_output
from peer.task.partition import partition

LABEL_MODELS = ("cnn", "mlp", "softmax")


@dataclass(frozen=True)
class Partition:
    """How the rows are dealt out; `own` has one data set per peer, None for those of other machines."""

    kind: str = "iid"
    alpha: float = 0.3
    classes_per_peer: int | None = None
    sizes: Sequence[int] | None = None
    rows_per_peer: int | None = None
    own: Sequence[str | None] = ()


@dataclass(frozen=True)
class Wish:
    """What the experiment asks for, in plain values."""

    model: str
    data: str
    names: Sequence[str]
    seed: int
    schedule: Schedule
    partition: Partition = field(default_factory=Partition)
    dtype: torch.dtype = torch.float32
    average_buffers: bool = True
    shards: Sequence[Sequence[Sequence[object]]] | None = None
    starts: Sequence[Sequence[float]] = ()
    folder: Path = Path()


@dataclass(frozen=True, eq=False)
class Task:
    """A task on the CPU, ready to be trained anywhere. `rows[i]` are the training rows of peer i.

    `own[i]`, for the partition "own", is the data set of peer i, None where it is another machine's business.
    `starts` holds one flat vector for all peers or one for each.
    """

    wish: Wish
    layout: Layout
    starts: tuple[Tensor, ...]
    code: str
    built: BuiltModel | None = None
    kind: Kind = "regression"
    data: DataSet | None = None
    rows: tuple[np.ndarray, ...] | None = None
    own: tuple[DataSet | None, ...] | None = None

    @property
    def peers(self) -> int:
        return len(self.wish.names)

    def start(self, peer: int) -> Tensor:
        """Return a copy of the parameters with which a peer begins, (d,), on the CPU."""
        return self.starts[peer if len(self.starts) > 1 else 0].clone()

    def trainer(self, device: torch.device) -> PlainTrainer | PureGossip:
        """Return what does the local steps on this device. It uses the model's own tensors: one at a time."""
        if self.built is None:
            return PureGossip(self.layout, device)
        return PlainTrainer(
            self.built, self.layout, self.wish.schedule, kind=self.kind, seed=self.wish.seed, device=device
        )

    def shards(self, device: torch.device) -> list[Shard | None]:
        """Return every peer's shard; where the rows are dealt out, all look into one copy of the data."""
        if self.data is None:
            return [None] * self.peers
        if self.own is not None:
            return [None if d is None else _shard_of(d, None, device) for d in self.own]
        assert self.rows is not None
        common = replace(self.data, x=self.data.x.to(device), y=self.data.y.to(device), x_test=None, y_test=None)
        return [_shard_of(common, rows, device) for rows in self.rows]

    def shard(self, peer: int, device: torch.device) -> Shard | None:
        """Return one peer's shard, holding no more than its rows."""
        if self.data is None:
            return None
        if self.own is not None:
            mine = self.own[peer]
            assert mine is not None
            return _shard_of(mine, None, device)
        assert self.rows is not None
        rows = torch.from_numpy(self.rows[peer])
        return Shard(self.data.x[rows].to(device), self.data.y[rows].to(device))

    def test_rows(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Return the common test rows, None if there are none."""
        if self.data is None or self.data.x_test is None or self.data.y_test is None:
            return None
        return self.data.x_test.to(device), self.data.y_test.to(device)


def prepare(wish: Wish, only: int | None = None) -> Task:
    """Load, build and check. `only` is the one peer whose own data are needed, None for all.

    Raises ConfigError naming the key at fault.
    """
    if wish.data == "none":
        return _pure_gossip(wish)
    data = load_data(wish.data, folder=wish.folder, dtype=wish.dtype, shards=wish.shards)
    if wish.model in LABEL_MODELS:
        data = with_labels(data, None)
    if wish.model == "linear":
        data = replace(
            data, y=data.y.to(wish.dtype), y_test=None if data.y_test is None else data.y_test.to(wish.dtype)
        )
    seed = torch_seed(wish.seed, "model")
    built = build_model(wish.model, data=data, seed=seed, dtype=wish.dtype, folder=wish.folder)
    kind, data = _fit_targets(built, data)
    layout = layout_of(built.module, wish.dtype, average_buffers=wish.average_buffers)
    task = Task(wish, layout, (), _code_hash(wish), built, kind, data)
    task = replace(task, starts=_starts(task))
    if wish.partition.kind == "own":
        own = tuple(_own_data(task, i) if only in (None, i) else None for i in range(task.peers))
        task = replace(task, own=own)
    else:
        task = replace(task, rows=_dealt_out(task))
    _check_shards(task)
    return task


def _pure_gossip(wish: Wish) -> Task:
    starts = tuple(torch.tensor(list(row), dtype=wish.dtype) for row in wish.starts)
    if not starts:
        raise ConfigError("task.init", 'data = "none" is pure gossip and needs the vectors to gossip')
    return Task(wish, vector_layout(len(starts[0]), wish.dtype), starts, code="")


def _code_hash(wish: Wish) -> str:
    specs = [s for s in (wish.model, wish.data) if ":" in s and not s.startswith(("npz:", "torchvision:"))]
    return "".join(source_hash(spec, wish.folder) for spec in specs)


# ---- Targets and outputs


def _fit_targets(built: BuiltModel, data: DataSet) -> tuple[Kind, DataSet]:
    """Find out what the model does with the data, and bring the targets into the form its loss needs."""
    output = _probe(built, data.x[:2])
    if built.loss is not None:
        labelled = data.y.dtype == torch.int64 and isinstance(output, Tensor) and output.ndim == 2
        return ("classification" if labelled else "regression"), data
    outputs = pick_output(output, built.spec)
    if len(outputs) != len(data.x[:2]):
        raise ConfigError(
            "task.model", f"{len(data.x[:2])} rows in gave {len(outputs)} rows out (shape {tuple(outputs.shape)})"
        )
    tail = tuple(outputs.shape[1:])
    if len(tail) > 1:
        raise ConfigError(
            "task.model", f"gives outputs of shape (rows, {', '.join(map(str, tail))}); give a loss: (module, loss)"
        )
    if tail and tail[0] > 1 and not (data.y.is_floating_point() and data.y.shape[1:] == tail and not _one_hot(data.y)):
        return "classification", _map_targets(data, lambda y: as_labels(y, tail[0], data.source, dtype=data.y_dtype))
    as_float = replace(
        data, y=data.y.to(outputs.dtype), y_test=None if data.y_test is None else data.y_test.to(outputs.dtype)
    )
    return "regression", _map_targets(as_float, lambda y: as_targets(y, tail, data.source))


def _one_hot(y: Tensor) -> bool:
    return bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _map_targets(data: DataSet, form: Callable[[Tensor], Tensor]) -> DataSet:
    return replace(data, y=form(data.y), y_test=None if data.y_test is None else form(data.y_test))


def _probe(built: BuiltModel, x: Tensor) -> object:
    """Run two rows through the model. Raises ConfigError with the user's own traceback."""
    built.module.eval()
    try:
        with torch.no_grad():
            return built.module(x)
    except Exception as error:
        raise ConfigError(
            "task.model",
            f"{built.spec} raised {type(error).__name__} on rows of shape {tuple(x.shape[1:])}: {_first_line(error)}",
            own_traceback(error),
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


# ---- Rows and starts


def _starts(task: Task) -> tuple[Tensor, ...]:
    assert task.built is not None
    model = PlainTrainer(
        task.built, task.layout, task.wish.schedule, kind=task.kind, seed=0, device=torch.device("cpu")
    ).start()
    if not task.wish.starts:
        return (model,)
    starts = []
    for row in task.wish.starts:
        if len(row) != task.layout.trainable:
            raise ConfigError(
                "task.init", f"{len(row)} numbers, but the model has {task.layout.trainable:,} parameters"
            )
        start = model.clone()
        start[: task.layout.trainable] = torch.tensor(list(row), dtype=task.layout.dtype)
        starts.append(start)
    return tuple(starts)


def _dealt_out(task: Task) -> tuple[np.ndarray, ...]:
    wish, data = task.wish, task.data
    assert data is not None
    how = wish.partition
    if data.blocks is not None:
        ends = np.cumsum(data.blocks)
        return tuple(np.arange(end - n, end) for n, end in zip(data.blocks, ends, strict=True))
    labels = data.y.numpy() if task.kind == "classification" and data.y.ndim == 1 else None
    rows = partition(
        how.kind,
        labels=labels,
        rows=len(data.x),
        peers=task.peers,
        seed=wish.seed,
        alpha=how.alpha,
        classes_per_peer=how.classes_per_peer,
        sizes=how.sizes,
        rows_per_peer=how.rows_per_peer,
    )
    return tuple(rows)


def _own_data(task: Task, peer: int) -> DataSet:
    """Load the data of one machine, in the form of the common ones."""
    assert task.data is not None
    spec = task.wish.partition.own[peer]
    assert spec is not None
    own = load_data(spec, folder=task.wish.folder, dtype=task.wish.dtype, key=f"peers.{task.wish.names[peer]}.data")
    if own.x.shape[1:] != task.data.x.shape[1:]:
        raise ConfigError(
            f"peers.{task.wish.names[peer]}.data",
            f"{own.source}: rows of shape {tuple(own.x.shape[1:])}, those of task.data {tuple(task.data.x.shape[1:])}",
        )
    assert task.built is not None
    return _fit_targets(task.built, own)[1]


def _check_shards(task: Task) -> None:
    assert task.built is not None
    rows = task.rows if task.rows is not None else [() if d is None else d.x for d in task.own or ()]
    counts = [len(r) for r in rows]
    check_batch_norm(task.built.module, counts, task.wish.schedule.batch_size, list(task.wish.names))


def _shard_of(data: DataSet, rows: np.ndarray | None, device: torch.device) -> Shard:
    index = None if rows is None else torch.from_numpy(rows).to(device)
    has_test = data.x_test is not None and data.y_test is not None
    return Shard(
        data.x.to(device),
        data.y.to(device),
        index,
        data.x_test.to(device) if has_test and data.x_test is not None else None,
        data.y_test.to(device) if has_test and data.y_test is not None else None,
    )
