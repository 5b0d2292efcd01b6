"""The command line in this process, in a folder of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from peer import cli
from tests.commands import Command, Outcome, Write

# No test depends on how fast the machine is; a failure prints what replays it.
settings.register_profile(
    "earshot", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("earshot")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def command(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """`earshot ARGUMENTS` in this process, in the folder `here`."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    threads, path = torch.get_num_threads(), list(sys.path)

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["earshot", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), said.out, said.err)

    yield run
    torch.set_num_threads(threads)
    sys.path[:] = path


@pytest.fixture
def write(here: Path) -> Write:
    """Write a file into `here`: text, and further lines; returns its path."""

    def write(text: str, name: str = "exp.toml") -> Path:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write
