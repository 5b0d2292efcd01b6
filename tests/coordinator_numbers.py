"""A coordinator with one number and its workers, without links: the test says who pushes next."""

from collections.abc import Callable

from peer.protocol.coordinator import Coordinator
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Applied,
    Apply,
    Effect,
    Event,
    PeerId,
    PeerJoined,
    Received,
    Send,
    Shares,
    Train,
    Trained,
)
from peer.protocol.worker import Worker
from tests.four_peers import CURVATURES, SLOPES


class Class:
    """A coordinator whose number is w, and workers that push gradients; links carry at once what they are given.

    Local steps last until `train`. An update takes lr times the weighted sum of gradients from w.
    """

    def __init__(self, core: Coordinator, lr: float, start: float, gradient: Callable[[PeerId, float], float]) -> None:
        self.core, self.lr, self.gradient = core, lr, gradient
        self.w = [start]  # after each update
        self.terms: list[tuple[PeerId, int, float]] = []  # whose, how stale, how far w had gone since
        self.at: dict[PeerId, float] = {}
        self.training: dict[PeerId, int] = {}
        self.workers = {peer: Worker(peer, [core.me], core.rounds) for peer in sorted(core.neighbours)}
        self._carry_out(core.me, core.start(0.0))
        for peer in self.workers:
            self._tell(core.me, PeerJoined(peer))
        for peer in self.workers:
            self._tell(peer, PeerJoined(core.me))

    def train(self, peer: PeerId) -> None:
        """The local steps of this worker end."""
        round = self.training.pop(peer)
        self._tell(peer, Trained(round, Shares(None, {self.core.me: self.gradient(peer, self.at[peer])})))

    def _tell(self, me: PeerId, event: Event) -> None:
        core = self.core if me == self.core.me else self.workers[me]
        self._carry_out(me, core.handle(event, 0.0))

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._tell(to, Received(me, message))
                case Adopt(round, (payload,)):
                    self.at[me] = payload
                    self._tell(me, Adopted(round))
                case Train(round):
                    self.training[me] = round
                case Apply(version, terms):
                    assert version == len(self.w) - 1
                    now = self.w[-1]
                    step = sum(term.weight * term.payload for term in terms)
                    self.terms += [(t.sender, t.staleness, abs(now - self.w[version - t.staleness])) for t in terms]
                    self.w.append(now - self.lr * step)
                    self._tell(me, Applied(self.w[-1]))


def slope(peer: PeerId, w: float) -> float:
    """The gradient of one of the four peers of the traces."""
    return float(CURVATURES[peer]) * w - float(SLOPES[peer])
