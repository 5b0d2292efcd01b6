"""What more peers would be worth: speed-up, efficiency and throughput of the designs, before anything is run.

The textbook's model of data-parallel training: with T seconds for the local steps of a round at one peer, and T_comm(k)
seconds in which k peers exchange what they have learned,

    strong scaling, the round's rows divided among k peers    speed-up = T / (T / k + T_comm(k))
    weak scaling, as many rows again at each peer             throughput = k * rows / (T + T_comm(k))

(Grama, Gupta, Karypis and Kumar, "Introduction to Parallel Computing", 2003, chapter 5.) Efficiency is the speed-up
divided by k; under weak scaling it is T / (T + T_comm(k)). With M bytes to send, lines of B bytes a second for all that
a machine sends and for all that it is sent, and a latency of L seconds,

    hub          2 k M / B + 2 L                  a parameter server: k pushes come in over its line, k answers go out
    sharded hub  2 max(k / s, 1) M / B + 2 L      s servers with 1/s of the parameters each; by default s = k
    ring         2 (k - 1) (M / (k B) + L)        all-reduce: Patarasuk and Yuan 2009
    gossip       d M / B + L                      d: how many neighbours a peer of the file's graph has, k - 1 at most

A message is also never faster than its link where links have a bandwidth of their own. The hub is a machine of its own,
so even one peer has to talk to it. A hub with more than

    k* = sqrt(T B / (2 M))     peers

spends more time on its line than the peers do computing, and one more peer makes the round longer: the derivative of
T / k + 2 k M / B is 0 there. Nothing overlaps here, computing takes a k-th of the time for a k-th of the rows, and
everybody is equally fast; `seconds_per_round` of `explain` has the queues and stragglers of the file's world.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

import torch

import topology
from peer.assembly import Assembly, device_of
from peer.assembly.pace import seconds_per_round
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.explanation import payload_bytes_of
from peer.learner import wire_forms
from peer.record import Row
from peer.task.local import PlainTrainer
from peer.task.task import Task

KEY = "--predict"

STEPS_MEASURED, MEASURED_S = (3, 50), 1.0
"""The local steps of a round are done so often at least and at most, and in between for so long."""

HALF_BYTES = 2
"""Of a number that is sent in half precision: compression fp16 and bf16."""


@dataclass(frozen=True)
class Wires:
    """What goes over wires: `line_mbps` for all that a machine sends, and likewise for what it is sent; `link_mbps` for
    one message; in 10^6 bits a second, inf for no limit. `source` says of each figure where it comes from."""

    line_mbps: float = inf
    link_mbps: float = inf
    latency_ms: float = 0.0
    source: Mapping[str, str] = field(default_factory=dict)

    def carry_s(self, n_bytes: float, messages: float = 1.0) -> float:
        """Return how long so many messages of so many bytes are on the line of a machine, without latency."""
        return n_bytes * 8 / 1e6 * max(messages / self.line_mbps, 1 / self.link_mbps)

    @property
    def latency_s(self) -> float:
        return self.latency_ms / 1000


class Loads(NamedTuple):
    """How many bytes of parameters go one way at a time: all of them, pushed to a hub, given by it, to a neighbour."""

    model: int
    pushed: int
    given: int
    gossiped: int


@dataclass(frozen=True)
class Design:
    """A way to exchange parameters: how long it takes with k peers, and how many bytes each sends at a time."""

    name: str
    load_bytes: int
    comm_s: Callable[[int], float]


def predict(assembly: Assembly, task: Task, wires: Wires, step_seconds: float | None = None) -> Row:
    """Return the performance model of an experiment as a plain document.

    `step_seconds` are those of the local steps of a round; None: they are measured here. Raises ConfigError where
    nothing is trained.
    """
    e = assembly.experiment
    rows = rows_of_a_round(task)
    measured_s = measured_step_s(assembly, task) if step_seconds is None else step_seconds
    loads = loads_of(assembly, task)
    return {
        "design": design_of(e),
        "step_seconds": measured_s,
        "rows_per_step": rows,
        "payload_bytes": loads.model,
        "bandwidth_mbps": wires.line_mbps if isfinite(wires.line_mbps) else None,
        "link_mbps": wires.link_mbps if isfinite(wires.link_mbps) else None,
        "latency_ms": wires.latency_ms,
        "source": {"step_seconds": "measured" if step_seconds is None else "given", **wires.source},
        "hub_limit_peers": hub_limit_peers(measured_s, loads, wires),
        "rows": [
            _row(design, k, measured_s, rows)
            for k in peers_looked_at(len(assembly.names))
            for design in designs_of(assembly, loads, wires)
        ],
    }


def _row(design: Design, k: int, step_s: float, rows: int) -> Row:
    comm_s = design.comm_s(k)
    strong_s, weak_s = step_s / k + comm_s, step_s + comm_s
    return {
        "peers": k,
        "design": design.name,
        "payload_bytes": design.load_bytes,
        "comm_seconds": comm_s,
        "speed_up": step_s / strong_s,
        "efficiency": step_s / strong_s / k,
        "samples_per_second": rows / strong_s,
        "weak_efficiency": step_s / weak_s,
        "weak_samples_per_second": k * rows / weak_s,
    }


def peers_looked_at(peers: int) -> list[int]:
    """Return 1, 2, 4, ... up to so many, and that number itself."""
    return sorted({1 << power for power in range(peers.bit_length())} | {peers})


# ---- The designs


def designs_of(assembly: Assembly, loads: Loads, wires: Wires) -> Iterator[Design]:
    """Return each design with its time for k peers: see the formulas above."""
    degree, stated = degree_of(assembly), stated_servers(assembly.experiment)

    def hub_s(k: int, servers: int = 1) -> float:
        both_s = (wires.carry_s(load / servers, max(k, servers)) for load in (loads.pushed, loads.given))
        return sum(both_s) + 2 * wires.latency_s

    def ring_s(k: int) -> float:
        return 2 * (k - 1) * (wires.carry_s(loads.model / k) + wires.latency_s)

    def gossip_s(k: int) -> float:
        heard = min(degree, k - 1)
        return wires.carry_s(loads.gossiped, heard) + wires.latency_s if heard else 0.0

    yield Design("hub", loads.pushed, hub_s)
    yield Design("sharded hub", loads.pushed, lambda k: hub_s(k, stated or k))
    yield Design("ring", loads.model, ring_s)
    yield Design("gossip", loads.gossiped, gossip_s)


def design_of(experiment: Experiment) -> str:
    """Return which of the designs the experiment's own is."""
    if experiment.coordinates:
        return "sharded hub" if stated_servers(experiment) else "hub"
    return "ring" if experiment.is_ring else "gossip"


