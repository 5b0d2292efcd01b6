"""Round trips between real daemons: who is near gossips, who is far does not, and the simulator computes the same."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from threading import Thread
from time import monotonic
from typing import Any

from peer.experiment import from_dict, load
from peer.scripting import simulate
from tests.processes import earshot, free_ports

EXPERIMENT = """
seed = 3
rounds = 8
eval_every = 4
[task]
model = "softmax"
partition = "dirichlet"
[topology]
metric = "rtt"
threshold = {threshold}
{topology}
[record]
params = "final"
"""

SAME = (
    "params",
    "accuracy",
    "loss",
    "payload_bytes_sent",
    "gradients",
    "short_rounds",
    "lost",
    "consensus_distance",
    "outcome",
)


def write(folder: Path, threshold: float, topology: str = "", more: str = "") -> str:
    text = EXPERIMENT.format(threshold=threshold, topology=topology) + more
    (folder / "exp.toml").write_text(text, encoding="utf-8")
    return "exp.toml"


def simulated(folder: Path, **topology: Any) -> dict[str, Any]:
    """Return what the events engine makes of the same experiment with these changes."""
    tables = load(folder / "exp.toml").model_dump(exclude_defaults=True)
    return simulate(from_dict({**tables, **topology}, folder=folder), engine="events").as_dict()


# ---- up


def test_within_a_large_threshold_all_candidates_are_neighbours(tmp_path: Path) -> None:
    """The parameters are those of the graph's own edges, bit for bit."""
    exp = write(tmp_path, 60_000, 'family = "smallworld"\nk = 2\np = 0.3\npeers = 6\nweights = "lazy"')
    graph = {**load(tmp_path / exp).topology.model_dump(exclude_none=True), "metric": "hops", "threshold": 1.0}
    with earshot("up", exp, "--json", "--no-folder", cwd=tmp_path) as up:
        code, found = up.end()
    expected = simulated(tmp_path, topology=graph)
    assert code == 0
    assert {key: found[key] for key in SAME} == {key: expected[key] for key in SAME}
    assert found["payload_bytes_sent"] > 0
    assert not any("answer" in line for line in up.said)


