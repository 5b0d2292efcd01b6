"""From arrays as they come to one data set, and what is converted on the way.

Conversions, each of which is listed in `DataSet.conversions` where it took place:

- `x`: uint8 is taken for pixels and divided by 255; all other numbers keep their values in `dtype`. (n,)
  becomes (n, 1). Two-dimensional int32 or int64 x of a user's factory are tokens and stay int64.
- `y`: whole-number and boolean dtypes become int64; a column (n, 1) of them and one-hot rows (n, c) become
  (n,). Floats stay floats in `dtype`. They may be labels all the same (0.0, 1.0, ...): a model that
  classifies takes them as such, see `labels.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from peer.errors import ConfigError


@dataclass(frozen=True, eq=False)
class DataSet:
    """Rows on the CPU: `x` (n, ...) floating, or int64 tokens (n, length); `y` (n, ...) int64 or floating."""

    x: Tensor
    y: Tensor
    x_test: Tensor | None
    y_test: Tensor | None
    source: str  # for messages: the file, or the spec
    blocks: tuple[int, ...] | None  # rows of each peer, in order, where the data themselves fix the partition
    classes: int | None  # number of classes where y are labels
    y_dtype: str = ""  # of y before any conversion, and of y_test
    y_test_dtype: str = ""
    conversions: tuple[str, ...] = ()
    key: str = "task.data"  # of the experiment file, for messages

    @property
    def labelled(self) -> bool:
        """Whether y may be labels: one whole number a row."""
        return self.y.dtype is torch.int64 and self.y.ndim == 1


@dataclass(frozen=True)
class Origin:
    """Where rows come from: a file or a spec, and the key of the experiment file that names it."""

    source: str
    key: str

    def fault(self, problem: str) -> ConfigError:
        """Return the error that something is wrong with them."""
        return ConfigError(self.key, f"{self.source}: {problem}")


@dataclass(frozen=True)
class _Raw:
    """An array as it came, with its dtype's name there; `tensor` holds the same values."""

    tensor: Tensor
    dtype: str


def assemble(
    arrays: Mapping[str, object],
    at: Origin,
    dtype: torch.dtype,
    *,
    tokens: bool = False,
    finite: bool = False,
    classes: int | None = None,
) -> DataSet:
    """Return the arrays x, y and perhaps x_test, y_test as one data set, converted as said above.

    `tokens`: whole numbers of x may be tokens; `finite`: refuse rows that are not. Raises ConfigError naming the array.
    """
    raws = {name: _raw(value, name, at) for name, value in arrays.items()}
    _check_shapes({name: raw.tensor for name, raw in raws.items()}, at)
    ready: dict[str, Tensor] = {}
    for name, raw in raws.items():
        inputs = name.startswith("x")
        ready[name] = _row_major(_inputs(raw.tensor, dtype, tokens) if inputs else _outputs(raw.tensor, dtype))
        if finite:
            _check_finite(raw.tensor, ready[name], name, at)
    _check_alike(ready, raws, at)
    data = DataSet(
        x=ready["x"],
        y=ready["y"],
        x_test=ready.get("x_test"),
        y_test=ready.get("y_test"),
        source=at.source,
        blocks=None,
        classes=classes,
        y_dtype=raws["y"].dtype,
        y_test_dtype=raws["y_test"].dtype if "y_test" in raws else "",
        key=at.key,
        conversions=tuple(note for name in raws if (note := _note(name, raws[name], ready[name]))),
    )
    return replace(data, classes=classes or count_of(raws["y"].tensor, data.y, data.y_test))


def _raw(value: object, name: str, at: Origin) -> _Raw:
    if isinstance(value, Tensor):
        return _from_tensor(value, name, at)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise at.fault(f"{name} is not an array: {error}") from error
    seen = str(array.dtype)
    if array.dtype.kind not in "biuf":
        raise at.fault(f"{name} has dtype {seen}; real numbers or booleans are needed")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch has few operations on these
        if array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
            raise at.fault(f"{name} ({seen}) goes up to {array.max()}, which int64 cannot hold")
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    return _Raw(torch.from_numpy(native), seen)


def _from_tensor(value: Tensor, name: str, at: Origin) -> _Raw:
    seen = dtype_name(value.dtype)
    if value.is_complex() or value.is_quantized or value.is_meta:
        kind = "on the meta device" if value.is_meta else f"of dtype {seen}"
        raise at.fault(f"{name} is {kind}; real numbers or booleans are needed")
    tensor = value.detach().cpu()
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return replace(_raw(tensor.numpy(), name, at), dtype=seen)
    return _Raw(tensor.contiguous(), seen)


