"""A peer daemon: hands what arrives to the cores and carries out what they ask for.

The thread that runs `Node.run` owns the sockets and never computes; the workers compute and never touch a socket.
Before a neighbour is judged by the clock, everything that has arrived is taken in.
"""

from dataclasses import dataclass, field
from time import monotonic

from peer.daemon.account import Account, Core
from peer.daemon.centre_jobs import CentreJobs
from peer.daemon.jobs import Done, Jobs
from peer.daemon.journal import Journal
from peer.daemon.reporting import NodeEnd, Outcome, Reporter
from peer.daemon.workers import Workers
from peer.errors import EarshotError
from peer.network.links import Links
from peer.protocol.asynchronous import Asynchronous
from peer.protocol.coordinator import Coordinator
from peer.protocol.membership import Membership
from peer.protocol.messages import (
    Alert,
    Applied,
    Command,
    Effect,
    Event,
    Finish,
    Greeted,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    Tell,
    Tick,
    Train,
    Trained,
)
from peer.protocol.pairwise import Pairwise

STOP_PATIENCE_S = 8.0
"""How long a stop waits for the local step at hand."""


@dataclass
class Node:
    """One peer, or one coordinator. `journal` notes what becomes of the state of a peer that waits for nobody;
    `records_updates`: each push that a coordinator takes in is told."""

    core: Core
    membership: Membership
    links: Links
    jobs: Jobs | CentreJobs
    reporter: Reporter
    heartbeat_s: float = 0.5
    stop_when_diverged: bool = True
    journal: Journal | None = None
    records_updates: bool = False
    _workers: Workers = field(init=False)
    _account: Account = field(init=False)
    _outcome: Outcome | None = None
    _why: str = ""  # it ends as failed
    _failure: EarshotError | None = None
    _diverged_round: int | None = None
    _holds: bool = False  # when it has diverged, it waits for a stop
    _held: tuple[int, Event] | None = None  # what the core is not told before the run may go on after this round
    _withheld: list[Effect] | None = None  # while a coordinator saves a version: what it asks for as it has made it
    _later: list[Event] = field(default_factory=list)  # what its core is told when that is saved, in order

    def __post_init__(self) -> None:
        self._workers = Workers(self.jobs, self.journal, trains_apart=isinstance(self.core, Pairwise))
        self._account = Account(self.core, self.membership, self.links, self.jobs, self.reporter, self.records_updates)

    def run(self) -> NodeEnd:
        """Run until the rounds are done, the run fails, or a stop is wanted; then close everything."""
        for descriptor in self._workers.descriptors:
            self.links.watch(descriptor)
        now_s = monotonic()
        begins_at = self._account.round  # a coordinator that was started again: at what it had saved
        if self.jobs.judges and (begins_at == 0 or self.jobs.is_due(begins_at)):
            self._workers.judge(begins_at)
        self._carry_out(self.membership.start(now_s), now_s)
        self._carry_out(self.core.start(now_s), now_s)
        beat_s = now_s
        while self._outcome is None:
            due_s = min(beat_s, self.membership.deadline_s)
            if self._withheld is None:
                due_s = min(due_s, self.core.deadline_s)
            arrived = self.links.poll(max(0.0, due_s - monotonic()))
            now_s = monotonic()
            if self.reporter.stop_is_wanted():  # before what arrived: it may be goodbyes of others who stopped, too
                self._stop(now_s)
            for event in arrived:
                self._take(event, now_s)
            for result in self._workers.results():
                self._take_result(result, now_s)
            for peer in self.reporter.gone():
                self._take(PeerLost(peer, "its process ended"), now_s)
            self._go_on_if_it_may(now_s)
            self._account.tell_news(now_s)
            self._judge_what_is_wanted()
            if now_s >= self.membership.deadline_s:  # everything that had arrived has been taken in
                self._carry_out(self.membership.handle(Tick(), now_s), now_s)
            if now_s >= self.core.deadline_s and self._withheld is None:
                self._tell(Tick(), now_s)
            if now_s >= beat_s:
                self.links.beat(self._account.round)
                self._account.tell_progress(now_s)
                beat_s = now_s + self.heartbeat_s
        return self._end(self._outcome)

    # ---- Events

    def _take(self, event: Event | Alert, now_s: float) -> None:
        """Take in what the links, or the parent, tell."""
        if isinstance(event, Alert):
            self.reporter.alert(event.text, event.peer)
            if event.refusal:
                self.reporter.event("refused", None, event.text)
            return
        if self.journal is not None and isinstance(event, Greeted):
            self.journal.greeted(event.peer, event.incarnation)
        if self.journal is not None and isinstance(event, Received):
            self.journal.received(event)
        if isinstance(event, Received):
            self._account.heard(event.message)
        self._carry_out(self.membership.handle(event, now_s), now_s)
        if not isinstance(event, PeerLost):  # that one comes back from membership, if it is news
            self._tell(event, now_s)

    def _take_result(self, result: Done | EarshotError, now_s: float) -> None:
        """Take in what a worker has done."""
        if self._outcome is not None:
            return
        if isinstance(result, EarshotError):
            self._failure = result
            self._withheld = None  # a version that could not be saved is given to nobody
            self._carry_out(self.core.handle(Command("stop"), now_s), now_s)
            self._outcome = "failed"
        elif result.is_saved:
            effects, self._withheld = self._withheld or [], None
            later, self._later = self._later, []
            self._carry_out(effects, now_s)
            for event in later:
                self._tell(event, now_s)
        elif self._workers.accepts(result):
            self._account.done(result, now_s)
            if result.diverged_round is not None and self._diverged_round is None:
                self._diverge(result.diverged_round, now_s)
            if result.event is not None:
                self._tell_or_hold(result.event, result, now_s)

    def _diverge(self, round: int, now_s: float) -> None:
        self._diverged_round = round
        if self.stop_when_diverged:
            self._holds = self.reporter.diverged(round)
            if not self._holds:
                self._carry_out(self.core.handle(Command("stop"), now_s), now_s)
                self._outcome = "diverged"

    def _tell_or_hold(self, event: Event, result: Done, now_s: float) -> None:
        """Tell the core what has been done; where there were figures, not before the run may go on."""
        if self._holds:
            if isinstance(event, Applied):  # a coordinator stops when its update is complete
                self._held = self._diverged_round or 0, event
        elif any(judged.evaluations for judged in result.judged):
            self._held = result.judged[-1].round, event
        elif self.journal is None and isinstance(event, Trained) and event.round == 0:
            self._held = 0, event  # the figures of round 0 came before it
        else:
            self._tell(event, now_s)

    def _tell(self, event: Event, now_s: float) -> None:
        """Tell the core something. A coordinator that is to save a version does, before it goes on."""
        if self._withheld is not None:
            self._later.append(event)
            return
        effects = self.core.handle(event, now_s)
        if isinstance(event, Applied) and isinstance(self.jobs, CentreJobs) and isinstance(self.core, Coordinator):
            self._account.made(self.core.version, now_s)
            if self._diverged_round is None and self.jobs.saves(self.core.version, self.core.rounds):
                self._withheld = effects
                self._workers.save(self.core.present())
                return
        self._carry_out(effects, now_s)

    def _go_on_if_it_may(self, now_s: float) -> None:
        if self._held is not None and not self._holds and self.reporter.may_go_on(self._held[0]):
            event, self._held = self._held[1], None
            self._tell(event, now_s)

    def _judge_what_is_wanted(self) -> None:
        """A peer that waits for nobody is judged when the run wants it."""
        if isinstance(self.core, Asynchronous | Pairwise):
            for wanted in self.reporter.figures_wanted(self.core.round):
                self._workers.judge(wanted)

    # ---- Effects

    def _carry_out(self, effects: list[Effect], now_s: float) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    if self.journal is not None:
                        self.journal.sent(to, message)
                    self._account.asked(effect, now_s)
                    self.links.send(to, message)
                case Tell(event):
                    if isinstance(event, PeerLost) and self.membership.status(event.peer) == "dead":
                        self.links.turn_away(event.peer, event.reason)
                    if isinstance(event, PeerJoined):
                        self.reporter.event("joined", event.peer, "")
                    self._tell(event, now_s)
                    self._account.tell_losses()  # now: of a quick restart a loss and a return are told at once
                case Alert(text, peer):
                    self.reporter.alert(text, peer)
                case Finish(outcome, why):
                    self._outcome, self._why = self._outcome or outcome, self._why or why
                case _ if self._outcome is None:  # else the run is over
                    self._account.asked(effect, now_s)
                    self._workers.carry_out(effect)

    # ---- The end

    def _stop(self, now_s: float) -> None:
        """Stop; a round whose end was held back is completed."""
        held, self._held = self._held, None
        if held is not None and isinstance(held[1], Applied):
            self._tell(held[1], now_s)
        elif held is not None:
            self._carry_out([e for e in self.core.handle(held[1], now_s) if not isinstance(e, Train)], now_s)
        self._tell(Command("stop"), now_s)

    def _end(self, outcome: Outcome) -> NodeEnd:
        self._account.tell_progress(monotonic())
        tidy = self._workers.close(STOP_PATIENCE_S)
        if tidy:
            self._account.tell_last_figures(self._diverged_round)
        self.links.close()
        return self._account.end(outcome, self._diverged_round, self._failure, self._why, tidy=tidy)
