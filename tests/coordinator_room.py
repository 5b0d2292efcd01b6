"""Coordinators and workers as real daemons for tests: their experiments, and the machines of `start` by name."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.forked import Forked, forked
from tests.processes import free_ports

LINEAR = """
rounds = {rounds}
eval_every = {eval_every}
[task]
model = "linear"
data = "inline"
init = [1.5, -0.5, 0.25]
batch_size = 1
lr = 0.01
dtype = "float64"
shards = [
    [[[1.0, 0.0, 0.5], 3.0], [[0.5, 1.0, 0.0], 1.0]],
    [[[2.0, 0.3, 0.1], 5.0], [[0.1, 0.7, 0.2], 2.0]],
    [[[1.5, 0.2, 0.9], 7.0]],
    [[[0.4, 1.1, 0.3], 9.0], [[0.2, 0.1, 1.3], 4.0], [[0.6, 0.6, 0.6], 1.0]],
]
[record]
params = "final"
[transport]
dead_s = 2.0
suspect_s = 1.5
{transport}
[coordinator]
{coordinator}
{more}
"""
MODES = {
    "sync": 'mode = "sync"',
    "models": 'mode = "sync"\naggregate = "models"',
    "adam": 'mode = "sync"\nserver_optimizer = "adam"',
    "fraction": 'mode = "sync"\nfraction = 0.5',
    "two servers": 'mode = "sync"\nservers = 2',
    "quorum": 'mode = "quorum"\nquorum = 0.75',
    "async": 'mode = "async"',
    "round robin": 'mode = "async"\narrival = "round_robin"',
    "buffered": 'mode = "buffered"\nbuffer = 2',
    "easgd": 'mode = "sync"\n[algorithm]\nname = "easgd"',
}
EXACT = ("sync", "models", "adam", "fraction", "two servers", "easgd")
"""Modes whose result does not depend on what arrives when."""


def write(
    folder: Path, which: str = "sync", *, rounds: int = 60, eval_every: int = 10, more: str = "", transport: str = ""
) -> str:
    text = LINEAR.format(rounds=rounds, eval_every=eval_every, coordinator=MODES[which], more=more, transport=transport)
    (folder / "exp.toml").write_text(text)
    return "exp.toml"


def among(folder: Path, which: str = "sync", *, coordinators: tuple[str, ...] = ("coordinator",), **keys: Any) -> str:
    """Write an experiment of machines with addresses of their own."""
    names = [*(f"peer-{i}" for i in range(4)), *coordinators]
    entries = [
        f'[[peers]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
        for name, port in zip(names, free_ports(len(names)), strict=True)
    ]
    return write(folder, which, more="".join(entries), **keys)


def uninterrupted(folder: Path, *sets: str) -> dict[str, Any]:
    with forked("simulate", "exp.toml", "--engine", "events", "--json", "--no-folder", *sets, cwd=folder) as run:
        code, summary = run.end()
    assert code == 0
    return summary


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Lab:
    """The daemons of `start`, by name, in one folder."""

    def __init__(self, stack: ExitStack, folder: Path, exp: str = "exp.toml") -> None:
        self.stack, self.folder, self.exp = stack, folder, exp
        self.daemons: dict[str, Forked] = {}

    def start(self, *names: str, more: tuple[str, ...] = ("--no-folder",)) -> None:
        for name in names:
            daemon = forked("start", self.exp, "--name", name, "--json", *more, cwd=self.folder)
            self.daemons[name] = self.stack.enter_context(daemon)

    def workers(self) -> None:
        self.start("peer-0", "peer-1", "peer-2", "peer-3")

    def ends(self, *names: str) -> list[tuple[int | None, dict[str, Any]]]:
        return [self.daemons[name].end() for name in names or self.daemons]
