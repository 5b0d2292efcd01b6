"""Training and test rows as tensors: where they come from, and what is converted on the way.

Conversions, each of which is listed in `DataSet.conversions` where it took place:

- `x`: uint8 is taken for pixels and divided by 255; all other numbers keep their values in `dtype`. (n,)
  becomes (n, 1). Two-dimensional int32 or int64 x of a user's factory are tokens and stay int64.
- `y`: whole-number and boolean dtypes become int64; a column (n, 1) of them and one-hot rows (n, c) become
  (n,). Floats stay floats in `dtype`. They may be labels all the same (0.0, 1.0, ...): a model that
  classifies takes them as such, see `with_labels`.
"""

import contextlib
import http.client
import logging
import math
import os
import pickle
import socket
import sys
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from peer.errors import ConfigError
from peer.task.factory import call_factory, load_factory

log = logging.getLogger(__name__)

MNIST5K = Path(__file__).with_name("mnist5k.npz")
TRAIN_ROWS_PER_DIGIT = 400
ARRAYS: tuple[str, ...] = ("x", "y", "x_test", "y_test")
DOWNLOAD_TIMEOUT_S = 20.0

_DOWNLOAD_ERRORS = (
    OSError,
    RuntimeError,
    http.client.HTTPException,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
)
_DAMAGE_ERRORS = (
    ValueError,
    AssertionError,
    EOFError,
    IndexError,
    KeyError,
    zlib.error,
    pickle.UnpicklingError,
)


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
    y_dtype: str = ""  # of y before any conversion
    conversions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Origin:
    source: str
    key: str

    def fault(self, problem: str) -> ConfigError:
        return ConfigError(self.key, f"{self.source}: {problem}")


@dataclass(frozen=True)
class _Raw:
    """An array as it came, with its dtype's name there; `tensor` holds the same values."""

    tensor: Tensor
    dtype: str


def load_data(
    spec: str,
    *,
    folder: Path,
    dtype: torch.dtype,
    shards: Sequence[Sequence[Sequence[Any]]] | None = None,
    key: str = "task.data",
) -> DataSet:
    """Return the rows that `spec` names.

    "mnist5k" | "inline" (`shards`: per peer a list of [features, target]) | "npz:PATH" | "torchvision:NAME"
    | "package.module:factory", which returns (x, y) or (x, y, x_test, y_test) and is offered `folder` and
    `dtype`. A relative PATH starts at `folder`, where the experiment file is. Raises ConfigError(key) with
    the name of the file and the array. An npz must be finite; other data are taken as given.
    """
    assert spec != "none", "pure gossip has no data"
    name, _, rest = spec.partition(":")
    if spec == "mnist5k":
        return _mnist5k(dtype)
    if spec == "inline":
        return _inline(shards, dtype)
    if name == "npz" and rest:
        return _npz(folder / Path(rest).expanduser(), dtype, key)
    if name == "torchvision" and rest:
        return _torchvision(rest, dtype, key)
    if rest and name not in ("npz", "torchvision"):
        return _from_factory(spec, folder, dtype, key)
    known = 'mnist5k, inline, none, "torchvision:NAME", "npz:PATH" and "package.module:factory"'
    raise ConfigError(key, f"unknown data {spec!r}; there are {known}")


def as_labels(y: Tensor, classes: int | None, source: str, *, array: str = "y", dtype: str = "") -> Tensor:
    """Return `y` as int64 labels (n,) in 0 .. classes - 1 (`classes` None: no upper end), if nothing is lost.

    Takes whole numbers of any dtype, (n,) or (n, 1), and one-hot rows (n, c). Raises ConfigError("task.data")
    with the source, the array, its dtype (`dtype`: as it was before load_data), its least and its greatest.
    """
    if y.numel() == 0:
        return y.reshape(-1).to(torch.int64)
    low, high = y.min().item(), y.max().item()
    seen = f"{array} ({dtype or _dtype_name(y.dtype)}, min {low}, max {high})"
    fault = _Origin(f"{source}: {seen}", "task.data").fault
    flat = _one_a_row(y)
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
    y = as_labels(data.y, classes, data.source, dtype=data.y_dtype)
    y_test = data.y_test
    if y_test is not None:
        y_test = as_labels(y_test, classes, data.source, array="y_test")
    return replace(data, y=y, y_test=y_test, classes=classes or _count(data.y, y, y_test))


def count_classes(data: DataSet) -> int:
    """Return how many classes the labels tell apart. Raises ConfigError("task.data") where y holds none."""
    classes = data.classes or with_labels(data, None).classes
    assert classes is not None
    return classes


