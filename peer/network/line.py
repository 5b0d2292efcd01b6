"""How one neighbour is reached, in terms of sockets: dialled by a DEALER of its own, or by a route at the ROUTER."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

import zmq
from zmq.utils.monitor import recv_monitor_message

from peer.errors import ConfigError
from peer.network.link import Link
from peer.network.wire import CHUNK_BYTES, HEADER_BYTES

QUEUE_MESSAGES = 64
"""High-water mark of each socket: more than a window of the stream and the control messages beside it."""

CONNECT_TIMEOUT_MS = 2000
RECONNECT_MS = 100
RECONNECT_MAX_MS = 2000


@dataclass(eq=False)
class Line:
    """The sockets of one neighbour, or its route."""

    dealer: "zmq.Socket[bytes] | None" = None
    monitor: "zmq.Socket[bytes] | None" = None
    stands: bool = False  # the connection that was dialled
    is_new: bool = False  # it stands, and nothing has been said on it
    connecting_since_s: float = 0.0
    route: bytes | None = None  # at the ROUTER, for a peer that dials

    def dial(
        self, context: "zmq.Context[zmq.Socket[bytes]]", poller: zmq.Poller, endpoint: str, config_key: str
    ) -> None:
        """Connect, now or whenever the other side comes up. Raises ConfigError, about that key, for no endpoint."""
        dealer = context.socket(zmq.DEALER)
        set_up(dealer, endpoint)
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self.monitor, self.dealer = dealer.get_monitor_socket(), dealer
        poller.register(dealer, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)
        try:
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            self.hang_up(poller)
            raise ConfigError(config_key, f"{endpoint} cannot be dialled ({zmq.strerror(error.errno or 0)})") from None

    def follow(self, link: Link, drained_s: float) -> bool:
        """Follow a dialled connection. Returns whether its address refuses new ones.

        `drained_s` is when it was last followed.
        """
        refuses = False
        while self.monitor is not None and self.monitor.poll(0):
            match recv_monitor_message(self.monitor)["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    link.connection += 1
                    link.greeted = refuses = False
                    self.stands = self.is_new = True
                case zmq.EVENT_DISCONNECTED:
                    self.stands = self.is_new = link.greeted = False
                case zmq.EVENT_CONNECT_DELAYED:
                    self.connecting_since_s = drained_s  # or later: it is known only that it was not before
                case zmq.EVENT_CLOSED:  # refused, or unanswered as in a cut network: that takes longer
                    refuses = monotonic() - self.connecting_since_s < CONNECT_TIMEOUT_MS / 1000
        return refuses

    def hang_up(self, poller: zmq.Poller) -> None:
        if self.dealer is None:
            return
        if self.monitor is not None:
            poller.unregister(self.monitor)
            self.dealer.disable_monitor()
            self.monitor.close(linger=0)
        poller.unregister(self.dealer)
        self.dealer.close(linger=0)
        self.dealer = self.monitor = None


def set_up(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    """Set what every socket has: it never lingers, and bounds its queues and each frame that it accepts."""
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, max(CHUNK_BYTES, HEADER_BYTES))


def arrived(socket: "zmq.Socket[bytes]") -> Iterator[list[zmq.Frame]]:
    """Yield the messages that are there now; a flood from one side has its turn and no more."""
    for _ in range(4 * QUEUE_MESSAGES):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