def _inputs(x: Tensor, dtype: torch.dtype, tokens: bool) -> Tensor:
    if x.dtype is torch.uint8:
        x = x.to(dtype) / 255
    elif not (tokens and x.ndim == 2 and x.dtype in (torch.int32, torch.int64)):
        x = x.to(dtype)
    else:
        x = x.to(torch.int64)
    return x[:, None] if x.ndim == 1 else x


def _outputs(y: Tensor, dtype: torch.dtype) -> Tensor:
    if y.dtype.is_floating_point:
        return y.to(dtype)
    return one_a_row(y.to(torch.int64))


def _row_major(tensor: Tensor) -> Tensor:
    """Return the tensor with plain strides. Images of one channel may otherwise count as channels-last, which spreads
    to what a convolution makes of them, and a user's `view(n, -1)` fails."""
    plain = torch.empty(tensor.shape, device="meta").stride()
    return tensor if tensor.stride() == plain else tensor.clone(memory_format=torch.contiguous_format)


def _check_shapes(tensors: dict[str, Tensor], at: Origin) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or tensor.numel() == 0:
            raise at.fault(f"{name} is empty: shape {tuple(tensor.shape)}")
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if (x in tensors) != (y in tensors):
            raise at.fault(f"{x if x in tensors else y} without {y if x in tensors else x}: give both or neither")
        if x in tensors and len(tensors[x]) != len(tensors[y]):
            raise at.fault(f"{x} has {len(tensors[x])} rows, but {y} has {len(tensors[y])}")


def _check_alike(ready: dict[str, Tensor], raws: dict[str, _Raw], at: Origin) -> None:
    """Refuse test rows of another kind than the training rows: pixels there and fractions here, say."""
    for name, test in (("x", "x_test"), ("y", "y_test")):
        if test not in ready:
            continue
        if ready[name].shape[1:] != ready[test].shape[1:]:
            shapes = f"shape {tuple(ready[name].shape[1:])}, but one of {test} {tuple(ready[test].shape[1:])}"
            raise at.fault(f"a row of {name} has {shapes}")
        pixels = [raws[n].tensor.dtype is torch.uint8 for n in (name, test)]
        if ready[name].dtype != ready[test].dtype or (name == "x" and pixels[0] != pixels[1]):
            raise at.fault(f"{name} has dtype {raws[name].dtype}, but {test} {raws[test].dtype}: make them alike")


def _check_finite(raw: Tensor, ready: Tensor, name: str, at: Origin) -> None:
    for tensor, problem in ((raw, "NaN or infinite"), (ready, f"too large for {dtype_name(ready.dtype)}")):
        bad = (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero()
        if len(bad):
            raise at.fault(f"{name} is {problem} in {len(bad)} of {len(tensor)} rows, first in row {int(bad[0])}")


def _note(name: str, raw: _Raw, ready: Tensor) -> str:
    if name.startswith("x") and raw.tensor.dtype is torch.uint8:
        return f"{name}: {raw.dtype} divided by 255, to {dtype_name(ready.dtype)}"
    shaped = f", as shape {tuple(ready.shape)}" if ready.shape != raw.tensor.shape else ""
    if raw.dtype == dtype_name(ready.dtype) and not shaped:
        return ""
    return f"{name}: {raw.dtype} to {dtype_name(ready.dtype)}{shaped}"


def count_of(original: Tensor, y: Tensor, y_test: Tensor | None) -> int | None:
    """Count the classes of labels (n,); a one-hot original tells even of classes that no row has."""
    parts = [part for part in (y, y_test) if part is not None]
    if any(part.ndim != 1 or part.dtype is not torch.int64 or int(part.min()) < 0 for part in parts):
        return None
    columns = original.shape[1] if original.ndim == 2 else 0
    return max(columns, 1 + max(int(part.max()) for part in parts))


def one_a_row(y: Tensor) -> Tensor:
    """Return a column (n, 1) or one-hot rows (n, c) as (n,), and everything else as it is."""
    if y.ndim != 2:
        return y
    if y.shape[1] == 1:
        return y[:, 0]
    one_hot = ((y == 1).sum(1) == 1) & ((y != 0).sum(1) == 1)
    return (y == 1).to(torch.int64).argmax(1) if bool(one_hot.all()) else y


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
