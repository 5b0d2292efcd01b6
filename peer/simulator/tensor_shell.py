"""What the cores of the events engine ask for, carried out with tensors: a learner for each peer, and the coordinators'
versions.

Each answer is what the core is told next. Whatever completes a round or makes a version goes by `judging`, which may
keep the core waiting.
"""

from collections.abc import Callable

from peer.algorithms.combine import is_finite
from peer.assembly import Assembly, Exchange
from peer.assembly.coordination import piece_elements
from peer.learner import Said
from peer.pieces import added, assembled, divided
from peer.protocol.coordinator import Coordinator
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Apply,
    Assemble,
    Assembled,
    Copied,
    Copy,
    Divide,
    Divided,
    Event,
    Finish,
    Forget,
    Learn,
    Learned,
    Message,
    Mix,
    Mixed,
    PeerId,
    Reduce,
    Reduced,
    Send,
    Shares,
    Train,
    Trained,
)
from peer.protocol.ring import cut
from peer.record import Ended
from peer.simulator.departures import Departures
from peer.simulator.judging import Judging
from peer.simulator.learners import Learners
from peer.simulator.progress import Progress
from peer.simulator.stage import clockwork_of, troubles_of
from peer.simulator.versions import Timed, Versions
from peer.simulator.watching import Watch
from peer.task.task import Task

HAPPENED = {
    "kill": "is killed",
    "restart": "is started again",
    "stop": "stands still",
    "continue": "goes on",
    "leave": "leaves",
    "join": "joins",
    "cut": "can no longer hear each other",
    "heal": "can hear each other again",
    "partition": "the peers are parted into groups",
}


