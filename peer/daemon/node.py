"""A peer daemon: hands what arrives to the cores and carries out what they ask for.

The thread that runs `Node.run` owns the sockets and never computes; the worker computes and never touches a socket.
Before a neighbour is judged by the clock, everything that has arrived is taken in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Literal, Protocol

from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.daemon.packing import Form, pack, unpack
from peer.daemon.worker import Worker
from peer.errors import EarshotError
from peer.learner import Evaluation, Learner, Said
from peer.network.links import Links
from peer.protocol.gossip import Gossip
from peer.protocol.membership import Membership
from peer.protocol.messages import (
    Alert,
    Command,
    Effect,
    Event,
    Finish,
    Mix,
    Mixed,
    PeerId,
    PeerJoined,
    PeerLost,
    Send,
    Shares,
    Tell,
    Tick,
    Train,
    Trained,
)
from peer.protocol.survey import Survey

STOP_PATIENCE_S = 8.0
"""How long a stop waits for the local step at hand."""

EventKind = Literal["joined", "near", "far", "lost", "refused"]
Outcome = Literal["finished", "interrupted", "alone", "diverged", "failed"]


@dataclass(frozen=True)
class Progress:
    """How a peer is doing."""

    round: int
    phase: str
    neighbours: int
    waits_for: tuple[tuple[PeerId, float], ...]  # (peer, for how many seconds)
    payload_bytes: int
    wire_bytes: int
    gradients: int


@dataclass(frozen=True)
class Figures:
    """An evaluation, with the parameters that were evaluated, (d,)."""

    evaluation: Evaluation
    params: Tensor
    payload_bytes: int


@dataclass
class NodeEnd:
    """What one peer's run came to."""

    outcome: Outcome
    rounds: int
    rounds_seconds: float
    short_rounds: int
    lost: dict[PeerId, str]
    gradients: int
    payload_bytes: int
    wire_bytes: int
    step: str
    diverged_round: int | None = None
    failure: EarshotError | None = None
    tidy: bool = True  # whether the worker ended in time


class Reporter(Protocol):
    """Whoever wants to know how a peer is doing: a parent process, or a person at a terminal."""

    def progress(self, progress: Progress) -> None: ...

    def figures(self, figures: Figures) -> None: ...

    def alert(self, text: str, peer: PeerId | None) -> None: ...

    def event(self, kind: EventKind, peer: PeerId | None, reason: str) -> None: ...

    def diverged(self, round: int) -> bool:
        """Take note; returns whether the node should wait for a stop instead of ending now."""
        ...

    def stop_is_wanted(self) -> bool: ...

    def round_to_judge(self) -> int | None:
        """After a stop: the round whose figures are wanted of whoever stands at its end."""
        ...

    def gone(self) -> list[PeerId]:
        """Neighbours whose process is known to have ended, since the last call."""
        ...


@dataclass(frozen=True)
class _Done:
    """A job is done: what the core is to be told, and what came along."""

    event: Event | None = None
    figures: Evaluation | None = None
    params: Tensor | None = None
    diverged_round: int | None = None
    evaluation_s: float = 0.0


