"""The queues of a virtual world: when a message has left, where links and the lines of machines carry so much a second.

A message of so many bytes waits in up to three queues at once, each of them first come, first served:

    link's own      from one peer to another, network.bandwidth_mbps, or its line in network.file
    sender's line   all that a machine sends, network.node_mbps
    receiver's line all that a machine is sent, network.node_mbps

    a queue is through with it at   max(now, when it was through with what came before) + bytes * 8 / its bandwidth
    it departs                      when all three are through with it

So for messages of M bytes on lines of B bytes a second: one sender to n receivers takes n M / B until the last has
left, n senders to one likewise, and a step of a ring, in which each sends and receives at once, M / B. The three do
not wait for each other, as if the network held what a busy receiver cannot take yet; so nobody who could send stands
still because of that, and no order of sending makes a round longer than the busiest line needs for its share.
"""

from dataclasses import dataclass, field

from peer.assembly.links import HEADER_BYTES, Link, Pair, transmission_s


def line_s(node_mbps: float, payload_bytes: int) -> float:
    """Return for how long a message keeps the line of a machine busy, each way; 0 where there is no limit."""
    return (payload_bytes + HEADER_BYTES) * 8 / (node_mbps * 1e6) if node_mbps else 0.0


def alone_s(link: Link, node_mbps: float, payload_bytes: int) -> float:
    """Return how long a message takes to leave where all queues are empty."""
    return max(transmission_s(link, payload_bytes), line_s(node_mbps, payload_bytes))


@dataclass
class Queues:
    """When each queue is through with what it was given. `node_mbps` 0: machines have lines without a limit.

    Messages are given in the order of their times.
    """

    node_mbps: float = 0.0
    _links_s: dict[Pair, float] = field(default_factory=dict)
    _out_s: dict[int, float] = field(default_factory=dict)
    _in_s: dict[int, float] = field(default_factory=dict)

    def departs_s(self, pair: Pair, link: Link, payload_bytes: int, now_s: float) -> float:
        """Put a message from the first of a pair to the second in its queues; returns when it has left them.

        Messages of a link depart in the order in which they are given.
        """
        departs_s = self._links_s[pair] = max(now_s, self._links_s.get(pair, 0.0)) + transmission_s(link, payload_bytes)
        if not self.node_mbps:
            return departs_s
        sender, receiver = pair
        busy_s = line_s(self.node_mbps, payload_bytes)
        out_s = self._out_s[sender] = max(now_s, self._out_s.get(sender, 0.0)) + busy_s
        in_s = self._in_s[receiver] = max(now_s, self._in_s.get(receiver, 0.0)) + busy_s
        return max(departs_s, out_s, in_s)

    def empty(self, pair: Pair) -> None:
        """What was queued on this link is gone; the lines of the two machines have carried it in vain."""
        self._links_s.pop(pair, None)
