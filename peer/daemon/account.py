"""What a node tells of itself: how far it is, what it counts, whom it has found and lost, and what it came to.

The node says here what happens to it; nothing of this changes what it does.
"""

from dataclasses import dataclass, field
from time import monotonic

from peer.assembly import Exchange
from peer.centre import KEPT_VERSIONS
from peer.daemon.centre_jobs import CentreJobs
from peer.daemon.jobs import Done, Jobs, Judged
from peer.daemon.reporting import Figures, NodeEnd, Outcome, Progress, Reporter
from peer.errors import EarshotError
from peer.network.links import Links
from peer.protocol.asynchronous import Asynchronous
from peer.protocol.coordinator import Coordinator
from peer.protocol.membership import Membership
from peer.protocol.messages import (
    Adopted,
    Applied,
    Assembled,
    Effect,
    Global,
    Learn,
    Learned,
    Message,
    Mix,
    Mixed,
    PeerId,
    Push,
    Send,
    Train,
)
from peer.protocol.pairwise import Pairwise
from peer.protocol.survey import Survey
from peer.protocol.worker import Worker as WorkerCore
from peer.record import Staleness

Core = Exchange | Survey | Coordinator

TELL_S = 0.02
"""How often at most a peer that waits for nobody tells how many rounds it has done."""


