"""Sets of torchvision, downloaded where they are missing: by one process, while the others wait."""

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
from collections.abc import Callable, Iterator
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
from peer.task.dataset import DataSet, Origin, assemble

log = logging.getLogger(__name__)

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


def load_torchvision(name: str, dtype: torch.dtype, key: str) -> DataSet:
    """Return the set called so, from the folder that EARSHOT_DATA names, else ~/.cache/earshot.

    Raises ConfigError(key) where there is no such set, where it needs more than a folder, and where it can neither be
    found nor downloaded: it then says how to bring it here from a connected machine.
    """
    made_by = _torchvision_class(name, key)
    argument = _half_argument(made_by, name, key)
    values = (True, False) if argument == "train" else ("train", "test")
    root = Path(os.environ.get("EARSHOT_DATA") or "~/.cache/earshot").expanduser()

    def open_both(download: bool) -> list[Any]:
        with contextlib.redirect_stdout(sys.stderr):
            return [made_by(str(root), **{argument: value}, download=download) for value in values]

    at = Origin(f"torchvision:{name}", key)
    train, test = _fetch(open_both, name, root, at, f"{argument}=half", values)
    x, y = _images_and_labels(train, at)
    x_test, y_test = _images_and_labels(test, at)
    named = len(getattr(train, "classes", ())) or None
    return assemble({"x": x, "y": y, "x_test": x_test, "y_test": y_test}, at, dtype, classes=named)


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
    at: Origin,
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


def _open_present(open_both: Callable[[bool], list[Any]], root: Path, at: Origin) -> list[Any] | None:
    try:
        return open_both(False)
    except _DAMAGE_ERRORS as error:
        cause = f"{type(error).__name__}: {error}"
        raise at.fault(f"its files in {root} are damaged ({cause}); remove them and start again") from error
    except (RuntimeError, OSError):  # torchvision's ways to say that it is not there
        return None


def _download(open_both: Callable[[bool], list[Any]], failed: Path, root: Path, at: Origin, mend: str) -> list[Any]:
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


def _images_and_labels(half: Any, at: Origin) -> tuple[Tensor, object]:
    data = getattr(half, "data", None)
    labels = getattr(half, "targets", getattr(half, "labels", None))
    if labels is None or not isinstance(data, Tensor | np.ndarray) or not math.prod(data.shape):
        raise at.fault("does not keep images and labels in memory; write a factory that returns (x, y)")
    images = torch.as_tensor(data)
    if images.ndim == 3:
        return images[:, None], labels
    channels_last = images.ndim == 4 and images.shape[3] == 3 and images.shape[1] != 3
    return (images.permute(0, 3, 1, 2) if channels_last else images), labels