def as_targets(y: Tensor, output_shape_tail: Sequence[int], source: str) -> Tensor:
    """Return regression targets in the shape of the outputs, (n, *output_shape_tail).

    Only axes of length 1 are added or dropped, (n, 1) for (n,) and back; nothing is broadcast. Raises
    ConfigError("task.data") with both shapes.
    """
    tail = tuple(output_shape_tail)
    if tuple(y.shape[1:]) == tail:
        return y
    if [size for size in y.shape[1:] if size != 1] == [size for size in tail if size != 1]:
        return y.reshape(y.shape[0], *tail)
    shapes = f"a target has shape {tuple(y.shape[1:])}, but an output of the model {tail}"
    raise ConfigError("task.data", f"{source}: {shapes}; they must hold the same numbers")


# --- sources


def _mnist5k(dtype: torch.dtype) -> DataSet:
    with np.load(MNIST5K, allow_pickle=False) as file:
        images, labels = file["images"][:, None], file["labels"]
    of_digit = [np.flatnonzero(labels == digit) for digit in range(10)]
    train = np.concatenate([rows[:TRAIN_ROWS_PER_DIGIT] for rows in of_digit])
    test = np.concatenate([rows[TRAIN_ROWS_PER_DIGIT:] for rows in of_digit])
    arrays = {"x": images[train], "y": labels[train], "x_test": images[test], "y_test": labels[test]}
    return _assemble(arrays, _Origin("mnist5k", "task.data"), dtype, classes=10)


def _inline(shards: Sequence[Sequence[Sequence[Any]]] | None, dtype: torch.dtype) -> DataSet:
    at = _Origin("inline", "task.shards")
    if not shards or not any(shards):
        raise ConfigError(at.key, 'data = "inline" needs it: per peer, a list of [features, target]')
    features: list[list[float]] = []
    targets: list[float] = []
    for peer, shard in enumerate(shards):
        for row, pair in enumerate(shard):
            where = f"peer {peer}, row {row}"
            values, target = _inline_row(pair, where, at)
            if features and len(values) != len(features[0]):
                problem = f"{len(values)} features, but the first row has {len(features[0])}"
                raise ConfigError(at.key, f"{where}: {problem}")
            features.append(values)
            targets.append(target)
    data = _assemble({"x": torch.tensor(features, dtype=dtype), "y": torch.tensor(targets, dtype=dtype)}, at, dtype)
    return replace(data, blocks=tuple(len(shard) for shard in shards))


def _inline_row(pair: Sequence[Any], where: str, at: _Origin) -> tuple[list[float], float]:
    form = ConfigError(at.key, f"{where}: write [features, target], as in [[1.0, 2.0], 3.0]; found {pair!r}")
    if not isinstance(pair, Sequence) or len(pair) != 2 or not isinstance(pair[0], Sequence):
        raise form
    numbers = [*pair[0], pair[1]]
    if not pair[0] or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise form
    return [float(n) for n in pair[0]], float(pair[1])


def _npz(path: Path, dtype: torch.dtype, key: str) -> DataSet:
    at = _Origin(str(path), key)
    arrays = _read_npz(path, at)
    for name in ("x", "y"):
        if name not in arrays:
            raise at.fault(f"no array {name!r}; the file holds {', '.join(arrays) or 'none'}")
    wanted = {name: arrays[name] for name in ARRAYS if name in arrays}
    return _assemble(wanted, at, dtype, finite=True)


def _read_npz(path: Path, at: _Origin) -> dict[str, object]:
    try:
        file = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise at.fault("no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise at.fault(f"not an npz file ({error})") from error
    if isinstance(file, np.ndarray):
        raise at.fault("a single array; an npz file with arrays x and y is needed: np.savez(path, x=..., y=...)")
    arrays: dict[str, object] = {}
    with file:
        for name in file.files:
            if name not in ARRAYS:
                arrays[name] = None
                continue
            try:
                arrays[name] = file[name]
            except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                raise at.fault(f"array {name} cannot be read: {error}") from error
    return arrays


def _from_factory(spec: str, folder: Path, dtype: torch.dtype, key: str) -> DataSet:
    at = _Origin(spec, key)
    made = call_factory(load_factory(spec, key, folder), spec, key, folder=folder, dtype=dtype)
    if not isinstance(made, tuple | list) or len(made) not in (2, 4):
        found = f"{len(made)} values" if isinstance(made, tuple | list) else f"a {type(made).__name__}"
        raise at.fault(f"returns {found}; return (x, y) or (x, y, x_test, y_test)")
    arrays = {name: value for name, value in zip(ARRAYS, made, strict=False) if value is not None}
    return _assemble(arrays, at, dtype, tokens=True)


# --- from arrays to a DataSet


def _assemble(
    arrays: Mapping[str, object],
    at: _Origin,
    dtype: torch.dtype,
    *,
    tokens: bool = False,
    finite: bool = False,
    classes: int | None = None,
) -> DataSet:
    raws = {name: _raw(value, name, at) for name, value in arrays.items()}
    _check_shapes({name: raw.tensor for name, raw in raws.items()}, at)
    ready: dict[str, Tensor] = {}
    for name, raw in raws.items():
        inputs = name.startswith("x")
        ready[name] = _inputs(raw.tensor, dtype, tokens) if inputs else _outputs(raw.tensor, dtype)
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
        conversions=tuple(note for name in raws if (note := _note(name, raws[name], ready[name]))),
    )
    return replace(data, classes=classes or _count(raws["y"].tensor, data.y, data.y_test))