class TensorShell:
    """The `Shell` of one experiment, and the clockwork whose cores it serves.

    `ended` collects what the run comes to. `stop` is asked between local steps; of `enough` see `Judging`.
    """

    def __init__(
        self,
        assembly: Assembly,
        task: Task,
        watch: Watch,
        stop: Callable[[], bool],
        enough: Callable[[dict[str, object]], bool] | None = None,
    ) -> None:
        self.assembly = assembly
        self.watch = watch
        self.learners = Learners(assembly, task, stop)
        self.versions = Versions(assembly, task, watch.is_due) if assembly.coordinators else None
        self.departures = Departures(assembly)
        self.ended = Ended("events", self.learners.step, len(assembly.names), simulated_seconds=0.0)
        is_ring = assembly.experiment.is_ring
        self._segments = cut(task.layout.size, len(assembly.names), piece_elements(task.layout)) if is_ring else ()
        self._learns_apart = assembly.experiment.algorithm.name == "adpsgd"  # taken in when the core says so
        self._seen: set[PeerId] = set()  # who has had a core before
        self._began_s: dict[PeerId, float] = {}  # when each began the local steps at hand
        self.clockwork = clockwork_of(assembly, self)
        self.progress = Progress(assembly, self.clockwork)
        self.judging = Judging(
            watch, self.learners, self.versions, self.clockwork, self.progress, self.ended, stop, enough
        )
        self.troubles = troubles_of(assembly, self.clockwork, self._tell_trouble)

    # ---- The Shell interface: cores come and go

    def core(self, me: PeerId) -> Exchange | Coordinator:
        if me in self._seen:
            self.judging.begin_anew(me)
            self.progress.is_over |= self.departures.begin_anew(me)
        self._seen.add(me)
        if self.versions is not None and me in self.assembly.coordinator_ids:
            return self.versions.begin_anew(me)
        return self.learners.begin_anew(me)

    def save(self, me: PeerId) -> None:
        if self.versions is not None:
            self.versions.save(self.clockwork.processes[me].core)

    def advanced(self, me: PeerId, round: int) -> None:
        if not self.assembly.experiment.is_asynchronous:
            self.troubles.advanced(me, round)

    def finished(self, me: PeerId, finish: Finish) -> None:
        self.departures.note(me, finish)

    # ---- Messages, and what a person is told

    def payload_bytes(self, message: Message) -> int:
        return self.learners.payload_bytes(message)

    def sent(self, me: PeerId, send: Send) -> None:
        self.ended.payload_bytes_sent += self.payload_bytes(send.message)

    def alert(self, me: PeerId, alert: Alert) -> None:
        names = self.assembly.nodes
        text = alert.text if alert.peer is None else f"{names[alert.peer]} {alert.text}"
        self.watch.on_alert(names[me], text)

    def _tell_trouble(self, what: str, peers: tuple[PeerId, ...]) -> None:
        names = [self.assembly.nodes[peer] for peer in peers]
        self.watch.on_event(what, peers=names, simulated_seconds=self.clockwork.now_s)
        self.watch.on_alert(" and ".join(names) or "network", HAPPENED[what])
        self.judging.close_entries()

    # ---- Local steps

    def step_s(self, me: PeerId, round: int) -> float:
        return self.assembly.speeds.round_s(me, round)

    def begin(self, me: PeerId, train: Train) -> None:
        self.learners[me].begin(train.round)
        self._began_s[me] = self.clockwork.now_s

    def train(self, me: PeerId, train: Train) -> Trained:
        """Do the local steps at the time at which they are done: until then the run may have ended."""
        learner = self.learners[me]
        self.learners.practise(me)
        if self._learns_apart:
            return Trained(train.round, None)
        message = learner.learn()
        if self.versions is None:
            return Trained(train.round, message)
        assert not isinstance(message, Shares)
        learner.settle()
        pushed = zip(self.assembly.coordinator_ids, self.versions.parcels.push(message["u"]), strict=True)
        return Trained(train.round, Shares(None, dict(pushed)))

    def learn(self, me: PeerId, learn: Learn) -> Learned:
        learner = self.learners[me]
        if learn.round is None:
            return Learned(learner.say())
        message = learner.learn()
        learner.settle()
        self.ended.staleness.add(learn.staleness, self.clockwork.now_s - self._began_s[me])
        self._did_a_local_round(me)
        return Learned(message)

    # ---- Neighbours

    def mix(self, me: PeerId, mix: Mix) -> Event | None:
        learner = self.learners[me]
        outcome = learner.mix(mix.exchange, [Said(t.weight, t.sender, t.payload) for t in mix.terms])
        if self.assembly.experiment.is_asynchronous:
            return self._mixed_without_waiting(me, mix, outcome.rejected)
        mixed = Mixed(mix.round, mix.exchange, outcome.message, outcome.rejected, outcome.far)
        if outcome.message is None:
            return self.judging.completed(me, mix.round + 1, mixed)
        return mixed

    def _mixed_without_waiting(self, me: PeerId, mix: Mix, rejected: tuple[PeerId, ...]) -> Mixed:
        if self._learns_apart:
            return Mixed(mix.round, mix.exchange, self.learners[me].say(), rejected)
        for term in mix.terms:
            if term.sender != me:
                self.ended.staleness.add(term.staleness, term.age_s)
        self._did_a_local_round(me)
        return Mixed(mix.round, mix.exchange, None, rejected)

    def _did_a_local_round(self, me: PeerId) -> None:
        """A peer that waits for nobody has done a round of its own; every n-th of them all completes a round."""
        self.ended.simulated_seconds = self.clockwork.now_s
        self.progress.local_rounds += 1
        n, rounds = len(self.assembly.names), self.assembly.experiment.rounds
        round, over = divmod(self.progress.local_rounds, n)
        self.judging.look_for_divergence(me, round)
        if over:
            return
        for peer in range(n):
            self.troubles.advanced(peer, round)
        if self.watch.is_due(round):
            self.judging.evaluate_all(round)
        if rounds and round >= rounds:
            self.progress.is_over = True

    def copy(self, me: PeerId, copy: Copy) -> Copied:
        return Copied(copy.to, self.learners[me].copy())

    def adopt(self, me: PeerId, adopt: Adopt) -> Adopted:
        if self.versions is not None:
            return self._adopt_given(me, adopt, self.versions)
        name = self.assembly.names[me]
        if not self.learners[me].adopt(adopt.payload):
            self.watch.on_alert(name, "was sent parameters that are not finite; it keeps its own")
        whose = "its own parameters" if adopt.payload is None else "a neighbour's parameters"
        self.watch.on_alert(name, f"goes on in round {adopt.round}, from {whose}")
        self.judging.close_entries()  # somebody who was waited for is beyond
        return Adopted(adopt.round)

    def forget(self, me: PeerId, forget: Forget) -> None:
        self.learners[me].forget(forget.peer)

    # ---- Coordinators and rings

    def compute(self, me: PeerId, what: Apply | Divide | Reduce | Assemble) -> Event | None:
        match what:
            case Apply():
                assert self.versions is not None
                return self._apply(me, what, self.versions)
            case Divide(round, weight, payload):
                pieces = divided(payload["x"], weight, self._segments)
                return Divided(round, tuple(tuple({"x": piece} for piece in segment) for segment in pieces))
            case Reduce(round, segment, piece, heard, own):
                return Reduced(round, segment, piece, {"x": added(heard["x"], own["x"])})
            case Assemble():
                return self._assemble(me, what)

    def _apply(self, me: PeerId, apply: Apply, versions: Versions) -> Event | None:
        """Make a coordinator's next version. Where the run may end with it, all wait until it is judged."""
        self.ended.simulated_seconds = self.clockwork.now_s
        applied, updates = versions.apply(me, apply, self.clockwork.now_s)
        if versions.records_updates:
            self._note_updates(updates)
        return self.judging.made(versions, me, apply.version + 1, applied)

    def _note_updates(self, updates: list[Timed]) -> None:
        for update in updates:
            self.ended.staleness.add(update.staleness, update.age_s, update.distance)
            row = update.row(self.assembly.nodes)
            self.watch.on_event("update", simulated_seconds=self.clockwork.now_s, **row)

    def _adopt_given(self, me: PeerId, adopt: Adopt, versions: Versions) -> Adopted:
        """A worker goes on from what its coordinators gave; where copies are judged, it is judged before and after."""
        version = adopt.version
        assert version is not None
        assert adopt.payload is not None
        given = versions.parcels.given_by_all(adopt.payload)
        missed, is_due = versions.due_copies(me, version)
        self.judging.gone_past(me, missed)
        if is_finite({"x": given}):
            self.learners[me].take(given, version, is_answer=adopt.is_answer)
        else:
            self.watch.on_alert(self.assembly.names[me], "was given parameters that are not finite; it keeps its own")
        if versions.judges_copies:
            self.judging.copied(me, version, is_due)
        return Adopted(adopt.round)

    def _assemble(self, me: PeerId, what: Assemble) -> Event | None:
        mean = assembled([[piece["x"] for piece in segment] for segment in what.pieces], what.total)
        if not is_finite({"x": mean}):
            return Assembled(what.round, is_applied=False)
        self.learners[me].take(mean)
        return self.judging.completed(me, what.round + 1, Assembled(what.round))