@dataclass
class Node:
    """One peer. `is_due(round)` says whether it evaluates after so many rounds."""

    gossip: Gossip | Survey
    membership: Membership
    links: Links
    learner: Learner
    own_forms: tuple[Form, ...]
    wire_forms: tuple[Form, ...]
    reporter: Reporter
    is_due: Callable[[int], bool]
    heartbeat_s: float = 0.5
    stop_when_diverged: bool = True
    _worker: Worker[_Done] = field(default_factory=Worker)
    _outcome: Outcome | None = None
    _failure: EarshotError | None = None
    _diverged_round: int | None = None
    _holds: bool = False
    _began_s: float = 0.0
    _mixed_s: float = 0.0
    _evaluations_s: float = 0.0
    _waiting_since_s: float = 0.0
    _waits_for: frozenset[PeerId] = frozenset()
    _losses_told: int = 0
    _survey_told: bool = False

    def run(self) -> NodeEnd:
        """Run until the rounds are done, the run fails, or a stop is wanted; then close everything."""
        self.links.watch(self._worker.descriptor)
        now_s = monotonic()
        self._waiting_since_s = now_s
        self._worker.submit(partial(self._evaluate, 0))
        self._carry_out(self.membership.start(now_s), now_s)
        self._carry_out(self.gossip.start(now_s), now_s)
        beat_s = now_s
        while self._outcome is None:
            due_s = min(beat_s, self.membership.deadline_s, self.gossip.deadline_s)
            arrived = self.links.poll(max(0.0, due_s - monotonic()))
            now_s = monotonic()
            if self.reporter.stop_is_wanted():  # before what arrived: it may be goodbyes of others who stopped, too
                self._carry_out(self.gossip.handle(Command("stop"), now_s), now_s)
            for event in arrived:
                self._take(event, now_s)
            for result in self._worker.results():
                self._take_result(result, now_s)
            for peer in self.reporter.gone():
                self._take(PeerLost(peer, "its process ended"), now_s)
            self._report_survey()
            self._report_losses()
            if now_s >= self.membership.deadline_s:  # everything that had arrived has been taken in
                self._carry_out(self.membership.handle(Tick(), now_s), now_s)
            if now_s >= beat_s:
                self.links.beat(self.gossip.round)
                self.reporter.progress(self._progress(now_s))
                beat_s = now_s + self.heartbeat_s
        return self._end()

    # ---- Events

    def _take(self, event: Event | Alert, now_s: float) -> None:
        if isinstance(event, Alert):
            self.reporter.alert(event.text, event.peer)
            if event.refusal:
                self.reporter.event("refused", None, event.text)
            return
        self._carry_out(self.membership.handle(event, now_s), now_s)
        if not isinstance(event, PeerLost):  # that one comes back from membership, if it is news
            self._carry_out(self.gossip.handle(event, now_s), now_s)

    def _take_result(self, result: _Done | EarshotError, now_s: float) -> None:
        if self._outcome is not None:
            return
        if isinstance(result, EarshotError):
            self._failure = result
            self._carry_out(self.gossip.handle(Command("stop"), now_s), now_s)
            self._outcome = "failed"
            return
        self._evaluations_s += result.evaluation_s
        if result.figures is not None and result.params is not None:
            self.reporter.figures(Figures(result.figures, result.params, self.links.traffic.payload_bytes))
        if isinstance(result.event, Mixed):
            self._mixed_s = now_s
        if result.diverged_round is not None and self._diverged_round is None:
            self._diverged_round = result.diverged_round
            if self.stop_when_diverged:
                self._holds = self.reporter.diverged(result.diverged_round)
                if not self._holds:
                    self._carry_out(self.gossip.handle(Command("stop"), now_s), now_s)
                    self._outcome = "diverged"
        if result.event is not None and not (self._holds and self._diverged_round is not None):
            self._carry_out(self.gossip.handle(result.event, now_s), now_s)

    # ---- Effects

    def _carry_out(self, effects: list[Effect], now_s: float) -> None:
        for effect in effects:
            match effect:
                case Train() | Mix() if self._outcome is not None:
                    continue  # the run is over
                case Train(round):
                    self._began_s = self._began_s or now_s
                    self._worker.submit(partial(self._train, round))
                case Mix():
                    self._worker.submit(partial(self._mix, effect))
                case Send(to, message):
                    self.links.send(to, message)
                case Tell(event):
                    if isinstance(event, PeerLost):
                        self.links.turn_away(event.peer, event.reason)
                    if isinstance(event, PeerJoined):
                        self.reporter.event("joined", event.peer, "")
                    self._carry_out(self.gossip.handle(event, now_s), now_s)
                case Alert(text, peer):
                    self.reporter.alert(text, peer)
                case Finish(outcome):
                    self._outcome = self._outcome or outcome

    # ---- Jobs, in the worker

    def _train(self, round: int) -> _Done:
        return _Done(Trained(round, _packed(self.learner.train(round, self._worker.is_stopping))))

    def _mix(self, mix: Mix) -> _Done:
        own, wire = self.own_forms[mix.exchange], self.wire_forms[mix.exchange]
        device = self.learner.params().device
        said = [
            Said(t.weight, t.sender, unpack(t.payload, own if t.sender == mix.me else wire, device)) for t in mix.terms
        ]
        outcome = self.learner.mix(mix.exchange, said)
        payload = None if outcome.message is None else _packed(outcome.message)
        mixed = Mixed(mix.round, mix.exchange, payload, outcome.rejected, outcome.far)
        if payload is not None:
            return _Done(mixed)
        round = mix.round + 1
        diverged_round = round if self.learner.has_diverged() else None
        if not self.is_due(round):
            return _Done(mixed, diverged_round=diverged_round)
        done = self._evaluate(round)
        return replace(done, event=mixed, diverged_round=diverged_round or done.diverged_round)

    def _evaluate(self, round: int) -> _Done:
        began_s = monotonic()
        evaluation = self.learner.evaluate(round, self._worker.is_stopping)
        params = self.learner.params().detach().cpu().clone()
        diverged_round = round if self.learner.loss_has_diverged(evaluation) else None
        took_s = 0.0 if round == 0 else monotonic() - began_s  # the rounds begin after round 0
        return _Done(None, evaluation, params, diverged_round, took_s)

    # ---- What is told

    def _judge_the_last_round(self) -> None:
        """A run that ends early, because it has diverged, is evaluated where it ends."""
        round = self.reporter.round_to_judge()
        if round is None or self.is_due(round) or round != max(self.gossip.round, self._diverged_round or 0):
            return
        evaluation = self.learner.evaluate(round)
        params = self.learner.params().detach().cpu().clone()
        self.reporter.figures(Figures(evaluation, params, self.links.traffic.payload_bytes))

    def _report_survey(self) -> None:
        """Tell who was found near and who far, once it is known."""
        survey = self.gossip
        if not isinstance(survey, Survey) or survey.near is None or self._survey_told:
            return
        self._survey_told = True
        for peer, rtt_us in sorted(survey.rtt_us.items()):
            self.reporter.event("near" if peer in survey.near else "far", peer, f"{rtt_us / 1000:.3f} ms")

    def _report_losses(self) -> None:
        for peer, reason in list(self.gossip.lost.items())[self._losses_told :]:
            self._losses_told += 1
            self.reporter.event("lost", peer, reason)

    def _progress(self, now_s: float) -> Progress:
        waits_for = frozenset(self.gossip.waits_for())
        if waits_for != self._waits_for:
            self._waits_for, self._waiting_since_s = waits_for, now_s
        traffic = self.links.traffic
        return Progress(
            round=self.gossip.round,
            phase=self.gossip.phase,
            neighbours=len(self.gossip.alive) - len(self.membership.awaited()),
            waits_for=tuple((peer, now_s - self._waiting_since_s) for peer in sorted(waits_for)),
            payload_bytes=traffic.payload_bytes,
            wire_bytes=traffic.wire_bytes,
            gradients=self.learner.gradients,
        )

    def _end(self) -> NodeEnd:
        assert self._outcome is not None
        self.reporter.progress(self._progress(monotonic()))
        tidy = self._worker.close(STOP_PATIENCE_S)
        if tidy:
            self.learner.drop_unfinished()
            self._judge_the_last_round()
        self.links.close()
        outcome = self._outcome
        if outcome in ("finished", "interrupted") and self._diverged_round is not None:
            outcome = "diverged"
        return NodeEnd(
            outcome=outcome,
            rounds=max(self.gossip.round, self._diverged_round or 0),
            rounds_seconds=max(0.0, self._mixed_s - self._began_s - self._evaluations_s) if self._mixed_s else 0.0,
            short_rounds=self.gossip.short_rounds,
            lost=dict(self.gossip.lost),
            gradients=self.learner.gradients,
            payload_bytes=self.links.traffic.payload_bytes,
            wire_bytes=self.links.traffic.wire_bytes,
            step=self.learner.trainer.step,
            diverged_round=self._diverged_round,
            failure=self._failure,
            tidy=tidy,
        )


def _packed(message: Message | Shares) -> memoryview | Shares:
    """Return the bytes of a message; where it differs from listener to listener, those of each."""
    if isinstance(message, Shares):
        return Shares(pack(message.own), {peer: pack(theirs) for peer, theirs in message.to.items()})
    return pack(message)