def stated_servers(experiment: Experiment) -> int:
    """Return over how many servers the file spreads the parameters, 0 where it does not."""
    servers = experiment.coordinator.servers
    return servers if experiment.coordinates and servers > 1 else 0


def hub_limit_peers(step_s: float, loads: Loads, wires: Wires) -> int | None:
    """Return with how many peers a hub's round is shortest; None where its line has no limit."""
    a_peer_s = (loads.pushed + loads.given) * 8 / 1e6 / wires.line_mbps
    return int(sqrt(step_s / a_peer_s)) if a_peer_s else None


def degree_of(assembly: Assembly) -> float:
    """Return how many others the peer with the most neighbours hears in a round, in any of those that are looked at."""
    if assembly.experiment.coordinator.mode == "none" and not assembly.uses_topology:
        return len(assembly.names) - 1 if assembly.everyone else 0
    schedule, rounds = assembly.ground.schedule, len(assembly.ground.rounds_seen)
    return topology.overview(schedule, rounds).heard.max


def loads_of(assembly: Assembly, task: Task) -> Loads:
    """Return the bytes of each design's messages. Where pushes are sparse they are fewer, by what a run will show."""
    x, e = task.start(0), assembly.experiment
    itemsize = HALF_BYTES if e.compression.name in ("fp16", "bf16") else x.element_size()
    at_hub = x.numel() * itemsize
    gossiped = x.numel() * x.element_size()
    if e.coordinator.mode == "none":
        forms = wire_forms(assembly.fitted(task.layout), x)
        gossiped = sum(t.numel() * t.element_size() for form in forms for t in form.values())
    return Loads(x.numel() * x.element_size(), at_hub, at_hub, gossiped)


