"""A coordinator without rounds: what is pushed is applied when it arrives, or by turns (async, buffered)."""

from collections.abc import Iterable
from typing import Literal

from peer.protocol.coordinator import Coordinator, Present
from peer.protocol.messages import PeerId, Push


class ByArrival(Coordinator):
    """Asynchronous: a push is applied when it arrives, whole, and its worker is then given the version that came of it.

    With a `size` above 1 so many pushes are one `Apply` (FedBuff), in which each weighs 1 / `size`. A worker whose push
    is in the buffer is given the present version at once, and may be in the buffer twice.

    `max_staleness` bounds, in versions, how stale a push may be when it is applied; 0: no bound. No push ever waits
    for that. Who asks has to, if one who trains could then become too stale, whatever the order in which they push. So
    at most `max_staleness` + 1 train at a time. What a worker that was away brings may still be too stale: it is
    dropped.

    With `arrival` "round_robin" pushes are applied in node order of the workers that are there, round and round,
    whatever arrives first. A fixed `delay` is for experiments: update k is made from version k - `delay`, and those
    before the first count as the first. It goes by turns, so when a worker asks it is known which update its push will
    be: it is given the version `delay` before that one, once there is that version. When a worker is lost, or comes
    back, turns shift and a few updates have another staleness; after a restart, so do the first `delay` ones.
    """

    def __init__(
        self,
        me: PeerId,
        workers: Iterable[PeerId],
        rounds: int,
        present: Present,
        *,
        size: int = 1,
        max_staleness: int = 0,
        arrival: Literal["clock", "round_robin"] = "clock",
        delay: int | None = None,
        return_s: float = 0.0,
    ) -> None:
        super().__init__(me, workers, rounds, present, return_s=return_s)
        assert size == 1 or (not max_staleness and delay is None), "these count versions, one for each push"
        assert arrival == "clock" or not max_staleness, "by turns, a worker that waits would hold up the others"
        assert delay is None or arrival == "round_robin", "a fixed delay goes by turns"
        self.size = size
        self.max_staleness = max_staleness
        self.arrival = arrival
        self.delay = delay
        self._keeps = 1 if delay is None else delay + 1
        self._buffer: list[tuple[PeerId, Push]] = []

    _gives_every_version = True  # a worker trains from what came of its own push, and not from later ones

    def _is_too_late(self, peer: PeerId, push: Push) -> bool:
        return 0 < self.max_staleness < self.version - push.version

    def _line(self) -> list[PeerId]:
        """Return the workers in the order of their turns."""
        there = self.alive | self._inbox.keys()
        return sorted(there, key=lambda peer: (peer < self._turn, peer))

    def _missing(self) -> set[PeerId]:
        return set(self._line()[:1]) if self.arrival == "round_robin" else set()

    def _due(self) -> list[tuple[PeerId, Push]]:
        while self._inbox:
            peer = next(iter(self._inbox)) if self.arrival == "clock" else self._line()[0]
            if peer not in self._inbox:
                break
            self._buffer.append((peer, self._inbox.pop(peer)))
            self._turn = peer + 1
            if len(self._buffer) == self.size:
                pushes, self._buffer = self._buffer, []
                return pushes
        return []

    def _weights(self, pushes: list[tuple[PeerId, Push]]) -> list[float]:
        return [1 / self.size] * len(pushes)

    def _version_for(self, peer: PeerId) -> int | None:
        if self.delay is not None:
            ahead = self._line().index(peer)  # updates before the one that its push will be
            return max(min(self._kept), self.version + ahead - self.delay) if ahead <= self.delay else None
        return self.version if not self.max_staleness or self._all_stay_fresh() else None

    def _all_stay_fresh(self) -> bool:
        """Say whether one more may train: each that trains may be the last to push, after all the others."""
        latest = self.version + len(self._inbox) + len(self._given)
        bases = (at for at in self._given.values() if self.version - at <= self.max_staleness)
        return all(latest - at <= self.max_staleness for at in (*bases, self.version))
