"""A peer daemon: hands what arrives to the cores and carries out what they ask for.

The thread that runs `Node.run` owns the sockets and never computes; the worker computes and never touches a socket.
Where others may average with a peer while it trains, its local steps have a worker of their own. Before a neighbour is
judged by the clock, everything that has arrived is taken in.
"""

from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from peer.assembly import Exchange
from peer.daemon.beside_jobs import RingJobs
from peer.daemon.centre_jobs import CentreJobs
from peer.daemon.jobs import Done, Jobs, Judged
from peer.daemon.journal import Journal
from peer.daemon.reporting import Figures, NodeEnd, Outcome, Progress, Reporter
from peer.daemon.worker import Worker
from peer.errors import EarshotError
from peer.network.links import Links
from peer.protocol.asynchronous import Asynchronous
from peer.protocol.coordinator import Coordinator
from peer.protocol.membership import Membership
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Applied,
    Apply,
    Assemble,
    Assembled,
    Command,
    Copy,
    Divide,
    Effect,
    Event,
    Finish,
    Forget,
    Global,
    Greeted,
    Learn,
    Learned,
    Mix,
    Mixed,
    PeerId,
    PeerJoined,
    PeerLost,
    Push,
    Received,
    Reduce,
    Send,
    Tell,
    Tick,
    Train,
    Trained,
)
from peer.protocol.pairwise import Pairwise
from peer.protocol.survey import Survey
from peer.protocol.worker import Worker as WorkerCore
from peer.record import Staleness

STOP_PATIENCE_S = 8.0
"""How long a stop waits for the local step at hand."""

TELL_S = 0.02
"""How often at most a peer that waits for nobody tells how many rounds it has done."""