@dataclass
class Account:
    """Counts what one node does, and tells it. `records_updates`: each push that a coordinator takes in is told."""

    core: Core
    membership: Membership
    links: Links
    jobs: Jobs | CentreJobs
    reporter: Reporter
    records_updates: bool
    _began_s: float = 0.0  # the first round, or giving the first version
    _mixed_s: float = 0.0
    _trains_since_s: float = 0.0
    _evaluations_s: float = 0.0
    _made_s: dict[int, float] = field(default_factory=dict)  # when a coordinator made each version
    _heard_bytes: int = 0  # of what was pushed to a coordinator, or given to a worker
    _staleness: Staleness = field(default_factory=Staleness)
    _waiting_since_s: float = field(default_factory=monotonic)
    _waits_for: frozenset[PeerId] = frozenset()
    _waits_at: tuple[int, int] = (0, 0)  # in which round
    _losses_told: set[PeerId] = field(default_factory=set)
    _survey_told: bool = False
    _round_told: tuple[int, float] = (0, 0.0)

    @property
    def round(self) -> int:
        """How far this node is: a worker by the versions that it was given, all else by its own rounds."""
        return self.core.version if isinstance(self.core, WorkerCore) else self.core.round

    # ---- What it takes in

    def heard(self, message: Message) -> None:
        if isinstance(message, Push | Global):
            self._heard_bytes += len(message.payload)

    def asked(self, effect: Effect, now_s: float) -> None:
        """The core asks for this, and it is carried out now."""
        match effect:
            case Send() if isinstance(self.core, Coordinator):
                self._began_s = self._began_s or now_s  # it gives its first version
            case Train():
                self._began_s = self._began_s or now_s
                self._trains_since_s = monotonic()
            case Learn(round, staleness) if round is not None:
                self._staleness.add(staleness, monotonic() - self._trains_since_s)
            case Mix(me=me, terms=terms) if isinstance(self.core, Asynchronous):
                for term in terms:
                    if term.sender != me:
                        self._staleness.add(term.staleness, term.age_s)

    def done(self, result: Done, now_s: float) -> None:
        """A job is done, and counts."""
        self._evaluations_s += result.evaluation_s
        if result.alert:
            self.reporter.alert(result.alert, None)
        for judged in result.judged:
            self._tell_figures(judged)
        if isinstance(result.event, Mixed | Learned | Adopted | Assembled | Applied):
            self._mixed_s = now_s
        if isinstance(result.event, Applied):
            self._tell_updates(result, now_s)

    def made(self, version: int, now_s: float) -> None:
        """A coordinator has a further version."""
        self._made_s[version] = now_s
        self._made_s.pop(version - KEPT_VERSIONS, None)

    # ---- What it tells

    def tell_news(self, now_s: float) -> None:
        """Tell what has changed: neighbours found and lost, and rounds of a peer that waits for nobody."""
        self._tell_survey()
        self.tell_losses()
        if isinstance(self.core, Asynchronous | Pairwise):
            round, told_s = self._round_told
            if self.core.round > round and now_s - told_s >= TELL_S:
                self._round_told = self.core.round, now_s
                self.tell_progress(now_s)

    def tell_losses(self) -> None:
        """Tell who is newly lost, and who is there again."""
        for peer, reason in self.core.lost.items():
            if peer not in self._losses_told:
                self.reporter.event("lost", peer, reason)
        for peer in sorted(self._losses_told - self.core.lost.keys()):
            self.reporter.alert("is there again", peer)
        self._losses_told = set(self.core.lost)

    def tell_progress(self, now_s: float) -> None:
        """Tell how far this node is and whom it waits for."""
        waits_for, at = frozenset(self.core.waits_for()), (self.round, self.core.round)
        if (waits_for, at) != (self._waits_for, self._waits_at):
            self._waits_for, self._waits_at, self._waiting_since_s = waits_for, at, now_s
        traffic = self.links.traffic
        self.reporter.progress(
            Progress(
                round=self.round,
                phase=self.core.phase,
                neighbours=len(self.core.alive) - len(self.membership.awaited()),
                waits_for=tuple((peer, now_s - self._waiting_since_s) for peer in sorted(waits_for)),
                payload_bytes=traffic.payload_bytes,
                wire_bytes=traffic.wire_bytes,
                gradients=self.jobs.gradients,
            )
        )

    def tell_last_figures(self, diverged_round: int | None) -> None:
        """A run that ends early is evaluated where it ends: here and now, as no worker is left to do it."""
        if not self.jobs.judges:
            return
        stands_at = max(self.round, diverged_round or 0)
        wanted = self.reporter.round_to_judge()
        if self.reporter.judges_anywhere():
            wanted = stands_at if wanted is None else wanted
        elif wanted is None or self.jobs.is_due(wanted) or wanted != stands_at:
            return
        for judged in self.jobs.evaluate(wanted).judged:
            self._tell_figures(judged)

    def end(
        self, outcome: Outcome, diverged_round: int | None, failure: EarshotError | None, why: str, *, tidy: bool
    ) -> NodeEnd:
        """Return what the run of this node came to, by how it ended and by what was counted."""
        if outcome in ("finished", "interrupted") and diverged_round is not None:
            outcome = "diverged"
        return NodeEnd(
            outcome=outcome,
            rounds=max(self.round, diverged_round or 0),
            rounds_seconds=max(0.0, self._mixed_s - self._began_s - self._evaluations_s) if self._mixed_s else 0.0,
            short_rounds=self.core.short_rounds,
            lost=dict(self.core.lost),
            gradients=self.jobs.gradients,
            payload_bytes=self.links.traffic.payload_bytes,
            wire_bytes=self.links.traffic.wire_bytes,
            step=self.jobs.step,
            diverged_round=diverged_round,
            failure=failure,
            why=why,
            tidy=tidy,
            staleness=self._staleness,
            is_alone=bool(self.core.neighbours) and not self.membership.has_heard_anybody,
        )

    # ---- Inside

    def _tell_figures(self, judged: Judged) -> None:
        sent, heard = self.links.traffic.payload_bytes, self._heard_bytes
        begins = judged.round == 0  # what has been sent since these figures were asked for is no part of them
        self.reporter.figures(Figures(judged, 0, 0) if begins else Figures(judged, sent, heard))

    def _tell_updates(self, result: Done, now_s: float) -> None:
        """Tell how stale was what a coordinator has taken in."""
        assert isinstance(self.core, Coordinator)
        for update in result.updates if self.records_updates else ():
            made_s = self._made_s.get(self.core.version - update.staleness, self._began_s)
            self._staleness.add(update.staleness, now_s - made_s, update.distance)
            self.reporter.updated(self.core.version + 1, update, now_s - made_s)

    def _tell_survey(self) -> None:
        """Tell who was found near and who far, once it is known."""
        survey = self.core
        if not isinstance(survey, Survey) or survey.near is None or self._survey_told:
            return
        self._survey_told = True
        for peer, rtt_us in sorted(survey.rtt_us.items()):
            self.reporter.event("near" if peer in survey.near else "far", peer, f"{rtt_us / 1000:.3f} ms")
