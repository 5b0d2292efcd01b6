"""The events engine: the daemons' own protocol cores on a virtual clock, with a `Learner` for each as a daemon has.

Local steps take what [speed] says, messages go over the links of [network], and [faults] happen. Where peers go from
round to round together, a peer is evaluated when it has completed a round; where nobody waits for anybody, all are
evaluated at one instant, when they have done so many local rounds in all. Of coordinators see `versions`.
"""

from collections.abc import Callable, Mapping
from math import inf
from time import perf_counter
from typing import Any, Literal

from torch import Tensor

from peer.algorithms.combine import is_finite
from peer.assembly import Assembly, Exchange
from peer.assembly.coordination import piece_elements
from peer.assembly.faults import newcomers, random_faults
from peer.entries import Entries, Judged
from peer.errors import TrainingError
from peer.history import Figures, earliest, peer_score
from peer.learner import Said
from peer.pieces import added, assembled, divided
from peer.protocol.coordinator import Coordinator
from peer.protocol.membership import Patience
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
from peer.protocol.worker import Worker
from peer.record import Divergence, Ended
from peer.simulator.clockwork import Clockwork
from peer.simulator.learners import Learners
from peer.simulator.shell import Core
from peer.simulator.troubles import Troubles
from peer.simulator.versions import Versions
from peer.simulator.watching import Watch
from peer.simulator.world import World
from peer.task.local import Interrupted
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