def _raw(value: object, name: str, at: _Origin) -> _Raw:
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


def _from_tensor(value: Tensor, name: str, at: _Origin) -> _Raw:
    seen = _dtype_name(value.dtype)
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
    return _one_a_row(y.to(torch.int64))


def _check_shapes(tensors: dict[str, Tensor], at: _Origin) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or tensor.numel() == 0:
            raise at.fault(f"{name} is empty: shape {tuple(tensor.shape)}")
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if (x in tensors) != (y in tensors):
            raise at.fault(f"{x if x in tensors else y} without {y if x in tensors else x}: give both or neither")
        if x in tensors and len(tensors[x]) != len(tensors[y]):
            raise at.fault(f"{x} has {len(tensors[x])} rows, but {y} has {len(tensors[y])}")


def _check_alike(ready: dict[str, Tensor], raws: dict[str, _Raw], at: _Origin) -> None:
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


def _check_finite(raw: Tensor, ready: Tensor, name: str, at: _Origin) -> None:
    for tensor, problem in ((raw, "NaN or infinite"), (ready, f"too large for {_dtype_name(ready.dtype)}")):
        bad = (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero()
        if len(bad):
            raise at.fault(f"{name} is {problem} in {len(bad)} of {len(tensor)} rows, first in row {int(bad[0])}")


def _note(name: str, raw: _Raw, ready: Tensor) -> str:
    if name.startswith("x") and raw.tensor.dtype is torch.uint8:
        return f"{name}: {raw.dtype} divided by 255, to {_dtype_name(ready.dtype)}"
    shaped = f", as shape {tuple(ready.shape)}" if ready.shape != raw.tensor.shape else ""
    if raw.dtype == _dtype_name(ready.dtype) and not shaped:
        return ""
    return f"{name}: {raw.dtype} to {_dtype_name(ready.dtype)}{shaped}"


def _count(original: Tensor, y: Tensor, y_test: Tensor | None) -> int | None:
    """Count the classes of labels (n,); a one-hot original tells even of classes that no row has."""
    parts = [part for part in (y, y_test) if part is not None]
    if any(part.ndim != 1 or part.dtype is not torch.int64 or int(part.min()) < 0 for part in parts):
        return None
    columns = original.shape[1] if original.ndim == 2 else 0
    return max(columns, 1 + max(int(part.max()) for part in parts))


def _one_a_row(y: Tensor) -> Tensor:
    """Return a column (n, 1) or one-hot rows (n, c) as (n,), and everything else as it is."""
    if y.ndim != 2:
        return y
    if y.shape[1] == 1:
        return y[:, 0]
    one_hot = ((y == 1).sum(1) == 1) & ((y != 0).sum(1) == 1)
    return (y == 1).to(torch.int64).argmax(1) if bool(one_hot.all()) else y


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- torchvision: one process downloads, the others wait


def _torchvision(name: str, dtype: torch.dtype, key: str) -> DataSet:
    made_by = _torchvision_class(name, key)
    argument = _half_argument(made_by, name, key)
    values = (True, False) if argument == "train" else ("train", "test")
    root = Path(os.environ.get("EARSHOT_DATA") or "~/.cache/earshot").expanduser()

    def open_both(download: bool) -> list[Any]:
        with contextlib.redirect_stdout(sys.stderr):
            return [made_by(str(root), **{argument: value}, download=download) for value in values]

    at = _Origin(f"torchvision:{name}", key)
    train, test = _fetch(open_both, name, root, at, f"{argument}=half", values)
    x, y = _images_and_labels(train, at)
    x_test, y_test = _images_and_labels(test, at)
    named = len(getattr(train, "classes", ())) or None
    return _assemble({"x": x, "y": y, "x_test": x_test, "y_test": y_test}, at, dtype, classes=named)


def _torchvision_class(name: str, key: str) -> Callable[..., Any]:
    try:
        sets = import_module("torchvision.datasets")
    except ImportError as error:
        if error.name and not error.name.startswith("torchvision"):
            raise ConfigError(key, f"torchvision does not load: {error}") from error
        raise ConfigError(
            key, f'"torchvision:{name}" needs torchvision: pip install "earshot-train[torchvision]"'
        ) from error
    except (RuntimeError, OSError) as error:  # built for another torch
        raise ConfigError(key, f"torchvision does not load beside torch {torch.__version__}: {error}") from error
    names = [n for n in dir(sets) if isinstance(getattr(sets, n), type)]
    if name not in names:
        close = get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(key, f"torchvision {sets.__name__} has no {name!r}{hint}")
    made_by: Callable[..., Any] = getattr(sets, name)
    return made_by


def _half_argument(made_by: Callable[..., Any], name: str, key: str) -> str:
    """Return the argument that chooses training or test rows; refuse sets that need more than that."""
    parameters = signature(made_by).parameters
    needed = [n for n, p in parameters.items() if p.default is Parameter.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    half = next((n for n in ("train", "split") if n in parameters), None)
    if half is None or "download" not in parameters or needed != ["root"]:
        more = ", ".join(n for n in needed if n != "root")
        why = f"needs {more}" if more else "cannot be downloaded as a training and a test half"
        raise ConfigError(key, f'"torchvision:{name}" {why}; write a factory: data = "package.module:factory"')
    return half


def _fetch(
    open_both: Callable[[bool], list[Any]],
    name: str,
    root: Path,
    at: _Origin,
    call: str,
    values: tuple[object, ...],
) -> list[Any]:
    """Open the two halves below `root`, downloading them first where they are missing.

    Who finds that another process's download failed while it waited does not try again: eight peers behind a
    firewall would otherwise run into eight timeouts, one after the other.
    """
    get = f"[torchvision.datasets.{name}('earshot-data', {call}, download=True) for half in {values}]"
    mend = (
        f'On a connected machine run python -c "import torchvision; {get}", '
        "copy the folder earshot-data here, and set EARSHOT_DATA to it"
    )
    failed = root / f".{name}.failed"
    before = _read(failed)
    lock = FileLock(root / f".{name}.lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except TimeoutError:
        log.info("waiting for another process that downloads %s to %s", name, root)
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # no lock, but a read-only folder may hold the data
        found = _open_present(open_both, root, at)
        if found is None:
            raise at.fault(f"not found in {root}, which cannot be written: {error}. {mend}") from error
        return found
    with lock.acquire():
        lock.release()  # the count of the first acquire
        found = _open_present(open_both, root, at)
        if found is not None:
            return found
        if _read(failed) != before:
            raise at.fault(f"not found in {root}, and another process could not download it. {mend}")
        return _download(open_both, failed, root, at, mend)


def _open_present(open_both: Callable[[bool], list[Any]], root: Path, at: _Origin) -> list[Any] | None:
    try:
        return open_both(False)
    except _DAMAGE_ERRORS as error:
        cause = f"{type(error).__name__}: {error}"
        raise at.fault(f"its files in {root} are damaged ({cause}); remove them and start again") from error
    except (RuntimeError, OSError):  # torchvision's ways to say that it is not there
        return None


def _download(open_both: Callable[[bool], list[Any]], failed: Path, root: Path, at: _Origin, mend: str) -> list[Any]:
    log.info("downloading %s to %s", at.source, root)
    try:
        with _socket_timeout(DOWNLOAD_TIMEOUT_S):
            found = open_both(True)
    except _DOWNLOAD_ERRORS as error:
        with contextlib.suppress(OSError):
            failed.write_text(uuid.uuid4().hex, encoding="utf-8")  # whoever waits sees that it changed
        cause = " ".join(str(error).split()) or type(error).__name__
        raise at.fault(f"not found in {root}, and the download failed: {cause}. {mend}") from error
    failed.unlink(missing_ok=True)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Bound each wait for the network: torchvision sets no limit, and a firewall may swallow packets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _images_and_labels(half: Any, at: _Origin) -> tuple[Tensor, object]:
    data = getattr(half, "data", None)
    labels = getattr(half, "targets", getattr(half, "labels", None))
    if labels is None or not isinstance(data, Tensor | np.ndarray) or not math.prod(data.shape):
        raise at.fault("does not keep images and labels in memory; write a factory that returns (x, y)")
    images = torch.as_tensor(data)
    if images.ndim == 3:
        return images[:, None], labels
    channels_last = images.ndim == 4 and images.shape[3] == 3 and images.shape[1] != 3
    return (images.permute(0, 3, 1, 2) if channels_last else images), labels
