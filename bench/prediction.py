"""Prediction against reality: how long does a round take on slow lines, and how long did the simulator say it takes?

Four daemons of `earshot start` stand in a ring, and each pair talks through a proxy with a rate and a delay, which
change while the daemons go on. The model notes when each local step begins: so the same rounds tell how long the local
steps took and how long the whole rounds. From the steps, as a trace, and the proxy's figures the events engine and
`explain` say how long a round takes.

For most of a local step the model waits, as for an accelerator: four peers would otherwise wait for each other's share
of a few cores, which machines of their own do not.

JSON lines: one for each line and repeat, interleaved; then one for each condition with medians, of predicted to
measured, too. Ends with 1 where such a ratio is off by more than `TOLERANCE` on one of the lines in `JUDGED`.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from time import monotonic, sleep
from typing import Any

HOUSE = Path(__file__).parents[1]
TOLERANCE = 0.15
PEERS = 4
WARM_UP_ROUNDS, LEAST_ROUNDS = 1, 4
PATIENCE_S = 60.0
LOOK_S = 0.05

NOTES = "EARSHOT_BENCH_STEPS"
"""Environment variable: the file in which a daemon notes when its local steps begin. Without it nobody waits."""

TASK = """
import os
from time import monotonic, sleep

import torch
from torch import nn


class Paced(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        path = os.environ.get("{notes}")
        self.notes = open(path, "a", buffering=1) if path else None

    def forward(self, x):
        if self.training and self.notes is not None:
            self.notes.write(f"{{monotonic()}}\\n")
            sleep({wait_s})
        return self.net(x)


def model():
    return Paced({hidden})


def rows():
    draw = torch.Generator().manual_seed(0)
    return torch.rand(512, 784, generator=draw), torch.randint(10, (512,), generator=draw)
"""

EXPERIMENT = """
name = "prediction"
rounds = {rounds}
eval_every = {eval_every}
[task]
model = "paced:model"
data = "paced:rows"
batch_size = 16
local_steps = {local_steps}
lr = 0.001
[topology]
family = "ring"
peers = {peers}
"""


@dataclass(frozen=True)
class Line:
    """What the proxy makes of each connection, in each direction; 0 for no limit and no delay."""

    mbps: float = 0.0
    latency_ms: float = 0.0


@dataclass(frozen=True)
class Work:
    """What the peers do, and on which lines they do it. At least two local steps: one is timed by the next."""

    name: str
    hidden: int
    local_steps: int
    wait_s: float
    lines: tuple[Line, ...]

    def experiment(self, rounds: int, eval_every: int, more: str) -> str:
        return EXPERIMENT.format(rounds=rounds, eval_every=eval_every, local_steps=self.local_steps, peers=PEERS) + more

    def task(self) -> str:
        return TASK.format(notes=NOTES, wait_s=self.wait_s, hidden=self.hidden)


SLOW, FAST, LONG, FREE = Line(20, 10), Line(100, 10), Line(100, 100), Line()
JUDGED = (SLOW, FAST)
"""FREE shows what a round takes beside steps and lines; LONG, with more than one window of the stream, what waiting for
acknowledgements adds. The engine knows neither."""

WORKS = (
    Work("3.2 MB, short steps", 1000, 2, 0.03, (SLOW, FAST, FREE)),
    Work("3.2 MB, waits of 10 ms", 1000, 2, 0.01, (SLOW, FAST)),
    Work("0.3 MB, long steps", 100, 10, 0.03, (SLOW, FAST, FREE)),
    Work("8 MB, two windows of the stream", 2500, 2, 0.03, (FAST, LONG)),
)


@dataclass(frozen=True)
class Measured:
    """What some rounds of the daemons took; `steps_s[i]` are all local steps of peer i, one after another."""

    rounds: int
    round_s: float
    steps_s: tuple[tuple[float, ...], ...]


# ---- Reality


class Ring:
    """Four daemons that go on until they are stopped, and the proxy between them."""

    def __init__(self, work: Work, folder: Path, stack: ExitStack) -> None:
        self._work = work
        ports, fronts = free_ports(PEERS), free_ports(PEERS)
        pairs = [f"{front}:{port}" for front, port in zip(fronts, ports, strict=True)]
        piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        script = str(Path(__file__).with_name("proxy.py"))
        self._proxy = stack.enter_context(running([sys.executable, script, *pairs], folder, {}, piped))
        self._await_proxy()
        entries = [
            f'[[peers]]\nname = "peer-{i}"\naddress = "127.0.0.1:{port}"\nadvertise = "127.0.0.1:{front}"\n'
            for i, (port, front) in enumerate(zip(ports, fronts, strict=True))
        ]
        (folder / "paced.py").write_text(work.task())
        file = folder / "run.toml"
        file.write_text(work.experiment(0, 1_000_000, "".join(entries)))
        self._notes = [folder / f"steps-{i}" for i in range(PEERS)]
        start = [sys.executable, "-P", "-m", "peer", "start", str(file), "--quiet", "--no-folder"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self._daemons = [
            stack.enter_context(running([*start, "--name", f"peer-{i}"], folder, {NOTES: str(notes)}, quiet))
            for i, notes in enumerate(self._notes)
        ]
        self._await_round(WARM_UP_ROUNDS)

    def measure(self, line: Line, lasts_s: float) -> Measured:
        """Let the daemons go on over such a line for so long."""
        assert self._proxy.stdin is not None
        self._proxy.stdin.write(f"{line.mbps} {line.latency_ms}\n")
        self._proxy.stdin.flush()
        self._await_proxy()
        first = max(map(self._rounds_begun, self._begun_s())) + WARM_UP_ROUNDS
        self._await_round(first)
        until_s = monotonic() + lasts_s
        self._await_round(first + LEAST_ROUNDS)
        sleep(max(0.0, until_s - monotonic()))
        begun_s = self._begun_s()
        last = min(map(self._rounds_begun, begun_s)) - 1
        k = self._work.local_steps
        took_s = [times[last * k] - times[first * k] for times in begun_s]
        steps_s = tuple(
            tuple(step_s for r in range(first, last) for step_s in steps_of(times[r * k : (r + 1) * k]))
            for times in begun_s
        )
        return Measured(last - first, fmean(took_s) / (last - first), steps_s)

    def stop(self) -> None:
        for daemon in self._daemons:
            daemon.send_signal(signal.SIGINT)
        for daemon in self._daemons:
            daemon.communicate(timeout=PATIENCE_S)

    def _begun_s(self) -> list[list[float]]:
        """Return for each peer when its local steps began, on the clock that all processes share."""
        texts = [notes.read_text() if notes.exists() else "" for notes in self._notes]
        return [[float(line) for line in text[: text.rfind("\n") + 1].split()] for text in texts]

    def _rounds_begun(self, begun_s: list[float]) -> int:
        return -(-len(begun_s) // self._work.local_steps)

    def _await_round(self, round: int) -> None:
        """Wait until all have begun this round."""
        until_s = monotonic() + PATIENCE_S
        while min(map(self._rounds_begun, self._begun_s())) <= round:
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended or monotonic() > until_s:
                said = ended[0].stderr.read() if ended and ended[0].stderr else ""
                raise SystemExit(f"the daemons do not go on. {said}")
            sleep(LOOK_S)

    def _await_proxy(self) -> None:
        assert self._proxy.stdout is not None
        if self._proxy.stdout.readline() != "ready\n":
            raise SystemExit("the proxy has ended")


def steps_of(begun_s: list[float]) -> list[float]:
    """Return how long the local steps of a round took, from when each began; the last took the mean of the others."""
    known_s = [after_s - before_s for before_s, after_s in pairwise(begun_s)]
    return [*known_s, fmean(known_s)]


def free_ports(count: int) -> list[int]:
    """Return ports that the system says are free now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


@contextmanager
def running(
    command: list[str], folder: Path, more: dict[str, str], streams: dict[str, int]
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process; whatever happens, it is gone afterwards. `more` is added to its environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOUSE), **more}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