class EventsEngine:
    """All peers of one experiment on one virtual clock. `enough(entry)` says whether the run may end after it."""

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
        self.stop = stop
        self.enough = enough
        e = assembly.experiment
        n = len(assembly.names)
        self.learners = Learners(assembly, task, stop)
        self.versions = Versions(assembly, task, watch.is_due) if assembly.coordinators else None
        self.ended = Ended("events", self.learners.step, n, simulated_seconds=0.0)
        self._segments = cut(task.layout.size, n, piece_elements(task.layout)) if e.is_ring else ()
        self._entries = Entries()
        self._held: dict[PeerId, tuple[int, Event]] = {}  # who waits at the end of a round until all are judged
        self._learns_apart = e.algorithm.name == "adpsgd"  # what was learned is taken in when the core says so
        self._local_rounds = 0
        self._is_over = False
        self._partings = 0  # how many connections had ended when the entries were looked at last
        self._began_s: dict[PeerId, float] = {}  # when each began the local steps at hand
        self._is_ending = False
        self._is_cut_short = False  # by stop_after_s
        self._gave_up: dict[PeerId, Finish] = {}  # who could not go on, in that order
        self._ended_by = ""  # who has left that nobody goes on without
        self._coordinators = assembly.coordinator_ids
        world = World(assembly.links, e.network, e.seed, resends=not e.transport.round_deadline_s)
        troubled = bool(assembly.faults or e.faults.per_minute)
        t = e.transport
        patience = Patience(t.suspect_s, t.dead_s, t.join_s) if troubled else None
        self._stuck_s = t.join_s + 2 * t.dead_s if troubled else inf
        nodes, guests = len(assembly.nodes), {assembly.host_of(c): c for c in assembly.coordinator_ids}
        absent = newcomers(assembly.faults)
        absent |= {guests[host] for host in absent & guests.keys()}
        self.clockwork = Clockwork(nodes, self, world, patience, absent, t.heartbeat_s, assembly.dials)
        edges = [(a, b) for a in range(n) for b in sorted(assembly.neighbours(a)) if a < b] if troubled else []
        random = random_faults(e, assembly.names, edges)
        self.troubles = Troubles(self.clockwork, assembly.faults, random, self._tell_trouble, guests)
        self.watch.history.gossiped = assembly.shared_columns(task.layout)

    def run(self) -> Ended:
        """Run to the end, or until `stop` says so."""
        ends_s = self.assembly.experiment.stop_after_s or inf
        clockwork, began_s = self.clockwork, perf_counter()
        self._evaluations_s = 0.0
        try:
            self._evaluate_all(0)
            self._evaluations_s, began_s = 0.0, perf_counter()
            clockwork.start()
            self.troubles.advanced(-1, 0)
            while not self._is_over and self._somebody_goes_on() and not clockwork.is_stuck(self._stuck_s):
                if clockwork.next_s > ends_s:
                    clockwork.now_s = self.ended.simulated_seconds = ends_s
                    self._is_cut_short = True
                    break
                clockwork.step()
                self._look_after_step()
            self._find_out_why()
            self._evaluate_the_end()
        except (Interrupted, KeyboardInterrupt):
            self.ended.outcome = "interrupted"
        except TrainingError as error:
            self.ended.outcome, self.ended.why, self.ended.details = "failed", str(error), error.details
        self.ended.rounds_seconds = perf_counter() - began_s - self._evaluations_s
        return self._result()

    # ---- What the clockwork asks for

    def core(self, me: PeerId) -> Exchange | Coordinator:
        self._held.pop(me, None)
        if self.assembly.experiment.is_ring and self._gave_up:  # a ring does not heal
            self._is_over = True
        else:
            self._gave_up.pop(me, None)
        if self.versions is not None and me in self.assembly.coordinator_ids:
            return self.versions.begin_anew(me)
        self._entries.forget(me)
        return self.learners.begin_anew(me)

    def step_s(self, me: PeerId, round: int) -> float:
        return self.assembly.speeds.round_s(me, round)

    def payload_bytes(self, message: Message) -> int:
        return self.learners.payload_bytes(message)

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

    def mix(self, me: PeerId, mix: Mix) -> Event | None:
        learner = self.learners[me]
        outcome = learner.mix(mix.exchange, [Said(t.weight, t.sender, t.payload) for t in mix.terms])
        if self.assembly.experiment.is_asynchronous:
            return self._mixed_without_waiting(me, mix, outcome.rejected)
        mixed = Mixed(mix.round, mix.exchange, outcome.message, outcome.rejected, outcome.far)
        if outcome.message is None:
            return self._completed(me, mix.round + 1, mixed)
        return mixed

    def learn(self, me: PeerId, learn: Learn) -> Learned:
        learner = self.learners[me]
        if learn.round is None:
            return Learned(learner.say())
        message = learner.learn()
        learner.settle()
        self.ended.staleness.add(learn.staleness, self.clockwork.now_s - self._began_s[me])
        self._did_a_local_round(me)
        return Learned(message)

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
        self._close_entries()  # somebody who was waited for is beyond
        return Adopted(adopt.round)

    def forget(self, me: PeerId, forget: Forget) -> None:
        self.learners[me].forget(forget.peer)

    def compute(self, me: PeerId, what: Apply | Divide | Reduce | Assemble) -> Event | None:
        match what:
            case Apply():
                return self._apply(me, what)
            case Divide(round, weight, payload):
                pieces = divided(payload["x"], weight, self._segments)
                return Divided(round, tuple(tuple({"x": piece} for piece in segment) for segment in pieces))
            case Reduce(round, segment, piece, heard, own):
                return Reduced(round, segment, piece, {"x": added(heard["x"], own["x"])})
            case Assemble():
                return self._assemble(me, what)

    def finished(self, me: PeerId, finish: Finish) -> None:
        if finish.outcome in ("failed", "alone"):
            self._gave_up.setdefault(me, finish)
        elif finish.outcome == "interrupted" and (self.assembly.experiment.is_ring or me in self._coordinators):
            self._ended_by = self._ended_by or self.assembly.nodes[me]

    def sent(self, me: PeerId, send: Send) -> None:
        self.ended.payload_bytes_sent += self.payload_bytes(send.message)

    def alert(self, me: PeerId, alert: Alert) -> None:
        names = self.assembly.nodes
        text = alert.text if alert.peer is None else f"{names[alert.peer]} {alert.text}"
        self.watch.on_alert(names[me], text)

    def advanced(self, me: PeerId, round: int) -> None:
        if self.versions is not None:
            self.versions.save(self.clockwork.processes[me].core)
        if not self.assembly.experiment.is_asynchronous:
            self.troubles.advanced(me, round)

    # ---- Rounds in step

    def _completed(self, me: PeerId, round: int, mixed: Mixed | Assembled) -> Event | None:
        """A peer has completed a round. Where the run may end with it, nobody goes on before all are judged."""
        self.ended.simulated_seconds = self.clockwork.now_s  # the goodbyes that follow are not part of it
        if self.learners[me].has_diverged():
            self._diverged(Divergence(round, self.assembly.names[me]))
        if not self.watch.is_due(round):
            return mixed
        self._entries.add(me, round, self._judged(me, round))
        if self.enough is not None:
            self._held[me] = round, mixed
        self._close_entries()
        return None if self.enough is not None else mixed

    def _there(self) -> dict[PeerId, int]:
        """Return who is waited for, and how many rounds each has completed: not who stands still and was given up."""
        there: set[str] = {"up", "done"} if self._is_ending else {"up", "done", "stopped"}
        peers = self.clockwork.processes[: len(self.assembly.names)]
        return {
            me: process.core.version if isinstance(process.core, Worker) else process.core.round
            for me, process in enumerate(peers)
            if process.state in there and not (process.state == "stopped" and self.clockwork.is_given_up(me))
        }

    def _close_entries(self) -> None:
        """Give the history an entry for each round after which all have been judged who are waited for."""
        self._partings = self.clockwork.connections.ended
        for round, judged in self._entries.complete(self._there()):
            entries = self.watch.history.entries
            if not entries or round > entries[-1]["round"]:
                self._add_entry(round, judged)
            self._release(round)

    def _release(self, round: int) -> None:
        """Let those go on who were held at the end of a round; if the run is over, the round is completed, and that is
        all."""
        for me, (at, mixed) in list(self._held.items()):
            if at <= round:
                del self._held[me]
                self.clockwork.tell(me, mixed, is_last=self._is_over)

    # ---- A ring

    def _assemble(self, me: PeerId, what: Assemble) -> Event | None:
        mean = assembled([[piece["x"] for piece in segment] for segment in what.pieces], what.total)
        if not is_finite({"x": mean}):
            return Assembled(what.round, is_applied=False)
        self.learners[me].take(mean)
        return self._completed(me, what.round + 1, Assembled(what.round))

    # ---- Versions of coordinators

    def _apply(self, me: PeerId, apply: Apply) -> Event | None:
        """Make a coordinator's next version. Where the run may end with it, all wait until it is judged."""
        versions, version = self.versions, apply.version + 1
        assert versions is not None
        self.ended.simulated_seconds = self.clockwork.now_s
        applied, updates = versions.apply(me, apply, self.clockwork.now_s)
        for update in updates if versions.records_updates else ():
            self.ended.staleness.add(update.staleness, update.age_s, update.distance)
            row = update.row(self.assembly.nodes)
            self.watch.on_event("update", simulated_seconds=self.clockwork.now_s, **row)
        if versions.has_diverged(me):
            self._diverged(Divergence(version, self.assembly.nodes[me]))
        if not self.watch.is_due(version):
            return applied
        if self.enough is not None and not versions.judges_copies:
            self._held[me] = version, applied
        x = versions.whole(version)
        if x is not None and not versions.judges_copies:
            entries = self.watch.history.entries
            if version > entries[-1]["round"]:  # one that is made again after a fall has been judged
                self._add_entry(version, self._judged_as(x, version))
            self._release(version)
        return None if self.enough is not None and not versions.judges_copies else applied

    def _adopt_given(self, me: PeerId, adopt: Adopt, versions: Versions) -> Adopted:
        """A worker goes on from what its coordinators gave; where copies are judged, it is judged before and after."""
        learner, version = self.learners[me], adopt.version
        assert version is not None
        assert adopt.payload is not None
        given = versions.parcels.given_by_all(adopt.payload)
        missed, is_due = versions.due_copies(me, version)
        if missed:
            judged = self._judged(me, missed[-1])
            for round in missed:
                self._entries.add(me, round, judged)
        if is_finite({"x": given}):
            learner.take(given, version, is_answer=adopt.is_answer)
        else:
            self.watch.on_alert(self.assembly.names[me], "was given parameters that are not finite; it keeps its own")
        if versions.judges_copies:
            if learner.has_diverged():
                self._diverged(Divergence(version, self.assembly.names[me]))
            if is_due:
                self._entries.add(me, version, self._judged(me, version))
            self.clockwork.at(self.clockwork.now_s, self._close_entries)  # when it is known how far this one is
        return Adopted(adopt.round)

    # ---- Rounds of peers that do not wait

    def _mixed_without_waiting(self, me: PeerId, mix: Mix, rejected: tuple[PeerId, ...]) -> Mixed:
        if self._learns_apart:
            return Mixed(mix.round, mix.exchange, self.learners[me].say(), rejected)
        for term in mix.terms:
            if term.sender != me:
                self.ended.staleness.add(term.staleness, term.age_s)
        self._did_a_local_round(me)
        return Mixed(mix.round, mix.exchange, None, rejected)

    def _did_a_local_round(self, me: PeerId) -> None:
        self._local_rounds += 1
        self.ended.simulated_seconds = self.clockwork.now_s
        n, e = len(self.assembly.names), self.assembly.experiment
        if self.learners[me].has_diverged():
            self._diverged(Divergence(self._local_rounds // n, self.assembly.names[me]))
        round, over = divmod(self._local_rounds, n)
        if over:
            return
        for peer in range(n):
            self.troubles.advanced(peer, round)
        if self.watch.is_due(round):
            self._evaluate_all(round)
        if e.rounds and round >= e.rounds:
            self._is_over = True

    # ---- Figures

    def _judged(self, me: PeerId, round: int) -> Judged:
        began_s = perf_counter()
        learner = self.learners[me]
        figures = Figures(peer_score(learner.evaluate(round, self.stop)), learner.params().numpy().copy())
        self._evaluations_s += perf_counter() - began_s
        return Judged(figures, self._now())

    def _judged_as(self, x: Tensor, round: int) -> dict[PeerId, Judged]:
        """Return the figures of a coordinator's parameters, (d,), for every peer that is there."""
        assert self.versions is not None
        began_s = perf_counter()
        evaluations, params = self.versions.verdict.of(x, round, self.stop), x.numpy().copy()
        self._evaluations_s += perf_counter() - began_s
        there = self._there() or range(len(evaluations))
        return {me: Judged(Figures(peer_score(evaluations[me]), params), self._now()) for me in there}

    def _now(self) -> dict[str, Any]:
        return {"payload_bytes_sent": self.ended.payload_bytes_sent, "simulated_seconds": self.clockwork.now_s}

    def _evaluate_all(self, round: int) -> None:
        """Evaluate everybody who is there, as they are now."""
        if self.versions is not None and not self.versions.judges_copies:
            self._add_entry(round, self._judged_as(self.versions.now(), round))
            return
        there = self._there()
        if there:
            self._add_entry(round, {me: self._judged(me, round) for me in there})

    def _add_entry(self, round: int, judged: Mapping[PeerId, Judged]) -> None:
        """The entry is of the time at which the last of them was judged."""
        at = {name: max(found.at[name] for found in judged.values()) for name in next(iter(judged.values())).at}
        for last in self.watch.history.entries[-1:]:  # of a slow peer that is gone since, say
            at = {name: max(value, last[name]) for name, value in at.items()}
        self.ended.simulated_seconds = max(self.ended.simulated_seconds or 0.0, at["simulated_seconds"])
        if self.versions is not None and self.assembly.experiment.record.params == "every":
            at["coordinator"] = self.versions.listed(round)
        found = self.watch.evaluated(round, {me: one.figures for me, one in judged.items()}, at)
        if found is not None:
            self._diverged(found)
        if self.enough is not None and self.enough(self.watch.history.entries[-1]):
            self._is_over = True

    def _diverged(self, found: Divergence) -> None:
        self.ended.diverged = earliest(self.ended.diverged, found, self.assembly.nodes)

    # ---- The end

    def _look_after_step(self) -> None:
        if self.stop():
            raise Interrupted
        found = self.ended.diverged
        if found is not None and self.assembly.experiment.record.on_divergence == "stop":
            # a diverged run ends when every peer has done the round in which it was seen
            self._is_over |= self.assembly.experiment.is_asynchronous or self._slowest() >= found.round
        if self._partings != self.clockwork.connections.ended:  # somebody may have been given up
            self._close_entries()
        if self.watch.wants_pace():
            self.watch.pace(self._rounds(), self._share(), self.clockwork.now_s, self.clockwork.events)

    def _somebody_goes_on(self) -> bool:
        states = self.clockwork.states
        return states["up"] > 0 or (self.troubles.brings_somebody_back and not states["done"])

    def _find_out_why(self) -> None:
        """The clock stands still: all are done, or nobody is left, or nobody can go on."""
        processes = self.clockwork.processes
        if self._is_broken:
            self.ended.outcome, self.ended.why = self._why_some_gave_up()
            return
        if self._is_over or self._is_cut_short:
            return
        if self._ended_by:
            self.ended.outcome, self.ended.why = "interrupted", f"{self._ended_by} has left, and the others with it"
            return
        if self._gave_up and self._rounds() != self.assembly.experiment.rounds:
            self.ended.outcome, self.ended.why = self._why_some_gave_up()
            return
        if self._somebody_goes_on():
            waiting = [self._what_is_waited_for(process.core) for process in processes if process.state == "up"]
            self.ended.outcome, self.ended.why = "failed", f"nobody goes on any more: {'; '.join(waiting[:4])}"
        elif not self.clockwork.states["done"]:
            self.ended.outcome, self.ended.why = "failed", "nobody is left to go on: all were killed, stopped or left"

    @property
    def _is_broken(self) -> bool:
        """Whether the run as a whole cannot go on: a ring of which a member could not, or without any coordinator or
        worker that could."""
        gave_up, peers = self._gave_up.keys(), range(len(self.assembly.names))
        is_ring = self.assembly.experiment.is_ring
        return bool(gave_up) and (is_ring or bool(gave_up & set(self._coordinators)) or gave_up >= set(peers))

    def _why_some_gave_up(self) -> tuple[Literal["failed", "alone"], str]:
        """The first who could not go on says why."""
        names, (me, finish) = self.assembly.nodes, next(iter(self._gave_up.items()))
        if finish.outcome == "failed":
            return "failed", f"{names[me]}: {finish.why}"
        alone = ", ".join(names[me] for me, finish in self._gave_up.items() if finish.outcome == "alone")
        return "alone", f"{alone} never heard a coordinator within {self.assembly.experiment.transport.join_s:g} s"

    def _what_is_waited_for(self, core: Core) -> str:
        names = self.assembly.nodes
        if core.me in self._held:
            return f"{names[core.me]} waits for others to be judged after round {self._held[core.me][0]}"
        others = ", ".join(names[peer] for peer in sorted(core.waits_for()))
        return f"{names[core.me]} in round {core.round} waits for {others}"

    def _slowest(self) -> int:
        if self.versions is not None:
            return self._rounds()
        return min(self._there().values(), default=min(p.core.round for p in self.clockwork.processes))

    def _rounds(self) -> int:
        if self.versions is not None:
            return min(self.clockwork.processes[me].core.round for me in self.assembly.coordinator_ids)
        if self.assembly.experiment.is_asynchronous:
            return self._local_rounds // len(self.assembly.names)
        return self._slowest()

    def _share(self) -> float | None:
        e = self.assembly.experiment
        shares = [self._rounds() / e.rounds] if e.rounds else []
        if e.stop_after_s:
            shares.append(self.clockwork.now_s / e.stop_after_s)
        return max(shares, default=None)

    def _evaluate_the_end(self) -> None:
        """A run that ends before its last round is evaluated where it ends, each peer at its last completed round."""
        self._is_ending = not self._somebody_goes_on()
        self._close_entries()
        entries = self.watch.history.entries
        judged = entries[-1]["round"] if entries else -1
        round = max(self._rounds(), judged) if self._is_cut_short else self._rounds()
        is_early = self._is_cut_short or self.ended.diverged is not None
        if self.ended.outcome != "finished" or not is_early or judged > round:
            return
        if judged == round and (round == 0 or not self._is_cut_short):
            return
        self.learners.drop_unfinished()
        self._evaluate_all(round)

    def _tell_trouble(self, what: str, peers: tuple[PeerId, ...]) -> None:
        names = [self.assembly.nodes[peer] for peer in peers]
        self.watch.on_event(what, peers=names, simulated_seconds=self.clockwork.now_s)
        self.watch.on_alert(" and ".join(names) or "network", HAPPENED[what])
        self._close_entries()

    def _result(self) -> Ended:
        ended, processes, names = self.ended, self.clockwork.processes, self.assembly.nodes
        self.learners.drop_unfinished()
        if ended.diverged is not None and ended.outcome == "finished":
            ended.outcome = "diverged"
        ended.history = self.watch.history.entries
        ended.rounds = max([self._rounds(), *(entry["round"] for entry in ended.history[-1:])])
        ended.events, ended.event_hash = self.clockwork.events, self.clockwork.event_hash
        ended.short_rounds = sum(process.core.short_rounds for process in processes)
        ended.gradients = self.learners.gradients
        there = {me for me, process in enumerate(processes) if process.state in ("up", "done")}
        away = set(range(len(processes))) - there - self._gave_up.keys()  # who could not go on is not lost
        if self._ended_by:  # nor are those who have left together
            away = {me for me in away if self.clockwork.processes[me].core.phase != "done"}
        ended.lost = [names[me] for me in sorted(away)]
        peers = range(len(self.assembly.names))
        ended.params = [None if me in away else self.learners[me].params().numpy() for me in peers]
        if self.versions is not None:
            ended.coordinator = self.versions.now().numpy()
        if self.watch.on_model is not None:
            for me in sorted(self.learners.each.keys() & there):
                self.watch.on_model(names[me], self.learners[me].tensors())
        return ended