@dataclass
class Node:
    """One peer, or one coordinator. `journal` notes what becomes of the state of a peer that waits for nobody;
    `records_updates`: each push that a coordinator takes in is told."""

    core: Exchange | Survey | Coordinator
    membership: Membership
    links: Links
    jobs: Jobs | CentreJobs
    reporter: Reporter
    heartbeat_s: float = 0.5
    stop_when_diverged: bool = True
    journal: Journal | None = None
    records_updates: bool = False
    _worker: Worker[Done] = field(default_factory=Worker)
    _trainer: Worker[Done] | None = None
    _practises: bool = False  # the trainer is at local steps
    _to_adopt: Adopt | None = None  # when they are over: they are void, and their momentum belongs before
    _outcome: Outcome | None = None
    _failure: EarshotError | None = None
    _diverged_round: int | None = None
    _holds: bool = False
    _held: tuple[int, Event] | None = None  # what the core is not told before the run may go on after this round
    _withheld: list[Effect] | None = None  # what a coordinator asks for while it saves itself, in order
    _made_s: dict[int, float] = field(default_factory=dict)  # when a coordinator made each version
    _why: str = ""  # it ends as failed
    _began_s: float = 0.0
    _mixed_s: float = 0.0
    _trains_since_s: float = 0.0
    _evaluations_s: float = 0.0
    _heard_bytes: int = 0  # of what was pushed to a coordinator, or given to a worker
    _waiting_since_s: float = 0.0
    _waits_for: frozenset[PeerId] = frozenset()
    _losses_told: set[PeerId] = field(default_factory=set)
    _survey_told: bool = False
    _round_told: tuple[int, float] = (0, 0.0)
    _staleness: Staleness = field(default_factory=Staleness)

    def run(self) -> NodeEnd:
        """Run until the rounds are done, the run fails, or a stop is wanted; then close everything."""
        if isinstance(self.core, Pairwise):
            self._trainer = Worker()
        for worker in self._workers:
            self.links.watch(worker.descriptor)
        now_s = monotonic()
        self._waiting_since_s = now_s
        begins_at = self._round  # a coordinator that was started again: at what it had saved
        if self.jobs.judges and (begins_at == 0 or self.jobs.is_due(begins_at)):
            self._judge(begins_at)
        self._carry_out(self.membership.start(now_s), now_s)
        self._carry_out(self.core.start(now_s), now_s)
        beat_s = now_s
        while self._outcome is None:
            due_s = min(beat_s, self.membership.deadline_s, self.core.deadline_s)
            arrived = self.links.poll(max(0.0, due_s - monotonic()))
            now_s = monotonic()
            if self.reporter.stop_is_wanted():  # before what arrived: it may be goodbyes of others who stopped, too
                self._stop(now_s)
            for event in arrived:
                self._take(event, now_s)
            for worker in self._workers:
                for result in worker.results():
                    self._take_result(result, now_s)
            for peer in self.reporter.gone():
                self._take(PeerLost(peer, "its process ended"), now_s)
            self._go_on_if_it_may(now_s)
            self._report(now_s)
            if now_s >= self.membership.deadline_s:  # everything that had arrived has been taken in
                self._carry_out(self.membership.handle(Tick(), now_s), now_s)
            if now_s >= self.core.deadline_s:
                self._carry_out(self.core.handle(Tick(), now_s), now_s)
            if now_s >= beat_s:
                self.links.beat(self._round)
                self.reporter.progress(self._progress(now_s))
                beat_s = now_s + self.heartbeat_s
        return self._end()

    @property
    def _round(self) -> int:
        """How far this node is: a worker by the versions that it was given, all else by its own rounds."""
        return self.core.version if isinstance(self.core, WorkerCore) else self.core.round

    @property
    def _workers(self) -> list[Worker[Done]]:
        return [self._worker] if self._trainer is None else [self._worker, self._trainer]

    # ---- Events

    def _take(self, event: Event | Alert, now_s: float) -> None:
        if isinstance(event, Alert):
            self.reporter.alert(event.text, event.peer)
            if event.refusal:
                self.reporter.event("refused", None, event.text)
            return
        if self.journal is not None and isinstance(event, Greeted):
            self.journal.greeted(event.peer, event.incarnation)
        if self.journal is not None and isinstance(event, Received):
            self.journal.received(event)
        if isinstance(event, Received) and isinstance(event.message, Push | Global):
            self._heard_bytes += len(event.message.payload)
        self._carry_out(self.membership.handle(event, now_s), now_s)
        if not isinstance(event, PeerLost):  # that one comes back from membership, if it is news
            self._carry_out(self.core.handle(event, now_s), now_s)

    def _take_result(self, result: Done | EarshotError, now_s: float) -> None:
        if isinstance(result, Done):
            self._note(result)
        if self._outcome is not None:
            return
        if isinstance(result, EarshotError):
            self._failure = result
            self._carry_out(self.core.handle(Command("stop"), now_s), now_s)
            self._outcome = "failed"
            return
        if result.is_saved:
            effects, self._withheld = self._withheld or [], None
            self._carry_out(effects, now_s)
            return
        if self._trainer is not None and isinstance(result.event, Trained):
            self._practises = False
            if self._to_adopt is not None:
                self._worker.submit(partial(self._peer.adopt, self._to_adopt))
                self._to_adopt = None
                return
        self._evaluations_s += result.evaluation_s
        if result.alert:
            self.reporter.alert(result.alert, None)
        for judged in result.judged:
            self._tell_figures(judged)
        if isinstance(result.event, Mixed | Learned | Adopted | Assembled | Applied):
            self._mixed_s = now_s
        if isinstance(result.event, Applied):
            self._tally_updates(result, now_s)
        if result.diverged_round is not None and self._diverged_round is None:
            self._diverged_round = result.diverged_round
            if self.stop_when_diverged:
                self._holds = self.reporter.diverged(result.diverged_round)
                if not self._holds:
                    self._carry_out(self.core.handle(Command("stop"), now_s), now_s)
                    self._outcome = "diverged"
        if result.event is None:
            return
        if self._holds_for_good:
            if isinstance(result.event, Applied):  # a coordinator stops when its update is complete
                self._held = self._diverged_round or 0, result.event
            return
        if any(judged.evaluations for judged in result.judged):
            self._held = result.judged[-1].round, result.event
        elif self.journal is None and isinstance(result.event, Trained) and result.event.round == 0:
            self._held = 0, result.event  # the figures of round 0 came before it
        else:
            self._tell(result.event, now_s)

    def _tell(self, event: Event, now_s: float) -> None:
        """Tell the core what has been done. A coordinator that is to save a version does, before it goes on."""
        effects = self.core.handle(event, now_s)
        if isinstance(event, Applied) and isinstance(self.jobs, CentreJobs) and isinstance(self.core, Coordinator):
            self._made_s[self.core.version] = now_s
            if self.jobs.saves(self.core.version, self.core.rounds):
                self._withheld = effects
                self._worker.submit(partial(self.jobs.save, self.core.present()))
                return
        self._carry_out(effects, now_s)

    def _tally_updates(self, result: Done, now_s: float) -> None:
        """Note how stale was what a coordinator has taken in."""
        assert isinstance(self.core, Coordinator)
        for update in result.updates if self.records_updates else ():
            made_s = self._made_s.get(self.core.version - update.staleness, self._began_s)
            self._staleness.add(update.staleness, now_s - made_s, update.distance)
            self.reporter.updated(self.core.version + 1, update)

    def _note(self, result: Done) -> None:
        if self.journal is not None and result.changed_state:
            self.journal.did()

    @property
    def _holds_for_good(self) -> bool:
        """Whether this node has diverged, and does nothing more before it is stopped."""
        return self._holds and self._diverged_round is not None

    def _go_on_if_it_may(self, now_s: float) -> None:
        if self._held is not None and not self._holds_for_good and self.reporter.may_go_on(self._held[0]):
            event, self._held = self._held[1], None
            self._tell(event, now_s)

    def _stop(self, now_s: float) -> None:
        """Stop; a round whose end was held back is completed."""
        effects = [] if self._held is None else self.core.handle(self._held[1], now_s)
        self._held = None
        unfinished = [effect for effect in effects if not isinstance(effect, Train)]
        self._carry_out([*unfinished, *self.core.handle(Command("stop"), now_s)], now_s)

    # ---- Effects

    def _carry_out(self, effects: list[Effect], now_s: float) -> None:
        if self._withheld is not None:
            self._withheld += effects
            return
        for effect in effects:
            match effect:
                case Send(to, message):
                    if self.journal is not None:
                        self.journal.sent(to, message)
                    if isinstance(self.core, Coordinator):
                        self._began_s = self._began_s or now_s  # it gives its first version
                    self.links.send(to, message)
                case Tell(event):
                    if isinstance(event, PeerLost) and self.membership.status(event.peer) == "dead":
                        self.links.turn_away(event.peer, event.reason)
                    if isinstance(event, PeerJoined):
                        self.reporter.event("joined", event.peer, "")
                    self._carry_out(self.core.handle(event, now_s), now_s)
                    self._report_losses()  # now: of a quick restart a loss and a return are told at once
                case Alert(text, peer):
                    self.reporter.alert(text, peer)
                case Finish(outcome, why):
                    self._outcome, self._why = self._outcome or outcome, self._why or why
                case _ if self._outcome is None:  # else the run is over
                    self._submit(effect, now_s)

    def _submit(self, effect: Effect, now_s: float) -> None:
        """Have the worker do what takes time."""
        match effect:
            case Train():
                self._began_s = self._began_s or now_s
                self._train(effect)
            case Mix() | Learn() | Adopt():
                self._change(effect)
            case Copy():
                self._worker.submit(partial(self._peer.copy, effect))
            case Forget():
                self._worker.submit(partial(self._peer.forget, effect))
            case Apply():
                self._worker.submit(partial(self._centre.apply, effect))
            case Divide():
                self._worker.submit(partial(self._ring.divide, effect))
            case Reduce():
                self._worker.submit(partial(self._ring.reduce, effect))
            case Assemble():
                self._worker.submit(partial(self._ring.assemble, effect))

    @property
    def _peer(self) -> Jobs:
        assert isinstance(self.jobs, Jobs)
        return self.jobs

    @property
    def _ring(self) -> RingJobs:
        assert isinstance(self.jobs, RingJobs)
        return self.jobs

    @property
    def _centre(self) -> CentreJobs:
        assert isinstance(self.jobs, CentreJobs)
        return self.jobs

    def _train(self, train: Train) -> None:
        if self._trainer is None:
            if self.journal is not None:
                self.journal.plans(train)
            self._worker.submit(partial(self._peer.train, train.round, self._worker.is_stopping))
            return
        if self.journal is not None:
            self.journal.begins(train)
        self._practises = True
        self._trains_since_s = monotonic()
        self._peer.learner.begin(train.round)  # here: from the state as it is, before it is mixed again
        self._trainer.submit(partial(self._peer.practise, train.round, self._trainer.is_stopping))

    def _change(self, effect: Mix | Learn | Adopt) -> None:
        """Have the state changed by the worker, one change after the other."""
        if self.journal is not None and not (isinstance(effect, Learn) and effect.round is None):
            self.journal.plans(effect)
        match effect:
            case Mix():
                self._tally(effect)
                pairwise = isinstance(self.core, Pairwise)
                self._worker.submit(partial(self._peer.mix_with_one if pairwise else self._peer.mix, effect))
            case Learn(round, staleness):
                if round is not None:
                    self._staleness.add(staleness, monotonic() - self._trains_since_s)
                self._worker.submit(partial(self._peer.learn, effect))
            case Adopt() if self._practises:
                self._to_adopt = effect
            case Adopt():
                self._worker.submit(partial(self._peer.adopt, effect))

    def _judge(self, round: int) -> None:
        worker = self._trainer or self._worker
        worker.submit(partial(self.jobs.evaluate, round, worker.is_stopping))

    def _tally(self, mix: Mix) -> None:
        if not isinstance(self.core, Asynchronous):
            return
        for term in mix.terms:
            if term.sender != mix.me:
                self._staleness.add(term.staleness, term.age_s)

    # ---- What is told

    def _judge_the_last_round(self) -> None:
        """A run that ends early is evaluated where it ends."""
        if not self.jobs.judges:
            return
        stands_at = max(self._round, self._diverged_round or 0)
        wanted = self.reporter.round_to_judge()
        if self.reporter.judges_anywhere():
            wanted = stands_at if wanted is None else wanted
        elif wanted is None or self.jobs.is_due(wanted) or wanted != stands_at:
            return
        for judged in self.jobs.evaluate(wanted).judged:
            self._tell_figures(judged)

    def _tell_figures(self, judged: Judged) -> None:
        sent, heard = self.links.traffic.payload_bytes, self._heard_bytes
        begins = judged.round == 0  # what has been sent since these figures were asked for is no part of them
        self.reporter.figures(Figures(judged, 0, 0) if begins else Figures(judged, sent, heard))

    def _report(self, now_s: float) -> None:
        """Tell what has changed: neighbours found and lost, and rounds of a peer that waits for nobody."""
        self._report_survey()
        self._report_losses()
        if not isinstance(self.core, Asynchronous | Pairwise):
            return
        round, told_s = self._round_told
        if self.core.round > round and now_s - told_s >= TELL_S:
            self._round_told = self.core.round, now_s
            self.reporter.progress(self._progress(now_s))
        for wanted in self.reporter.figures_wanted(self.core.round):
            self._judge(wanted)

    def _report_survey(self) -> None:
        """Tell who was found near and who far, once it is known."""
        survey = self.core
        if not isinstance(survey, Survey) or survey.near is None or self._survey_told:
            return
        self._survey_told = True
        for peer, rtt_us in sorted(survey.rtt_us.items()):
            self.reporter.event("near" if peer in survey.near else "far", peer, f"{rtt_us / 1000:.3f} ms")

    def _report_losses(self) -> None:
        for peer, reason in self.core.lost.items():
            if peer not in self._losses_told:
                self.reporter.event("lost", peer, reason)
        for peer in sorted(self._losses_told - self.core.lost.keys()):
            self.reporter.alert("is there again", peer)
        self._losses_told = set(self.core.lost)

    def _progress(self, now_s: float) -> Progress:
        waits_for = frozenset(self.core.waits_for())
        if waits_for != self._waits_for:
            self._waits_for, self._waiting_since_s = waits_for, now_s
        traffic = self.links.traffic
        return Progress(
            round=self._round,
            phase=self.core.phase,
            neighbours=len(self.core.alive) - len(self.membership.awaited()),
            waits_for=tuple((peer, now_s - self._waiting_since_s) for peer in sorted(waits_for)),
            payload_bytes=traffic.payload_bytes,
            wire_bytes=traffic.wire_bytes,
            gradients=self.jobs.gradients,
        )

    def _end(self) -> NodeEnd:
        assert self._outcome is not None
        self.reporter.progress(self._progress(monotonic()))
        until_s = monotonic() + STOP_PATIENCE_S
        closed = [worker.close(max(0.0, until_s - monotonic())) for worker in self._workers]
        tidy = all(closed)
        if tidy:
            for result in self._worker.left():  # what was done and not yet told
                if isinstance(result, Done):
                    self._note(result)
            self.jobs.drop_unfinished()
            self._judge_the_last_round()
        self.links.close()
        outcome = self._outcome
        if outcome in ("finished", "interrupted") and self._diverged_round is not None:
            outcome = "diverged"
        return NodeEnd(
            outcome=outcome,
            rounds=max(self._round, self._diverged_round or 0),
            rounds_seconds=max(0.0, self._mixed_s - self._began_s - self._evaluations_s) if self._mixed_s else 0.0,
            short_rounds=self.core.short_rounds,
            lost=dict(self.core.lost),
            gradients=self.jobs.gradients,
            payload_bytes=self.links.traffic.payload_bytes,
            wire_bytes=self.links.traffic.wire_bytes,
            step=self.jobs.step,
            diverged_round=self._diverged_round,
            failure=self._failure,
            why=self._why,
            tidy=tidy,
            staleness=self._staleness,
            is_alone=bool(self.core.neighbours) and not self.membership.has_heard_anybody,
        )
