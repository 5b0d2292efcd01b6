"""A coordinator in rounds: the pushes for one version are applied together (sync, quorum)."""

from collections.abc import Callable, Iterable, Mapping
from math import fsum, inf
from typing import Literal

from peer.protocol.coordinator import Coordinator, Present
from peer.protocol.messages import PeerId, Push


class ByRounds(Coordinator):
    """Synchronous: what the chosen workers push for one version is applied at once, in node order.

    `chosen(version)` are the workers that take part in making the next one, all where it is None; where none of them
    is there, everybody is asked. `count` 0 is a barrier: the round closes when each chosen worker has pushed or is
    lost. Else it closes on so many pushes (quorum), or when no more can come. `timer_s` closes it earlier, from its
    beginning on; where nothing has been pushed by then, on the first push. 0: no timer.

    A push that comes after its round is dropped, and its worker given the present version; or with `late` "stale" it
    is one of the pushes of the present round. Where a push shows that later versions were lost in a fall, all do their
    part of this round again, also those whose push of this version was there before: else, beside another coordinator,
    one that has to do so could wait for one that waits for it.

    `weights` are those of the workers, say how many rows each has, above 0; those of one `Apply` sum to 1. None: all
    count the same.
    """

    def __init__(
        self,
        me: PeerId,
        workers: Iterable[PeerId],
        rounds: int,
        present: Present,
        *,
        chosen: Callable[[int], set[PeerId]] | None = None,
        count: int = 0,
        timer_s: float = 0.0,
        late: Literal["drop", "stale"] = "drop",
        weights: Mapping[PeerId, float] | None = None,
        return_s: float = 0.0,
    ) -> None:
        super().__init__(me, workers, rounds, present, return_s=return_s)
        self.chosen = chosen or (lambda version: self.neighbours)
        self.count = count
        self.timer_s = timer_s
        self.late = late
        self.weights = weights or dict.fromkeys(self.neighbours, 1.0)
        assert all(self.weights[peer] > 0 for peer in self.neighbours)
        self._members: set[PeerId] = set()  # of this round
        self._is_overdue = False
        self._is_behind = False  # this coordinator has lost versions in a fall, and makes this one again

    def _begin_version(self, now_s: float) -> None:
        self._members = self.neighbours & self.chosen(self.version)
        self._is_overdue = self._is_behind = False
        self._timer_s = now_s + self.timer_s if self.timer_s else inf

    def _note_time(self, now_s: float) -> None:
        if now_s >= self._timer_s:
            self._is_overdue, self._timer_s = True, inf

    def _drop_what_is_void(self) -> None:
        if any(push.version > self.version for push in self._inbox.values()):
            self._is_behind = True
            for peer in list(self._inbox):
                self._drop(peer)
        super()._drop_what_is_void()

    def _is_too_late(self, peer: PeerId, push: Push) -> bool:
        is_from_before = self._is_behind and self._last_given.get(peer) != self.version
        return is_from_before or (self.late == "drop" and push.version < self.version)

    def _missing(self) -> set[PeerId]:
        return (self._members & self.alive) - self._inbox.keys()

    def _due(self) -> list[tuple[PeerId, Push]]:
        if not self._inbox:
            if not self._members & self.alive:
                self._members = set(self.neighbours)
            return []
        is_met = 0 < self.count <= len(self._inbox)
        if self._missing() and not is_met and not self._is_overdue:
            return []
        self.short_rounds += not self._members <= self._inbox.keys()
        pushes, self._inbox = sorted(self._inbox.items(), key=lambda item: item[0]), {}
        return pushes

    def _weights(self, pushes: list[tuple[PeerId, Push]]) -> list[float]:
        total = fsum(self.weights[peer] for peer, _ in pushes)
        return [self.weights[peer] / total for peer, _ in pushes]

    def _version_for(self, peer: PeerId) -> int | None:
        return self.version if peer in self._members else None
