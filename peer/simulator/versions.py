"""The versions that the coordinators of the events engine make: what each was, and what it was worth.

Where there is one model, the coordinator's, it is judged for all peers when a version is made. `judges_copies`: where
peers have parameters, or running statistics, of their own, or where no coordinator has all parameters, each peer is
judged by what it holds: after a version that it was given, or has gone past.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peer.assembly import Assembly
from peer.assembly.coordination import judges_copies
from peer.centre import KEPT_VERSIONS, Update
from peer.protocol.coordinator import Coordinator
from peer.protocol.messages import Applied, Apply, PeerId
from peer.record import listed
from peer.simulator.centres import Centres
from peer.simulator.shell import Core
from peer.task.task import Task
from peer.verdict import Verdict


@dataclass(frozen=True)
class Timed:
    """An update, and how many seconds before the version that its worker trained from was made."""

    update: Update
    version: int
    age_s: float

    @property
    def staleness(self) -> int:
        return self.update.staleness

    @property
    def distance(self) -> float | None:
        return self.update.distance

    def row(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return it as a line of events.jsonl has it."""
        return {
            "peer": names[self.update.sender],
            "version": self.version,
            "staleness": self.staleness,
            "distance": self.distance,
        }


class Versions:
    """What the coordinators have made so far. `is_due(version)` says whether the peers are judged after it."""

    def __init__(self, assembly: Assembly, task: Task, is_due: Callable[[int], bool]) -> None:
        e, cpu = assembly.experiment, torch.device("cpu")
        self.judges_copies = judges_copies(assembly)
        self.records_updates = e.coordinator.mode != "sync"
        self._centres = Centres(assembly, task)
        self.parcels = self._centres.parcels
        self.verdict = Verdict(task.trainer(cpu), task.shards(cpu), task.test_rows(cpu))
        self._lists = e.record.params == "every"
        self._ids = assembly.coordinator_ids
        self._is_due = is_due
        self._parts: dict[int, dict[PeerId, Tensor]] = {}  # of versions that are judged, until they have been
        self._made_s: dict[tuple[PeerId, int], float] = {}
        self._copies: dict[PeerId, int] = {}  # the version of which each worker has a copy

    def begin_anew(self, me: PeerId) -> Coordinator:
        return self._centres.begin_anew(me)

    def save(self, core: Core) -> None:
        """A core has come further: if it is a coordinator's, it may save itself."""
        if isinstance(core, Coordinator):
            self._centres.save(core.me, core)

    def apply(self, me: PeerId, apply: Apply, now_s: float) -> tuple[Applied, list[Timed]]:
        """Make a coordinator's next version; returns what was taken in by it, too."""
        applied, outcome = self._centres.apply(me, apply)
        version = apply.version + 1
        self._made_s[me, version] = now_s
        self._made_s.pop((me, version - KEPT_VERSIONS), None)
        if self._is_due(version) and (self._lists or not self.judges_copies):
            if not self.judges_copies:  # it is judged at once, or was in an earlier life
                self._parts.clear()
            self._parts.setdefault(version, {})[me] = self._centres.each[me].params()
        timed = []
        for update in outcome.updates:
            made_s = self._made_s.get((me, apply.version - update.staleness), 0.0)
            timed.append(Timed(update, version, now_s - made_s))
        return applied, timed

    def has_diverged(self, me: PeerId) -> bool:
        return self._centres.has_diverged(me)

    def now(self) -> Tensor:
        """Return all parameters, (d,), as they are."""
        return self._centres.params()

    def whole(self, version: int) -> Tensor | None:
        """Return all parameters, (d,), of a version that is judged; None while a coordinator has not made it yet."""
        parts = self._parts.get(version, {})
        return torch.cat([parts[me] for me in self._ids]) if len(parts) == len(self._ids) else None

    def listed(self, version: int) -> list[float | None] | None:
        """Return all parameters of a version for JSON: those of now, where it was not judged as it was made."""
        whole = self.whole(version)
        self._parts = {at: parts for at, parts in self._parts.items() if at >= version}
        return listed([(self.now() if whole is None else whole).numpy()])[0]

    def due_copies(self, me: PeerId, version: int) -> tuple[list[int], bool]:
        """A worker is given a version: return after which ones before it is to be judged as it is, and whether after
        this one, too. None where no copies are judged, or it has had this version."""
        before = self._copies.get(me, 0)
        self._copies[me] = max(before, version)
        if not self.judges_copies:
            return [], False
        return [v for v in range(before + 1, version) if self._is_due(v)], version > before and self._is_due(version)
