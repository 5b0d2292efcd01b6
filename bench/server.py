"""How long a synchronous round of a parameter server takes: 2 workers, 2.5 million float32 parameters (10 MB).

    earshot         `earshot up`, coordinator.mode = "sync": the server and each worker a process, tcp on the loopback
    earshot_saving  the same with a run folder, as it is by default: each version is on the disk before it is given
    flwr_grpc       Flower's start_server and start_client, one gRPC stream for each worker. Deprecated, and its fastest
    flwr_superlink  Flower as it is recommended: a SuperLink and two SuperNodes, which ask for news every 3 s
    gloo            torch.distributed: broadcast from the root, reduce to the root; three processes

In each round a worker gets the parameters, changes every number by 1, and gives them back; the server takes the mean.
That they did is checked: after r rounds all numbers are r. Flower runs in an environment of its own, which the first
run makes beside this file.

JSON lines: one for each side and repeat, interleaved; then the medians; then how many times as long as ours the round
of each rival takes, in the same repeat: median, least and most of these ratios, beside what is aimed at.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

HOUSE = Path(__file__).parents[1]
RIVALS = Path(__file__).with_name("rivals")
ENVIRONMENTS = Path(__file__).with_name(".environments")
FLWR = "flwr==1.42.0"
"""Fixed: the start of a run has another form in every few releases."""

WORKERS = 2
PARAMETERS = 2_500_000
PATIENCE_S = 120.0
LOOK_S = 0.05

ROUNDS = {"earshot": 30, "earshot_saving": 30, "flwr_grpc": 30, "flwr_superlink": 3, "gloo": 30}
AIMS = {"flwr_grpc": 8.0, "flwr_superlink": 8.0, "gloo": 1.2}
"""How many times as long as ours the round of a rival should take, at least."""

SUPERLINK_REPEATS = 2
"""At most: with start and end it takes half a minute, and its rounds last as long as it waits before it asks again."""

TASK = """
import torch
from torch import nn


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros({parameters}))

    def forward(self, x):
        return -self.weight.sum()


def model():
    return Flat(), lambda output, targets: output


def rows():
    return torch.zeros({workers}, 1), torch.zeros({workers}), torch.zeros(1, 1), torch.zeros(1)
"""
"""The gradient is -1 everywhere, and the learning rate 1. The loss is minus the sum of all numbers."""

EXPERIMENT = """
name = "server"
rounds = {rounds}
eval_every = 1_000_000
[task]
model = "flat:model"
data = "flat:rows"
batch_size = 0
lr = 1.0
[topology]
peers = {workers}
[coordinator]
mode = "sync"
aggregate = "models"
[transport]
plane = "tcp"
"""


# ---- The sides: each returns the mean seconds of a round


def earshot_saving_s(rounds: int, folder: Path) -> float:
    """Measure `earshot up` with a run folder."""
    return earshot_s(rounds, folder, "--out=run")


def earshot_s(rounds: int, folder: Path, where: str = "--no-folder") -> float:
    """Measure `earshot up`. The first round counts, evaluations do not."""
    (folder / "flat.py").write_text(TASK.format(parameters=PARAMETERS, workers=WORKERS))
    (folder / "run.toml").write_text(EXPERIMENT.format(rounds=rounds, workers=WORKERS))
    command = [sys.executable, "-P", "-m", "peer", "up", "run.toml", "--json", where, "--quiet"]
    with running(command, folder, {"PYTHONPATH": str(HOUSE)}) as process:
        summary = json.loads(output_of(process))
    if (summary["outcome"], summary["rounds"]) != ("finished", rounds):
        raise SystemExit(f"earshot up: {summary['outcome']} after {summary['rounds']} rounds")
    check("earshot", -summary["loss"]["mean"] / PARAMETERS, rounds)
    return float(summary["rounds_seconds"]) / rounds


def gloo_s(rounds: int, folder: Path) -> float:
    """Measure torch.distributed. The first round, in which connections are made, is left out."""
    [port] = free_ports(1)
    command = [sys.executable, str(RIVALS / "gloo.py"), str(port), str(rounds), str(PARAMETERS), str(1 + WORKERS)]
    with ExitStack() as stack:
        everybody = [
            stack.enter_context(running([*command, str(rank)], folder, {"GLOO_SOCKET_IFNAME": "lo"}))
            for rank in range(1 + WORKERS)
        ]
        root, *_ = [output_of(process) for process in everybody]
    return later_rounds_s("gloo", root, rounds)


def flwr_grpc_s(rounds: int, folder: Path) -> float:
    """Measure Flower's gRPC server. The first round is left out."""
    python, more = flower(folder)
    [port] = free_ports(1)
    program, counts = str(RIVALS / "flwr_grpc.py"), [str(rounds), str(PARAMETERS), str(WORKERS)]
    with ExitStack() as stack:
        server = stack.enter_context(running([python, program, "server", str(port), *counts], folder, more))
        await_port(port, server)
        for _ in range(WORKERS):
            stack.enter_context(running([python, program, "client", str(port)], folder, more))
        return later_rounds_s("flwr_grpc", output_of(server), rounds)


