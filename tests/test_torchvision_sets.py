"""Sets of torchvision, without a network: found, downloaded by one process, or refused with the way to bring them."""

import builtins
import multiprocessing
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peer.errors import ConfigError
from peer.task.data import load_data
from peer.task.dataset import DataSet


class Digits:
    """A stand-in for torchvision.datasets.MNIST, with a file in the place of a download."""

    classes = tuple("0123")

    def __init__(self, root: str, train: bool = True, transform: Any = None, download: bool = False) -> None:
        file = Path(root) / "digits.txt"
        if download and not file.exists():
            self.fetch(Path(root))
        if not file.exists():
            raise RuntimeError("Dataset not found. You can use download=True to download it")
        builtins.print("noise")
        count = 6 if train else 2
        self.data = torch.full((count, 5, 5), 255, dtype=torch.uint8)
        self.targets = torch.arange(count) % 3

    @staticmethod
    def fetch(root: Path) -> None:
        (root / "digits.txt").write_text("here")
        with (root / "downloads.log").open("a") as log:
            log.write("one\n")


class Offline(Digits):
    @staticmethod
    def fetch(root: Path) -> None:
        with (root / "tries.log").open("a") as log:
            log.write("one\n")
        raise OSError("<urlopen error [Errno -3]\nTemporary failure in name resolution>")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., DataSet]:
    """Load from a torchvision that has only the given classes, below tmp_path."""
    monkeypatch.setenv("EARSHOT_DATA", str(tmp_path / "cache"))

    def load(name: str, **sets: type) -> DataSet:
        module = types.ModuleType("torchvision.datasets")
        vars(module).update(sets)
        monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
        monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
        return load_data(f"torchvision:{name}", folder=tmp_path, dtype=torch.float32)

    return load


def test_torchvision_images(fake: Callable[..., DataSet], capsys: pytest.CaptureFixture[str]) -> None:
    data = fake("Digits", Digits=Digits)
    assert data.x.shape == (6, 1, 5, 5)
    assert float(data.x.max()) == 1.0
    assert data.classes == 4
    assert data.y_test is not None
    assert data.y_test.tolist() == [0, 1]
    assert capsys.readouterr().out == ""

    class Colour:
        def __init__(self, root: str, split: str = "train", download: bool = False) -> None:
            self.data = np.zeros((2, 32, 32, 3), dtype=np.uint8)
            self.labels = [0, 1]

    assert fake("Colour", Colour=Colour).x.shape == (2, 3, 32, 32)


def test_torchvision_offline_says_where_it_looked_and_what_to_do(fake: Callable[..., DataSet], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Temporary failure in name resolution") as caught:
        fake("Offline", Offline=Offline)
    for words in (
        str(tmp_path / "cache"),
        "EARSHOT_DATA",
        "torchvision.datasets.Offline(",
        "connected machine",
    ):
        assert words in caught.value.problem
    assert "\n" not in caught.value.problem
    assert socket.getdefaulttimeout() is None


def test_torchvision_for_real_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")

    def no_network(*_: Any, **__: Any) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setenv("EARSHOT_DATA", str(tmp_path))

    def load(name: str) -> DataSet:
        return load_data(f"torchvision:{name}", folder=tmp_path, dtype=torch.float32)

    with pytest.raises(ConfigError, match=r"the download failed.*no network in tests"):
        load("MNIST")
    with pytest.raises(ConfigError, match="did you mean CIFAR10"):
        load("CIFAR")
    with pytest.raises(ConfigError, match="needs split; write a factory"):
        load("EMNIST")
    with pytest.raises(ConfigError, match="write a factory"):
        load("FakeData")
    raw = tmp_path / "MNIST" / "raw"
    for half in ("train", "t10k"):
        for rest in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            (raw / f"{half}-{rest}").write_bytes(b"\x00\x00")
    with pytest.raises(ConfigError, match="damaged"):
        load("MNIST")
    for half, count in (("train", 3), ("t10k", 2)):
        sizes = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
        (raw / f"{half}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + sizes + b"\xff" * count * 784)
        (raw / f"{half}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + sizes[:4] + bytes(range(count)))
    data = load("MNIST")
    assert data.x.shape == (3, 1, 28, 28)
    assert data.y.tolist() == [0, 1, 2]
    assert data.classes == 10


def test_torchvision_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.datasets", raising=False)
    with pytest.raises(ConfigError, match=r'pip install "earshot-train\[torchvision\]"'):
        load_data("torchvision:MNIST", folder=tmp_path, dtype=torch.float32)


def test_torchvision_folder_that_cannot_be_made(
    fake: Callable[..., DataSet], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EARSHOT_DATA", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="cannot be written"):
        fake("Digits", Digits=Digits)


def _load_in_a_process(cache: str, kind: str, start: Any, results: Any) -> None:
    import os

    os.environ["EARSHOT_DATA"] = cache
    module = types.ModuleType("torchvision.datasets")
    vars(module).update(Set=Digits if kind == "online" else Offline)
    sys.modules["torchvision"], sys.modules["torchvision.datasets"] = types.ModuleType("torchvision"), module
    start.wait()
    try:
        results.put(len(load_data("torchvision:Set", folder=Path(), dtype=torch.float32).x))
    except ConfigError as error:
        results.put(error.problem)


def test_one_process_downloads_and_the_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(4), context.Queue()
    arguments = (str(tmp_path / "cache"), "online", start, results)
    peers = [context.Process(target=_load_in_a_process, args=arguments) for _ in range(4)]
    for process in peers:
        process.start()
    assert [results.get(timeout=15) for _ in peers] == [6, 6, 6, 6]
    for process in peers:
        process.join(timeout=15)
    assert (tmp_path / "cache" / "downloads.log").read_text() == "one\n"


def test_who_waited_for_a_failed_download_does_not_try_again(
    fake: Callable[..., DataSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process fails between our look at its mark and our turn with the lock."""
    marks = iter(["", "it failed meanwhile"])
    monkeypatch.setattr("peer.task.torchvision_sets._read", lambda path: next(marks))
    with pytest.raises(ConfigError, match="another process could not download it"):
        fake("Offline", Offline=Offline)
    assert not (tmp_path / "cache" / "tries.log").exists()
