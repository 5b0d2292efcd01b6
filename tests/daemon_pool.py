"""Runs experiments as daemons, one after the other, from one process that has imported torch once.

A program of its own, since a process that has threads must not fork: reads an experiment per line, as JSON, and
answers with its summary.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from peer.experiment import Experiment, from_dict
from peer.scripting import Document
from peer.ways import Options, up


class DaemonPool:
    """The other end: `up` runs an experiment in it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def up(self, experiment: Experiment) -> Document:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        tables: dict[str, Any] = experiment.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        self._process.stdin.write(json.dumps(tables) + "\n")
        self._process.stdin.flush()
        return Document(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    for line in sys.stdin:
        result = up(from_dict(json.loads(line), folder=Path.cwd()), Options(writes=False))
        print(json.dumps(result.summary), flush=True)


if __name__ == "__main__":
    main()
