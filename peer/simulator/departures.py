"""Who has ended before the run had, and what that makes of the run: a part of the events engine."""

from typing import Literal

from peer.assembly import Assembly
from peer.protocol.messages import Finish, PeerId


class Departures:
    """`gave_up` could not go on, in that order. `led_by` has left, and the others with it: a coordinator, or a member
    of a ring; "" for nobody."""

    def __init__(self, assembly: Assembly) -> None:
        self.gave_up: dict[PeerId, Finish] = {}
        self.led_by = ""
        self._assembly = assembly
        self._is_ring = assembly.experiment.is_ring

    def note(self, me: PeerId, finish: Finish) -> None:
        """A core is done."""
        if finish.outcome in ("failed", "alone"):
            self.gave_up.setdefault(me, finish)
        elif finish.outcome == "interrupted" and (self._is_ring or me in self._assembly.coordinator_ids):
            self.led_by = self.led_by or self._assembly.nodes[me]

    def begin_anew(self, me: PeerId) -> bool:
        """A core begins again; returns whether there is no use in that, as a ring does not heal."""
        if self._is_ring:
            return bool(self.gave_up)
        self.gave_up.pop(me, None)
        return False

    @property
    def is_broken(self) -> bool:
        """Whether the run as a whole cannot go on: a ring of which a member could not, or without any coordinator or
        worker that could."""
        gave_up, peers = self.gave_up.keys(), range(len(self._assembly.names))
        coordinators = self._assembly.coordinator_ids
        return bool(gave_up) and (self._is_ring or bool(gave_up & set(coordinators)) or gave_up >= set(peers))

    def why_some_gave_up(self) -> tuple[Literal["failed", "alone"], str]:
        """The first who could not go on says why."""
        names, (me, finish) = self._assembly.nodes, next(iter(self.gave_up.items()))
        if finish.outcome == "failed":
            return "failed", f"{names[me]}: {finish.why}"
        alone = ", ".join(names[me] for me, finish in self.gave_up.items() if finish.outcome == "alone")
        return "alone", f"{alone} never heard a coordinator within {self._assembly.experiment.transport.join_s:g} s"