# ---- Prediction


def predicted_s(work: Work, line: Line, measured: Measured, folder: Path) -> tuple[float, float]:
    """Return the seconds of a round by the events engine and by `explain`, for the local steps that were measured."""
    from peer import explain, load, simulate

    steps = [f"peer-{i},{step_s}\n" for i, steps_s in enumerate(measured.steps_s) for step_s in steps_s]
    (folder / "steps.csv").write_text("peer,step_s\n" + "".join(steps))
    figures = f'[network]\nbandwidth_mbps = {line.mbps}\nlatency_ms = {line.latency_ms}\n[speed]\nfile = "steps.csv"\n'
    half = measured.rounds // 2
    (folder / "predicted.toml").write_text(work.experiment(2 * half, half, figures))
    experiment = load(folder / "predicted.toml")
    _, middle, end = simulate(experiment, engine="events").history
    return (end.simulated_seconds - middle.simulated_seconds) / half, explain(experiment).seconds_per_round


# ---- The two together


def compared(work: Work, line: Line, measured: Measured, folder: Path) -> dict[str, float]:
    engine_s, explain_s = predicted_s(work, line, measured, folder)
    return {
        "steps_s": fmean(map(fmean, measured.steps_s)) * work.local_steps,
        "predicted_by_engine_s": engine_s,
        "predicted_by_explain_s": explain_s,
        "measured_s": measured.round_s,
        "unexplained_s": measured.round_s - engine_s,
        "engine_to_measured": engine_s / measured.round_s,
        "explain_to_measured": explain_s / measured.round_s,
    }


def say(row: dict[str, Any]) -> None:
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, at least")
    parser.add_argument("--only", default="", help="the works with this in their name")
    options = parser.parse_args()
    sys.path.insert(0, str(HOUSE))
    found: dict[tuple[Work, Line], list[dict[str, float]]] = {}
    for work in (work for work in WORKS if options.only in work.name):
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            ring = Ring(work, Path(name), stack)
            taken: list[tuple[Line, Measured, float]] = []
            for line in work.lines * options.repeats:
                taken.append((line, ring.measure(line, options.seconds), os.getloadavg()[0]))
            ring.stop()
            for line, measured, load in taken:
                row = compared(work, line, measured, Path(name))
                found.setdefault((work, line), []).append(row)
                say({"work": work.name, **vars(line), "rounds": measured.rounds, **row, "load": load})
    worst = 0.0
    for (work, line), rows in found.items():
        middle = {key: median(row[key] for row in rows) for key in rows[0]}
        ends = [f(row["engine_to_measured"] for row in rows) for f in (min, max)]
        say({"condition": work.name, **vars(line), **middle, "least": ends[0], "most": ends[1]})
        if line in JUDGED:
            worst = max(worst, abs(middle["engine_to_measured"] - 1), abs(middle["explain_to_measured"] - 1))
    raise SystemExit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
