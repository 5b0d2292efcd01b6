"""Checkpoints: a state on disk, there whole or not at all, whenever the process or the machine dies.

    FOLDER/00000012/state.safetensors    the tensors
                    manifest.json        their size in bytes and SHA-256, the format, and the facts beside them

A checkpoint is written as `.00000012.partial`, brought to the disk, and renamed; only then may earlier ones go, which
are renamed to `.00000009.old` first. So a name without a dot is of a whole one, until the disk damages it. What is left
of a death in between, the next `save` removes. One process at a time saves to a folder; nothing else there is touched.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load as unpack
from safetensors.torch import save as pack
from torch import Tensor

from peer.errors import ConfigError, TrainingError

FORMAT = 1
STATE, MANIFEST = "state.safetensors", "manifest.json"

_NAME = re.compile(r"(\d{8,})")
_PARTIAL = re.compile(r"\.(\d{8,})\.partial")
_OLD = re.compile(r"\.(\d{8,})\.old")


@dataclass(frozen=True)
class Saved:
    """One checkpoint, read and found whole. `damaged` says of each newer one, in a line, what is wrong with it."""

    number: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    damaged: tuple[str, ...] = ()


def save(folder: Path, number: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], keep: int) -> Path:
    """Write a checkpoint of this number, from 0 on, and remove all but the newest `keep`; returns its folder.

    An earlier one of the same number is replaced. The one just written is never removed. Of the facts, what JSON makes
    of them will be read: keys are text, tuples become lists; NaN is refused by ValueError. Raises TrainingError where
    the disk is full or cannot be written to; then the newest saved before is still there, or this one is.
    """
    assert number >= 0, number
    assert keep >= 1, keep
    state = pack({name: _apart(tensor) for name, tensor in tensors.items()})
    digest = sha256(state).hexdigest()
    manifest = {"format": FORMAT, "number": number, "size_bytes": len(state), "sha256": digest, "facts": dict(facts)}
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    try:
        _make(folder)
        _remove(folder, _PARTIAL)
        path = _publish(folder, _write(folder, number, {STATE: state, MANIFEST: text}))
        _retire(folder, keep, number)
    except OSError as error:
        raise TrainingError(f"{folder}: checkpoint {number} cannot be saved: {error.strerror or error}") from error
    return path


def load_latest(folder: Path) -> Saved | None:
    """Return the newest checkpoint that is whole, None where there is none at all.

    Raises ConfigError where there are checkpoints and none is whole, or the folder cannot be looked into.
    """
    try:
        found = [*_found(folder, _NAME), *_found(folder, _OLD)]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError("", f"{folder}: no place for checkpoints: {error.strerror or error}") from error
    damaged: list[str] = []
    for number, path in sorted(
        found, key=lambda item: (item[0], item[1].name), reverse=True
    ):  # of two the one without a dot
        try:
            return replace(_read(path, number), damaged=tuple(damaged))
        except _DamagedError as error:
            damaged.append(f"{path.name}: {error}")
    if damaged:
        raise ConfigError("", f"{folder}: no checkpoint is whole; {'; '.join(damaged)}")
    return None


# ---- Writing


def _apart(tensor: Tensor) -> Tensor:
    # the format takes neither views of other tensors nor two names for one memory
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _to_disk(folder.parent)


def _write(folder: Path, number: int, files: Mapping[str, bytes]) -> Path:
    """Write the files of a checkpoint, and bring them to the disk; returns where they are until they are published."""
    partial = folder / f".{number:08d}.partial"
    partial.mkdir()
    try:
        for name, data in files.items():
            with open(partial / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _to_disk(partial)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk has better use for it
        raise
    return partial


def _publish(folder: Path, partial: Path) -> Path:
    """Give a checkpoint its name, by which it is there for `load_latest`."""
    path = folder / partial.name.removeprefix(".").removesuffix(".partial")
    if path.exists():
        _set_aside(path)
    partial.rename(path)
    _to_disk(folder)
    return path


def _retire(folder: Path, keep: int, written: int) -> None:
    """Remove what is older than the `keep` newest, or was replaced."""
    for number, path in sorted(_found(folder, _NAME))[:-keep]:
        if number != written:
            _set_aside(path)
    _remove(folder, _OLD)


def _set_aside(path: Path) -> None:
    """Take a checkpoint's name away, at once; its files are removed later, one by one."""
    old = path.with_name(f".{path.name}.old")
    if old.exists():
        shutil.rmtree(old)
    path.rename(old)


def _remove(folder: Path, pattern: re.Pattern[str]) -> None:
    for _, path in _found(folder, pattern):
        shutil.rmtree(path)


def _to_disk(folder: Path) -> None:
    """Bring to the disk which names are in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- Reading


class _DamagedError(Exception):
    """What is wrong with a checkpoint, in a few words."""


def _found(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Return the numbers and places of the folders that are named like this."""
    with os.scandir(folder) as entries:
        named = [(pattern.fullmatch(entry.name), entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [(int(match[1]), folder / entry.name) for match, entry in named if match]


def _read(path: Path, number: int) -> Saved:
    try:
        manifest, state = _manifest((path / MANIFEST).read_bytes()), (path / STATE).read_bytes()
    except OSError as error:
        raise _DamagedError(f"{Path(error.filename or path).name} cannot be read: {error.strerror or error}") from error
    if manifest["number"] != number:
        raise _DamagedError(f"{MANIFEST} is of checkpoint {manifest['number']}")
    if len(state) != manifest["size_bytes"]:
        raise _DamagedError(f"{STATE} has {len(state)} bytes instead of {manifest['size_bytes']}")
    if sha256(state).hexdigest() != manifest["sha256"]:
        raise _DamagedError(f"{STATE} has another SHA-256 than {MANIFEST} says")
    try:
        tensors = unpack(state)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise _DamagedError(f"{STATE} is no file of tensors: {error}") from error
    # memory of torch's own is aligned as it always is: sums of a run that goes on are those of one that never stopped
    return Saved(number, {name: tensor.clone() for name, tensor in tensors.items()}, manifest["facts"])


def _manifest(text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise _DamagedError(f"{MANIFEST} is no JSON: {error}") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise _DamagedError(f"{MANIFEST} does not say which format it has")
    if manifest["format"] != FORMAT:
        raise _DamagedError(f"it has format {manifest['format']}, and here {FORMAT} is read")
    kinds = {"number": int, "size_bytes": int, "sha256": str, "facts": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(manifest.get(key), kind)]
    if wrong:
        raise _DamagedError(f"{MANIFEST} lacks {', '.join(wrong)}")
    return manifest
