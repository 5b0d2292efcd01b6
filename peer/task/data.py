"""Training and test rows by the name that the experiment gives them."""

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peer.errors import ConfigError
from peer.task.dataset import DataSet, Origin, assemble
from peer.task.factory import call_factory, load_factory
from peer.task.torchvision_sets import load_torchvision

MNIST5K = Path(__file__).with_name("mnist5k.npz")
TRAIN_ROWS_PER_DIGIT = 400
ARRAYS: tuple[str, ...] = ("x", "y", "x_test", "y_test")


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
        return load_torchvision(rest, dtype, key)
    if rest and name not in ("npz", "torchvision"):
        return _from_factory(spec, folder, dtype, key)
    known = 'mnist5k, inline, none, "torchvision:NAME", "npz:PATH" and "package.module:factory"'
    raise ConfigError(key, f"unknown data {spec!r}; there are {known}")


def _mnist5k(dtype: torch.dtype) -> DataSet:
    with np.load(MNIST5K, allow_pickle=False) as file:
        images, labels = file["images"][:, None], file["labels"]
    of_digit = [np.flatnonzero(labels == digit) for digit in range(10)]
    train = np.concatenate([rows[:TRAIN_ROWS_PER_DIGIT] for rows in of_digit])
    test = np.concatenate([rows[TRAIN_ROWS_PER_DIGIT:] for rows in of_digit])
    arrays = {"x": images[train], "y": labels[train], "x_test": images[test], "y_test": labels[test]}
    return assemble(arrays, Origin("mnist5k", "task.data"), dtype, classes=10)


def _inline(shards: Sequence[Sequence[Sequence[Any]]] | None, dtype: torch.dtype) -> DataSet:
    at = Origin("inline", "task.shards")
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
    data = assemble({"x": torch.tensor(features, dtype=dtype), "y": torch.tensor(targets, dtype=dtype)}, at, dtype)
    return replace(data, blocks=tuple(len(shard) for shard in shards))


def _inline_row(pair: Sequence[Any], where: str, at: Origin) -> tuple[list[float], float]:
    form = ConfigError(at.key, f"{where}: write [features, target], as in [[1.0, 2.0], 3.0]; found {pair!r}")
    if not isinstance(pair, Sequence) or len(pair) != 2 or not isinstance(pair[0], Sequence):
        raise form
    numbers = [*pair[0], pair[1]]
    if not pair[0] or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise form
    return [float(n) for n in pair[0]], float(pair[1])


def _npz(path: Path, dtype: torch.dtype, key: str) -> DataSet:
    at = Origin(str(path), key)
    arrays = _read_npz(path, at)
    for name in ("x", "y"):
        if name not in arrays:
            raise at.fault(f"no array {name!r}; the file holds {', '.join(arrays) or 'none'}")
    wanted = {name: arrays[name] for name in ARRAYS if name in arrays}
    return assemble(wanted, at, dtype, finite=True)


def _read_npz(path: Path, at: Origin) -> dict[str, object]:
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
    at = Origin(spec, key)
    made = call_factory(load_factory(spec, key, folder), spec, key, folder=folder, dtype=dtype)
    if not isinstance(made, tuple | list) or len(made) not in (2, 4):
        found = f"{len(made)} values" if isinstance(made, tuple | list) else f"a {type(made).__name__}"
        raise at.fault(f"returns {found}; return (x, y) or (x, y, x_test, y_test)")
    arrays = {name: value for name, value in zip(ARRAYS, made, strict=False) if value is not None}
    return assemble(arrays, at, dtype, tokens=True)
