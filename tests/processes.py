"""Real `earshot` processes for tests: started, read line by line, and never left behind."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

PATIENCE_S = 90


class Earshot:
    """One running command. `said` holds the lines of stderr so far."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "peer", *arguments],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []

    def read_until(self, words: str) -> str:
        """Read stderr up to the first line with these words, and return it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if words in line:
                return line
        raise AssertionError(f"ended without saying {words!r}; it said:\n" + "\n".join(self.said))

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return the exit code and the document on stdout."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        self.said += err.splitlines()
        return self.process.returncode, json.loads(out) if out else {}

    def children(self) -> list[int]:
        """Return the process ids of its children."""
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in listed.stdout.split()]


@contextmanager
def earshot(*arguments: str, cwd: Path) -> Iterator[Earshot]:
    """Start a command; whatever happens, it and its children are gone afterwards."""
    running = Earshot(*arguments, cwd=cwd)
    try:
        yield running
    finally:
        for pid in [*running.children(), running.process.pid]:
            if running.process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        running.process.wait()
        for stream in (running.process.stdout, running.process.stderr):
            assert stream is not None
            stream.close()


def free_ports(count: int) -> list[int]:
    """Return ports that the system says are free now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def ends(pid: int) -> bool:
    """Wait for a process that is no child of ours to end; returns whether it did in time."""
    if not hasattr(os, "pidfd_open"):  # outside Linux: ask again and again
        until_s = monotonic() + PATIENCE_S
        while exists(pid) and monotonic() < until_s:
            pass
        return not exists(pid)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE_S)[0])
    finally:
        os.close(descriptor)


def exists(pid: int) -> bool:
    """Say whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
