"""How a model and its data fit: what it does with them, and the form in which its loss takes what it should learn.

Two rows through the model tell, before anything trains.
"""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from peer.errors import ConfigError
from peer.task.dataset import DataSet
from peer.task.factory import own_traceback
from peer.task.labels import with_labels, with_targets
from peer.task.models import CLASSIFIERS, BuiltModel, Kind, pick_output

ROWS_TRIED = 2

_KEY = "task.model"


def fit(built: BuiltModel, data: DataSet) -> tuple[Kind, DataSet]:
    """Return what the model does, and the data as its loss takes them.

    Raises ConfigError where they do not suit each other, with the user's own traceback where their code raised.
    """
    x = data.x[:ROWS_TRIED]
    output = _try(lambda: built.module.eval()(x), f"{built.spec} raised", x)
    if built.loss is not None:
        _check_loss(built, output, data)
        return ("classification" if data.labelled and _is_row_of_scores(output) else "regression"), data
    outputs = pick_output(output, built.spec)
    _check_shape(built, outputs, len(x))
    tail = tuple(outputs.shape[1:])
    if built.spec in CLASSIFIERS or (tail and tail[0] > 1 and not _are_targets(data.y, tail)):
        return "classification", with_labels(data, tail[0])
    return "regression", with_targets(data, tail, outputs.dtype)


def fit_own(built: BuiltModel, common: DataSet, own: DataSet) -> DataSet:
    """Return one machine's own data in the form of the common ones, of which they may hold fewer classes.

    Raises ConfigError with the machine's key where they are of another kind.
    """
    if (own.x.shape[1:], own.x.dtype) != (common.x.shape[1:], common.x.dtype):
        raise ConfigError(own.key, f"{own.source}: {_rows_of(own.x)}, those of task.data are {_rows_of(common.x)}")
    if common.labelled:
        return with_labels(own, common.classes if built.loss is None else None)
    if common.y.dtype is torch.int64 is not own.y.dtype:
        raise ConfigError(own.key, f"{own.source}: y has dtype {own.y_dtype}, that of task.data {common.y_dtype}")
    return with_targets(own, common.y.shape[1:], common.y.dtype)


def check_shards(module: nn.Module, counts: Sequence[int], batch_size: int, names: Sequence[str]) -> None:
    """Refuse shards on which nothing can be learned. `counts` are their rows. Raises ConfigError naming the peer.

    A batch of one row has no variance, which batch norm divides by.
    """
    least = 2 if any(isinstance(m, _BatchNorm) for m in module.modules()) else 1
    if batch_size == 1 < least:
        raise ConfigError("task.batch_size", "1 row has no variance, and the model has BatchNorm; take 2 or more")
    for name, count in zip(names, counts, strict=True):
        if count < least:
            size = "one row, which BatchNorm cannot train on" if count else "empty"
            raise ConfigError("task.partition", f"the shard of {name} is {size}")


# ---- Trying it


def _try(run: Callable[[], object], what: str, x: Tensor) -> object:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")  # a loss that would broadcast
            return run()
    except ConfigError:
        raise
    except Exception as error:
        first, *_ = str(error).splitlines() or [""]
        problem = f"{what} {type(error).__name__} on {_rows_of(x)}: {first}"
        raise ConfigError(_KEY, problem, own_traceback(error)) from error


def _check_loss(built: BuiltModel, output: object, data: DataSet) -> None:
    loss, y = built.loss, data.y[:ROWS_TRIED]
    assert loss is not None
    value = _try(lambda: loss(output, y), f"{built.spec}: its loss raised", data.x)
    if isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point():
        return
    found = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        found = f"{value.dtype} numbers of shape {tuple(value.shape)}"
    raise ConfigError(_KEY, f"{built.spec}: its loss returns {found}; return one floating-point number as a tensor")


def _check_shape(built: BuiltModel, outputs: Tensor, rows: int) -> None:
    shape = tuple(outputs.shape)
    if not shape or shape[0] != rows:
        raise ConfigError(_KEY, f"{built.spec}: {rows} rows in gave outputs of shape {shape}; one a row is needed")
    if len(shape) > 2:
        tail = ", ".join(map(str, shape[1:]))
        raise ConfigError(_KEY, f"{built.spec} gives outputs of shape (rows, {tail}); give a loss: (module, loss)")


# ---- What y is


def _is_row_of_scores(output: object) -> bool:
    return isinstance(output, Tensor) and output.ndim == 2


def _are_targets(y: Tensor, tail: tuple[int, ...]) -> bool:
    """Say whether y are numbers to be met rather than labels: as many as outputs, and not one-hot."""
    return y.is_floating_point() and y.shape[1:] == tail and not _are_one_hot(y)


def _are_one_hot(y: Tensor) -> bool:
    return bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _rows_of(x: Tensor) -> str:
    return f"rows of shape {tuple(x.shape[1:])} and dtype {str(x.dtype).removeprefix('torch.')}"