# ---- The figures


def wires_of(experiment: Experiment) -> Wires | None:
    """Return what [network] says of wires; None where it says nothing of a bandwidth.

    network.bandwidth_mbps alone counts as what a machine's line carries, as the textbook has it.
    """
    n = experiment.network
    if not (n.node_mbps or n.bandwidth_mbps):
        return None
    of = "network.node_mbps" if n.node_mbps else "network.bandwidth_mbps"
    source = {"bandwidth_mbps": of, "latency_ms": "network.latency_ms"}
    return Wires(n.node_mbps or n.bandwidth_mbps, n.bandwidth_mbps or inf, n.latency_ms, source)


def measured_wires(bandwidth_mbps: float, latency_ms: float) -> Wires:
    """Return wires as they were measured on this machine."""
    source = dict.fromkeys(("bandwidth_mbps", "latency_ms"), "measured over the loopback of this machine")
    return Wires(bandwidth_mbps, bandwidth_mbps, latency_ms, source)


def rows_of_a_round(task: Task) -> int:
    """Return how many rows the local steps of a round take in at the first peer. Raises ConfigError for none."""
    shard = task.shard(0, torch.device("cpu"))
    if shard is None:
        raise ConfigError(KEY, 'with task.data = "none" nothing is trained, so more peers cannot make it faster')
    schedule = task.wish.schedule
    return schedule.local_steps * min(schedule.batch_size or len(shard), len(shard))


def measured_step_s(assembly: Assembly, task: Task) -> float:
    """Return how many seconds the local steps of a round take the first peer here: the median of some rounds."""
    t = assembly.experiment.task
    device, threads = device_of(t.device, 0), torch.get_num_threads()
    torch.set_num_threads(t.threads)
    try:
        return median(_rounds_s(task, device))
    finally:
        torch.set_num_threads(threads)


def _rounds_s(task: Task, device: torch.device) -> Sequence[float]:
    trainer, shard, x = task.trainer(device), task.shard(0, device), task.start(0).to(device)
    assert isinstance(trainer, PlainTrainer)
    memory, taken_s = trainer.memory(), list[float]()
    least, most = STEPS_MEASURED
    for round in range(-1, most):  # the first is not counted: it gets memory and code ready
        began_s = perf_counter()
        trainer.train(x, memory, shard, 0, max(round, 0))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken_s.append(perf_counter() - began_s)
        if round + 1 >= least and sum(taken_s) > MEASURED_S:
            break
    return taken_s[1:]


# ---- One run


def expected(assembly: Assembly, task: Task, wires: Wires | None = None, cores: int = 1) -> Row | None:
    """Return what a run's rounds should take, for its summary, where it stands beside what they took.

    Without `wires` it is the events engine's: see `assembly.pace`. With those of this machine it is that of daemons
    which share its `cores`: the model above, local steps measured here. `speed_up` is over one peer that does the same
    local steps one after another, `efficiency` its share of what as many peers could do. None where nothing is known.
    """
    c, n = assembly.experiment.coordinator, len(assembly.names)
    if wires is None:
        step_s = fmean(assembly.speeds.mean_round_s(i) for i in range(n))
        round_s = seconds_per_round(assembly, payload_bytes_of(assembly, task))
    else:
        model = predict(assembly, task, wires)
        own = next(row for row in model["rows"] if (row["peers"], row["design"]) == (n, model["design"]))
        step_s = model["step_seconds"] * max(1.0, n * assembly.experiment.task.threads / cores)
        round_s = step_s + own["comm_seconds"]
    if not round_s:
        return None
    done = {"async": 1, "buffered": c.buffer}.get(c.mode, round(c.fraction * n) or 1)  # rounds of one peer
    if wires is not None and c.mode in ("async", "buffered"):
        round_s *= done / n
    return {
        "seconds_per_round": round_s,
        "speed_up": done * step_s / round_s,
        "efficiency": done * step_s / round_s / n,
        "bottleneck": "local steps" if 2 * done * step_s >= n * round_s else "the exchange",
    }
