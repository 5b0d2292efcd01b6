"""`earshot` commands as processes forked from one that has imported torch already: real ones, and there at once."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.processes import PATIENCE_S

PRELOADED = ["peer.ways", "peer.cli", "peer.screen", "peer.tables", "peer.stopping", "peer.task.models"]


class Forked:
    """One running command. `said` holds the lines of stderr so far."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        context: ForkServerContext = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        err, err_end = os.pipe()
        self._err = os.fdopen(err, "rb", buffering=0)
        self._out = TemporaryFile("w+")  # noqa: SIM115 - closed below; a pipe would hold it up until somebody reads
        self._unread = b""
        self.said: list[str] = []
        self.process = context.Process(target=_Command(arguments, cwd, self._out.fileno(), err_end))
        try:
            self.process.start()
        finally:
            os.close(err_end)

    def read_until(self, words: str) -> str:
        """Read stderr up to the first line with these words, and return it."""
        for line in self._lines():
            if words in line:
                return line
        raise AssertionError(f"ended without saying {words!r}; it said:\n" + "\n".join(self.said))

    def end(self) -> tuple[int | None, dict[str, Any]]:
        """Wait for the end; return the exit code and the document on stdout."""
        code, out = self.end_as_text()
        return code, json.loads(out) if out else {}

    def end_as_text(self) -> tuple[int | None, str]:
        """Wait for the end; return the exit code and what stands on stdout."""
        for _ in self._lines():
            pass
        self.process.join(PATIENCE_S)
        self._out.seek(0)
        return self.process.exitcode, self._out.read()

    def _lines(self) -> Iterator[str]:
        """Yield what it says on stderr, line by line, to the end of it."""
        while True:
            line, end, rest = self._unread.partition(b"\n")
            if end:
                self._unread = rest
                self.said.append(line.decode())
                yield self.said[-1]
                continue
            if not select.select([self._err], [], [], PATIENCE_S)[0]:
                raise AssertionError(f"silent for {PATIENCE_S} s; it said:\n" + "\n".join(self.said))
            more = self._err.read(65536)
            if not more:
                return
            self._unread += more

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def children(self) -> list[int]:
        """Return the process ids of its children."""
        return children_of(self.process.pid)

    def close(self) -> None:
        for pid in self.children() if self.process.is_alive() else ():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self._out.close()
        self._err.close()


class _Command:
    """What the new process does; where it writes to comes along when it is handed over."""

    def __init__(self, arguments: tuple[str, ...], cwd: Path, out: int, err: int) -> None:
        self.arguments, self.cwd = arguments, cwd
        self.out, self.err = out, err

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "out": DupFd(self.out), "err": DupFd(self.err)}

    def __call__(self) -> None:
        for end, number in ((self.out, 1), (self.err, 2)):
            descriptor = end.detach()  # type: ignore[attr-defined]
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 - they are for the whole life
        os.chdir(self.cwd)
        sys.argv = ["earshot", *self.arguments]
        from peer.cli import main

        main()


def children_of(pid: int | None) -> list[int]:
    """Return the process ids of a process's children."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in listed.stdout.split()]


@contextmanager
def forked(*arguments: str, cwd: Path) -> Iterator[Forked]:
    """Start a command; whatever happens, it is gone afterwards."""
    running = Forked(*arguments, cwd=cwd)
    try:
        yield running
    finally:
        running.close()