def test_within_a_tiny_threshold_everybody_trains_alone_and_says_so(tmp_path: Path) -> None:
    """No round trip takes less than a ten-millionth of a second. This is no failure: it comes to what "local" does."""
    exp = write(tmp_path, 0.0001, 'family = "complete"\npeers = 3')
    with earshot("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        code, found = up.end()
    expected = simulated(tmp_path, topology={"peers": 3}, algorithm={"name": "local"})
    assert code == 0
    assert {key: found[key] for key in SAME} == {key: expected[key] for key in SAME}
    assert found["payload_bytes_sent"] == 0
    assert found["wire_bytes_sent"] > 0
    for name in ("peer-0", "peer-1", "peer-2"):
        said = [line for line in up.said if line.startswith(f"{name}: ")]
        assert len(said) == 1
        assert "nobody answers within 0.0001 ms, the nearest takes" in said[0]
        assert said[0].endswith("it trains alone")
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert sorted(event["peer"] for event in events if event["event"] == "alert") == ["peer-0", "peer-1", "peer-2"]
    assert not any(event["event"] == "lost" for event in events)


# ---- start


def peers(ports: list[int], advertised: dict[int, int] | None = None) -> str:
    """Return [[peers]] lab-1, lab-2 and so on; some of them are dialled at another port than they listen on."""
    entries = []
    for i, port in enumerate(ports):
        entries.append(f'[[peers]]\nname = "lab-{i + 1}"\naddress = "127.0.0.1:{port}"\n')
        if advertised and i in advertised:
            entries.append(f'advertise = "127.0.0.1:{advertised[i]}"\n')
    return "".join(entries)


def test_a_death_and_an_interruption_while_a_third_is_awaited(tmp_path: Path) -> None:
    """lab-2 never comes, so that the survey never ends; lab-3 dials lab-1, and knows at once when that is dead."""
    exp = write(tmp_path, 60_000, 'family = "complete"', peers(free_ports(3)))
    with (
        earshot("start", exp, "--name", "lab-1", "--no-folder", cwd=tmp_path) as first,
        earshot("start", exp, "--name", "lab-3", "--json", "--out", "run", cwd=tmp_path) as third,
    ):
        assert "until" in third.read_until("round 0: waits for lab-")
        third.read_until("round 0: waits for lab-2 since")  # lab-1 is there
        first.process.kill()
        third.read_until("lab-1 is lost")
        third.process.send_signal(signal.SIGINT)
        code, summary = third.end()
    assert code == 130
    assert [summary[key] for key in ("outcome", "rounds", "lost", "gradients")] == ["interrupted", 0, ["lab-1"], 0]


FAR_S = 0.2
"""One way through the proxy. A round trip there never takes less than twice that, and on the loopback far less."""

NEAR_MS = 390


class FarAway:
    """Forwards what comes in at its port to another one, and back, each way `FAR_S` later, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._bell, self._rope = socket.socketpair()
        self._selector = DefaultSelector()
        self._other_end: dict[socket.socket, socket.socket] = {}
        self._under_way: list[tuple[float, int, socket.socket, bytes]] = []
        self._ties = count()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "FarAway":
        self._selector.register(self._listener, EVENT_READ)
        self._selector.register(self._bell, EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._rope.close()
        self._thread.join()
        for end in [self._listener, self._bell, *self._other_end]:
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            due_s = self._under_way[0][0] if self._under_way else None
            for key, _ in self._selector.select(None if due_s is None else max(0.0, due_s - monotonic())):
                if key.fileobj is self._bell:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._take(key.fileobj)
            while self._under_way and self._under_way[0][0] <= monotonic():
                self._give(*heappop(self._under_way)[2:])

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._to)
        except ConnectionRefusedError:  # nobody is there yet: the caller tries again
            near.close()
            return
        for end, other in ((near, far), (far, near)):
            self._other_end[end] = other
            self._selector.register(end, EVENT_READ)

    def _take(self, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        heappush(self._under_way, (monotonic() + FAR_S, next(self._ties), self._other_end[end], data))
        if not data:
            self._selector.unregister(end)

    def _give(self, end: socket.socket, data: bytes) -> None:
        try:
            if data:
                end.sendall(data)
            else:
                end.shutdown(socket.SHUT_WR)
        except OSError:  # it has gone in the meantime
            return


@contextmanager
def three_labs(folder: Path) -> Iterator[str]:
    """Write an experiment of three machines of which lab-1 is far from the others; the simulator is told the same."""
    ports = free_ports(3)
    with FarAway(ports[0]) as proxy:
        (folder / "links.csv").write_text(
            f"from,to,latency_ms\nlab-1,lab-2,{1000 * FAR_S}\nlab-1,lab-3,{1000 * FAR_S}\nlab-2,lab-3,0.1\n"
        )
        topology = 'family = "complete"\nallow_disconnected = true\n[network]\nfile = "links.csv"'
        yield write(folder, NEAR_MS, topology, peers(ports, {0: proxy.port}))


def test_one_of_three_is_far_and_the_simulator_says_the_same(tmp_path: Path) -> None:
    with three_labs(tmp_path) as exp:
        expected = simulated(tmp_path)
        assert expected["params"][1] == expected["params"][2] != expected["params"][0]
        with (
            earshot("start", exp, "--name", "lab-1", "--json", "--no-folder", cwd=tmp_path) as first,
            earshot("start", exp, "--name", "lab-2", "--json", "--no-folder", cwd=tmp_path) as second,
            earshot("start", exp, "--name", "lab-3", "--json", "--no-folder", cwd=tmp_path) as third,
        ):
            labs = (first, second, third)
            ends = [daemon.end() for daemon in labs]
    for i, (code, summary) in enumerate(ends):
        assert code == 0
        assert [summary[key] for key in ("outcome", "rounds", "lost", "short_rounds")] == ["finished", 8, [], 0]
        assert summary["params"] == [expected["params"][i]]
    alone, *pair = (summary for _, summary in ends)
    assert alone["neighbour_distance"] is None
    assert alone["payload_bytes_sent"] == 0
    assert all(summary["neighbour_distance"] > 0 and summary["payload_bytes_sent"] > 0 for summary in pair)
    nobody = r"lab-1: nobody answers within 390 ms, the nearest takes (\d+) ms: it trains alone"
    one = r"lab-\d: 1 of 2 answer within 390 ms and are its neighbours, the others take (\d+) ms or more"
    for daemon, words in zip(labs, (nobody, one, one), strict=True):
        round_trips_ms = [int(said[1]) for line in daemon.said if (said := re.fullmatch(words, line))]
        assert len(round_trips_ms) == 1
        assert round_trips_ms[0] >= 2000 * FAR_S
