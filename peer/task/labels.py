"""Labels for a model that classifies, targets for one that does not: converted where nothing is lost."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from peer.errors import ConfigError
from peer.task.dataset import DataSet, Origin, count_of, dtype_name, one_a_row


def as_labels(
    y: Tensor, classes: int | None, source: str, *, array: str = "y", dtype: str = "", key: str = "task.data"
) -> Tensor:
    """Return `y` as int64 labels (n,) in 0 .. classes - 1 (`classes` None: no upper end), if nothing is lost.

    Takes whole numbers of any dtype, (n,) or (n, 1), and one-hot rows (n, c). Raises ConfigError(key) with the source,
    the array, its dtype (`dtype`: as it was before load_data), its least and its greatest.
    """
    if y.numel() == 0:
        return y.reshape(-1).to(torch.int64)
    low, high = y.min().item(), y.max().item()
    seen = f"{array} ({dtype or dtype_name(y.dtype)}, min {low}, max {high})"
    fault = Origin(f"{source}: {seen}", key).fault
    flat = one_a_row(y)
    if flat.ndim != 1:
        raise fault(f"shape {tuple(y.shape)} is neither one label a row nor one-hot rows with exactly one 1")
    labels = flat.to(torch.int64)
    if not torch.equal(labels.to(flat.dtype), flat):
        raise fault("labels must be whole numbers; the model classifies")
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise fault("labels start at 0; a negative one is often a mark for a row without a label: drop such rows")
    if classes is not None and high >= classes:
        hint = "; they look 1-based: subtract 1" if low == 1 and high == classes else ""
        raise fault(f"labels go up to {high}, but the model has {classes} outputs{hint}")
    return labels


def with_labels(data: DataSet, classes: int | None) -> DataSet:
    """Return `data` with y and y_test as labels of a model with `classes` outputs; see as_labels."""
    y = as_labels(data.y, classes, data.source, dtype=data.y_dtype, key=data.key)
    y_test = data.y_test
    if y_test is not None:
        y_test = as_labels(y_test, classes, data.source, array="y_test", dtype=data.y_test_dtype, key=data.key)
    return replace(data, y=y, y_test=y_test, classes=classes or count_of(data.y, y, y_test))


def count_classes(data: DataSet) -> int:
    """Return how many classes the labels tell apart. Raises ConfigError where y holds none."""
    classes = data.classes or with_labels(data, None).classes
    assert classes is not None
    return classes


def as_targets(y: Tensor, output_shape_tail: Sequence[int], source: str, *, key: str = "task.data") -> Tensor:
    """Return regression targets in the shape of the outputs, (n, *output_shape_tail).

    Only axes of length 1 are added or dropped, (n, 1) for (n,) and back; nothing is broadcast. Raises
    ConfigError(key) with both shapes.
    """
    tail = tuple(output_shape_tail)
    if tuple(y.shape[1:]) == tail:
        return y
    if [size for size in y.shape[1:] if size != 1] == [size for size in tail if size != 1]:
        return y.reshape(y.shape[0], *tail)
    shapes = f"a target has shape {tuple(y.shape[1:])}, but an output of the model {tail}"
    raise ConfigError(key, f"{source}: {shapes}; they must hold the same numbers")


def with_targets(data: DataSet, output_shape_tail: Sequence[int], dtype: torch.dtype) -> DataSet:
    """Return `data` with y and y_test as targets of a model with outputs of this shape and dtype; see as_targets."""

    def form(y: Tensor) -> Tensor:
        return as_targets(y.to(dtype), output_shape_tail, data.source, key=data.key)

    return replace(data, y=form(data.y), y_test=None if data.y_test is None else form(data.y_test))