def flwr_superlink_s(rounds: int, folder: Path) -> float:
    """Measure Flower's SuperLink. The first round is left out."""
    python, more = flower(folder)
    programs = Path(python).parent
    port, *own_ports = free_ports(1 + WORKERS)
    (folder / "config.toml").write_text(f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    shutil.copytree(RIVALS / "superlink", folder / "app")
    link = [str(programs / "flower-superlink"), "--insecure", "--port", str(port)]
    node = [str(programs / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
    settings = f"rounds={rounds} parameters={PARAMETERS} workers={WORKERS}"
    with ExitStack() as stack:
        link.append("--disable-runtime-dependency-installation")
        await_port(port, stack.enter_context(running(link, folder, more)))
        for own in own_ports:
            await_port(own, stack.enter_context(running([*node, "--port", str(own)], folder, more)))
        run = [str(programs / "flwr"), "run", "app", "bench", "--stream", "--run-config", settings]
        said = output_of(stack.enter_context(running(run, folder, more)))
    return later_rounds_s("flwr_superlink", said, rounds)


def flower(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the Python of Flower's environment, and what else its processes find in theirs."""
    python = environment("flwr", FLWR)
    path = f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return python, {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder), "PATH": path}


def later_rounds_s(side: str, said: str, rounds: int) -> float:
    """Return the mean over all rounds but the first, from what a rival printed: {"rounds_s": [...], "number": r}."""
    told = [line for line in said.splitlines() if line.startswith('{"rounds_s"')]
    if len(told) != 1:
        raise SystemExit(f"{side} has no result. It said:\n{said}")
    result = json.loads(told[0])
    check(side, result["number"], rounds)
    if len(result["rounds_s"]) != rounds:
        raise SystemExit(f"{side} did {len(result['rounds_s'])} rounds of {rounds}")
    return statistics.fmean(result["rounds_s"][1:])


def check(side: str, number: float, rounds: int) -> None:
    """End the benchmark unless the parameters are what so many rounds make of them."""
    if abs(number - rounds) > 1e-3:
        raise SystemExit(f"{side} has parameters of {number} after {rounds} rounds, not of {rounds}")


# ---- Environments and processes


def environment(name: str, requirement: str) -> str:
    """Return the Python of an environment of its own that has this requirement, made where it is not there yet."""
    folder = ENVIRONMENTS / name
    python, holds = folder / "bin" / "python", folder / "holds.txt"
    if not holds.exists() or holds.read_text() != requirement:
        print(f"installs {requirement}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", requirement], check=True, stdout=sys.stderr)
        holds.write_text(requirement)
    return str(python)


@contextmanager
def running(command: Sequence[str], folder: Path, more: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Start a process, with `more` in its environment; afterwards it is gone, and whatever it has started.

    What it says on stderr is in `folder`.
    """
    own = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    with (
        (folder / "stderr.txt").open("a") as stderr,
        subprocess.Popen(
            command, cwd=folder, env=own, text=True, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        except SystemExit:
            print((folder / "stderr.txt").read_text(), file=sys.stderr)
            raise
        finally:
            end_all_of(process)


def end_all_of(process: "subprocess.Popen[str]") -> None:
    """Kill what is left of the process and of those that it has started: all are in one session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def output_of(process: "subprocess.Popen[str]") -> str:
    """Wait for the end of a process, and return what it wrote to stdout."""
    try:
        said, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{process.args!r} takes longer than {PATIENCE_S} s") from None
    if process.returncode:
        raise SystemExit(f"{process.args!r} ended with exit code {process.returncode}. {said}")
    return said


def free_ports(count: int) -> list[int]:
    """Return ports that the system says are free now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def await_port(port: int, process: "subprocess.Popen[str]") -> None:
    """Wait until somebody listens there."""
    until_s = monotonic() + PATIENCE_S
    while monotonic() < until_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            sleep(LOOK_S)
        else:
            return
    raise SystemExit(f"{process.args!r} does not listen")


# ---- All together

SIDES: dict[str, Callable[[int, Path], float]] = {
    "earshot": earshot_s,
    "earshot_saving": earshot_saving_s,
    "flwr_grpc": flwr_grpc_s,
    "flwr_superlink": flwr_superlink_s,
    "gloo": gloo_s,
}


def spread(values: Sequence[float], digits: int) -> dict[str, float]:
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="all of them, if not said")
    options = parser.parse_args()
    if {"flwr_grpc", "flwr_superlink"} & set(options.sides):
        environment("flwr", FLWR)
    taken_s: dict[str, list[float]] = {side: [] for side in options.sides}
    for repeat in range(options.repeats):
        for side in options.sides:
            if side == "flwr_superlink" and repeat >= SUPERLINK_REPEATS:
                continue
            with tempfile.TemporaryDirectory() as folder:
                round_s = SIDES[side](ROUNDS[side], Path(folder))
            taken_s[side].append(round_s)
            print(json.dumps({"measured": side, "round_s": round(round_s, 5)}), flush=True)
    common = {"workers": WORKERS, "parameters": PARAMETERS}
    for side, values in taken_s.items():
        print(json.dumps({"round_s": side, **spread(values, 5), "repeats": len(values), **common}))
    for side in [side for side in AIMS if side in taken_s and "earshot" in taken_s]:
        ratios = [rival_s / our_s for rival_s, our_s in zip(taken_s[side], taken_s["earshot"], strict=False)]
        row = {"ratio": f"{side} / earshot", **spread(ratios, 2), "repeats": len(ratios), "aim": AIMS[side]}
        print(json.dumps({**row, "reached": statistics.median(ratios) >= AIMS[side]}))


if __name__ == "__main__":
    main()
