"""The links of a virtual world: when what one peer says reaches another.

Every pair of peers has a link in each direction, with a queue in front of it, and a machine one for all that it sends
and one for all that it is sent, where these have a bandwidth: see peer/assembly/queues.py.

    departs = max over these queues of max(now, queue is empty) + (payload + header) * 8 / bandwidth
    arrives = departs + latency + jitter * u + lost times * (round trip + RESEND_S),    u uniform in [0, 1)

Messages of a link arrive in the order in which they were sent, unless they are reordered: then one is held up and
others overtake it, but never a goodbye. A lost message is sent again one round trip and RESEND_S later, as TCP does at
the earliest, or where `resends` is false and nobody insists on it, not at all. What is drawn depends on the seed, the
link, and how many messages went over it before. Two in one process hear each other at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from peer.assembly.links import RESEND_S, LinkTable
from peer.assembly.queues import Queues
from peer.experiment import Network
from peer.protocol.messages import PeerId
from peer.seeds import stream
from peer.simulator.connections import Pair, pair_of


@dataclass
class _Traffic:
    """What has gone over a link so far."""

    in_order_s: float = 0.0  # when the last message arrives of those that keep their order
    latest_s: float = 0.0  # when the last of all arrives
    draw: Callable[[], float] | None = None


@dataclass
class World:
    """The links between all peers, and which of them are cut."""

    links: LinkTable
    network: Network
    seed: int
    resends: bool = True
    _queues: Queues = field(init=False)
    _traffic: dict[Pair, _Traffic] = field(default_factory=dict)
    _cut: set[Pair] = field(default_factory=set)
    _group: dict[PeerId, int] = field(default_factory=dict)  # of a partition; without one nobody is in it

    def __post_init__(self) -> None:
        self._queues = Queues(self.network.node_mbps)

    def arrivals_s(
        self, sender: PeerId, receiver: PeerId, payload_bytes: int, now_s: float, *, insists: bool, is_last: bool
    ) -> list[float]:
        """Send a message; returns when it arrives: never, once, or twice.

        `insists`: it is sent again until it arrives. `is_last`: nothing that was said before may come after it.
        """
        link, network = self.links.of(sender, receiver), self.network
        if link.is_local:
            return [now_s]
        traffic = self._traffic.setdefault((sender, receiver), _Traffic())
        departs_s = self._queues.departs_s((sender, receiver), link, payload_bytes, now_s)
        arrives_s = departs_s + link.latency_ms / 1000
        if not (network.jitter_ms or link.loss or network.duplicate or network.reorder):
            arrives_s = max(arrives_s, traffic.in_order_s)
            traffic.in_order_s = traffic.latest_s = arrives_s
            return [arrives_s]
        draw = self._draws(traffic, sender, receiver)
        resend_s = self.round_trip_s(sender, receiver) + RESEND_S
        if network.jitter_ms:
            arrives_s += draw() * network.jitter_ms / 1000
        while link.loss and draw() < link.loss:
            if not (insists or self.resends):
                return []
            arrives_s += resend_s
        if network.reorder and draw() < network.reorder and not is_last:
            arrives_s += resend_s * draw()
        else:
            arrives_s = max(arrives_s, traffic.in_order_s)
            traffic.in_order_s = arrives_s
        arrivals_s = [arrives_s]
        if network.duplicate and draw() < network.duplicate:
            arrivals_s.append(arrives_s + resend_s * draw())
        if is_last:
            arrivals_s = [max(arrives_s, traffic.latest_s)]
        traffic.latest_s = max(traffic.latest_s, *arrivals_s)
        return arrivals_s

    def round_trip_s(self, a: PeerId, b: PeerId) -> float:
        """Return how long a small message takes to the other and back, without jitter."""
        return self.links.round_trip_ms(a, b) / 1000

    def new_connection(self, a: PeerId, b: PeerId) -> None:
        """What was queued on the links of these two is gone; the lines of their machines stay as busy as they were."""
        for pair in ((a, b), (b, a)):
            self._queues.empty(pair)
            traffic = self._traffic.get(pair)
            if traffic is not None:
                traffic.in_order_s = traffic.latest_s = 0.0

    # ---- Cuts

    def is_open(self, a: PeerId, b: PeerId) -> bool:
        """Say whether anything gets from one peer to the other."""
        apart = bool(self._group) and self._group[a] != self._group[b]
        return not apart and pair_of(a, b) not in self._cut

    def is_cut(self, a: PeerId, b: PeerId) -> bool:
        return pair_of(a, b) in self._cut

    def cut(self, a: PeerId, b: PeerId) -> None:
        self._cut.add(pair_of(a, b))

    def heal(self, a: PeerId, b: PeerId) -> None:
        self._cut.discard(pair_of(a, b))

    def part(self, groups: tuple[tuple[PeerId, ...], ...], everyone: int) -> None:
        """Let nothing pass between these groups and all that are in none of them."""
        named = {peer: number for number, group in enumerate(groups) for peer in group}
        self._group = {peer: named.get(peer, -1) for peer in range(everyone)}

    def unite(self) -> None:
        """End a partition."""
        self._group = {}

    def heal_all(self) -> None:
        self._cut.clear()
        self.unite()

    # ---- Inside

    def _draws(self, traffic: _Traffic, sender: PeerId, receiver: PeerId) -> Callable[[], float]:
        if traffic.draw is None:
            traffic.draw = stream(self.seed, "link", sender, receiver).random
        return traffic.draw
