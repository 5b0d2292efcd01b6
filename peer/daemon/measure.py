"""What the links of this machine carry: bandwidth and latency over the loopback, through the daemons' own `Links`.

Two ends, each polled by a thread of its own as in two daemons, greet each other. The near one then probes, which the
far one answers at once, and sends large messages, each with a probe behind it in the same stream: the echo of that one
says that the message has been put together at the far end. Medians of several count, as a machine does other things.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from threading import Event as Flag
from threading import Thread
from time import monotonic, perf_counter

from peer.errors import TrainingError
from peer.network.greeting import Greeting
from peer.network.link import LinkEvent
from peer.network.links import Links
from peer.network.sizes import Sizes
from peer.protocol.messages import Data, Echo, Greeted, Message, Probe, Received

NEAR, FAR = 0, 1
NAMES = {NEAR: "near", FAR: "far"}

MESSAGE_BYTES = 8 * 1024 * 1024
MESSAGES, PROBES = 9, 51
"""How many are sent; the first of each is not counted."""

POLL_S, PATIENCE_S = 0.05, 20.0


@dataclass(frozen=True)
class LinkFigures:
    """One way over a link: bandwidth in 10^6 bits a second, and half of a round trip."""

    bandwidth_mbps: float
    latency_ms: float


def measure_loopback() -> LinkFigures:
    """Measure what a link between two daemons on this machine carries; takes about a second.

    Raises TrainingError where the two ends do not come to talk.
    """
    near = _links(NEAR, FAR, "tcp://127.0.0.1:*")
    far = _links(FAR, NEAR, None)
    assert near.endpoint is not None
    far.dial(NEAR, near.endpoint)
    try:
        with _answering(far):
            return _figures(_Near(near))
    finally:
        near.close()


def _figures(near: "_Near") -> LinkFigures:
    near.wait_for(lambda event: isinstance(event, Greeted))
    trips_s = [near.timed() for _ in range(PROBES)][1:]
    trip_s = median(trips_s)
    payload = bytes(MESSAGE_BYTES)
    messages_s = [near.timed(Data(i, 0, payload)) for i in range(MESSAGES)][1:]
    message_s = max(median(messages_s) - trip_s, 1e-9)
    return LinkFigures(MESSAGE_BYTES * 8 / 1e6 / message_s, trip_s / 2 * 1000)


@dataclass
class _Near:
    """The end that asks."""

    links: Links
    probes: int = 0

    def timed(self, *before: Message) -> float:
        """Return how many seconds it takes until a probe is answered that is sent behind these messages."""
        began_s = perf_counter()
        self.probes += 1
        for message in (*before, Probe(self.probes)):
            self.links.send(FAR, message)
        self.wait_for(lambda event: event == Received(FAR, Echo(self.probes)))
        return perf_counter() - began_s

    def wait_for(self, is_it: Callable[[LinkEvent], bool]) -> None:
        until_s = monotonic() + PATIENCE_S
        while not any(is_it(event) for event in self.links.poll(POLL_S)):
            if monotonic() > until_s:
                raise TrainingError(f"the loopback could not be measured: nothing was heard for {PATIENCE_S:g} s")


@contextmanager
def _answering(links: Links) -> Iterator[None]:
    """Let the far end answer probes in a thread of its own, to which it belongs until the block ends."""
    is_over = Flag()

    def answer() -> None:
        is_greeted = False
        while not is_over.is_set():
            if not is_greeted:
                links.beat(0)  # says hello
            for event in links.poll(POLL_S):
                is_greeted |= isinstance(event, Greeted)
                if isinstance(event, Received) and isinstance(event.message, Probe):
                    links.send(NEAR, Echo(event.message.number))
        links.close()

    thread = Thread(target=answer, name="far end of the loopback", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _links(me: int, other: int, listen: str | None) -> Links:
    nothing = {"digest": "", "layout_digest": "", "code": "", "device": "", "step": ""}
    greeting = Greeting(name=NAMES[me], session=NAMES[me], fingerprint={}, layout=[], **nothing)
    return Links({other: NAMES[other]}, greeting, {other: Sizes((MESSAGE_BYTES,))}, listen)
