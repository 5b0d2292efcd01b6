"""What a simulation will take of memory, before it starts.

Per peer: the state of its algorithm and what it has said last, and at an evaluation two copies of its parameters and
two more in float64. The events engine also has the cores themselves, and a queue for each link. Measured, the sum is
right to about a tenth where parameters prevail; torch itself and the data come on top.
"""

import os
from typing import Literal

from peer.algorithms.algorithm import bytes_of
from peer.assembly import Assembly
from peer.learner import wire_forms
from peer.task.task import Task

PEER_BYTES = 26_000
LINK_BYTES, DRAWING_LINK_BYTES = 2_600, 4_900
"""What a peer's objects take in the events engine, and a link in one direction; where something is drawn for each
message, it has a generator."""


def memory_bytes(assembly: Assembly, task: Task, engine: Literal["rounds", "events"]) -> int:
    """Return about how many bytes all peers take at the worst moment."""
    x = task.start(0)
    algorithm = assembly.fitted(task.layout)
    params = x.numel() * x.element_size()
    state = bytes_of(algorithm.init(x))
    said = sum(map(bytes_of, wire_forms(algorithm, x)))
    judged = 2 * params + 2 * 8 * x.numel()
    momentum = params if assembly.experiment.task.momentum else 0
    n = len(assembly.names)
    total = n * (state + 2 * said + judged + momentum)
    if engine == "rounds":
        return total
    network = assembly.experiment.network
    draws = network.jitter_ms or network.loss or network.duplicate or network.reorder
    links = sum(len(assembly.neighbours(i)) for i in range(n))
    return total + n * PEER_BYTES + links * (DRAWING_LINK_BYTES if draws else LINK_BYTES)


def available_bytes() -> int | None:
    """Return how much memory is free on this machine; None where it does not say.

    On Linux what the system keeps of files counts as free.
    """
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
