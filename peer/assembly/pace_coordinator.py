"""How long a round will take beside coordinators: their cores and those of the workers, with nothing in the payloads.

Who is given what when is up to the discipline: a barrier, a quorum or a timer, turns, a bound on staleness. So nothing
is worked out here a second time; the cores themselves say, on a clock that knows how long local steps take and when a
message arrives. The seconds of a round are the time between versions, once the first half of them has been made: of all
that is looked at, the second half counts. With several coordinators a version is made when each has made its part.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np

from peer.assembly.assembly import Assembly
from peer.assembly.coordination import coordinator_of, worker_of
from peer.assembly.links import RESEND_S, Pair
from peer.assembly.queues import Queues
from peer.protocol.coordinator import Present
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Applied,
    Apply,
    Core,
    Effect,
    Event,
    Global,
    Message,
    PeerId,
    PeerJoined,
    Push,
    Received,
    Send,
    Shares,
    Tick,
    Train,
    Trained,
)
from peer.seeds import stream

WORKERS = 2000
"""With more workers, or as much work with several coordinators, it would take too long to say: a core looks at all of
them whenever one of them pushes."""

PUSHES, PUSHES_TIMES_WORKERS = 64, 2_000_000
"""How many pushes of each worker are looked at, and pushes to all coordinators times workers; two of each at least."""


def versions_looked_at(assembly: Assembly) -> int:
    """Return how many versions are looked at: some rounds of all workers, and no more than the experiment has."""
    e, n = assembly.experiment, len(assembly.names)
    pushes = min(PUSHES * n, max(2 * n, PUSHES_TIMES_WORKERS // (n * e.coordinator.servers)))
    a_version = {"async": 1, "buffered": e.coordinator.buffer}.get(e.coordinator.mode, n)
    return min(e.rounds or pushes, max(2, -(-pushes // a_version)))


def seconds_beside_coordinators(assembly: Assembly, push_bytes: int, given_bytes: int) -> float | None:
    """Return how many simulated seconds a version takes; None where it would take too long to say.

    `push_bytes` is what a worker pushes in all, and `given_bytes` what it is given, over all coordinators.
    """
    n, servers = len(assembly.names), len(assembly.coordinators)
    if n**2 * servers > WORKERS**2:
        return None
    versions = versions_looked_at(assembly)
    made_s = _DryRun(assembly, -(-push_bytes // servers), -(-given_bytes // servers)).versions_s(versions)
    half = versions // 2
    return (made_s[versions] - made_s[half]) / (versions - half)


@dataclass
class _DryRun:
    """Cores on a clock. `push_bytes` and `given_bytes` are those of one message."""

    assembly: Assembly
    push_bytes: int
    given_bytes: int
    now_s: float = 0.0
    cores: dict[PeerId, Core] = field(init=False)
    made_s: dict[PeerId, list[float]] = field(init=False)  # when a coordinator had each version
    _queues: Queues = field(init=False)
    _in_order_s: dict[Pair, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, PeerId, Event]] = field(default_factory=list)
    _pushed: int = 0  # things put into the heap: what is at the same time happens in the order in which it was put
    _soon: deque[tuple[PeerId, Event]] = field(default_factory=deque)
    _ticks_s: dict[PeerId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        a = self.assembly
        self.draw = stream(a.experiment.seed, "pace")
        self._queues = Queues(a.experiment.network.node_mbps)
        self.cores = {me: worker_of(a, me) for me in range(len(a.names))}
        self.cores |= {me: coordinator_of(a, None, me, Present(None)) for me in a.coordinator_ids}
        self.made_s = {me: [0.0] for me in a.coordinator_ids}

    def versions_s(self, versions: int) -> list[float]:
        """Return when each version was there, up to this one."""
        self._meet()
        while any(len(made_s) <= versions for made_s in self.made_s.values()):
            self.now_s, _, me, event = heappop(self._heap)
            self._soon.append((me, event))
            self._do_soon()
        return [max(at) for at in zip(*(made_s[: versions + 1] for made_s in self.made_s.values()), strict=True)]

    def _meet(self) -> None:
        for me, core in self.cores.items():
            self._carry_out(me, core.start(0.0))
        for worker in range(len(self.assembly.names)):
            for other in self.assembly.coordinator_ids:
                self._soon += [(worker, PeerJoined(other)), (other, PeerJoined(worker))]
        self._do_soon()

    def _do_soon(self) -> None:
        while self._soon:
            me, event = self._soon.popleft()
            core = self.cores[me]
            self._carry_out(me, core.handle(event, self.now_s))
            if isinstance(event, Tick):
                self._ticks_s.pop(me, None)
            if core.deadline_s < self._ticks_s.get(me, inf):
                self._ticks_s[me] = core.deadline_s
                self._later(core.deadline_s, me, Tick())

    def _later(self, at_s: float, me: PeerId, event: Event) -> None:
        self._pushed += 1
        heappush(self._heap, (at_s, self._pushed, me, event))

    # ---- What cores ask for

    def _carry_out(self, me: PeerId, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._later(self._arrival_s((me, to), message), to, Received(me, message))
                case Train(round):
                    done_s = self.now_s + self.assembly.speeds.round_s(me, round)
                    nothing: dict[PeerId, Any] = dict.fromkeys(self.assembly.coordinator_ids)
                    self._later(done_s, me, Trained(round, Shares(None, nothing)))
                case Adopt(round):
                    self._soon.append((me, Adopted(round)))
                case Apply():
                    self.made_s[me].append(self.now_s)
                    self._soon.append((me, Applied(None)))

    def _arrival_s(self, pair: Pair, message: Message) -> float:
        """Return when a message arrives, as the world of the events engine has it; nothing overtakes."""
        links, network = self.assembly.links, self.assembly.experiment.network
        link = links.of(*pair)
        if link.is_local:
            return self.now_s
        size = self.push_bytes if isinstance(message, Push) else self.given_bytes if isinstance(message, Global) else 0
        arrives_s = self._queues.departs_s(pair, link, size, self.now_s) + link.latency_ms / 1000
        if network.jitter_ms:
            arrives_s += self.draw.uniform(0.0, network.jitter_ms / 1000)
        if link.loss:
            times_lost = int(self.draw.geometric(1.0 - link.loss)) - 1
            arrives_s += times_lost * (links.round_trip_ms(*pair) / 1000 + RESEND_S)
        in_order_s = self._in_order_s[pair] = max(arrives_s, self._in_order_s.get(pair, -np.inf))
        return in_order_s
