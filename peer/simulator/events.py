"""The events engine: the daemons' own protocol cores on a virtual clock, with a `Learner` for each as a daemon has.

Local steps take what [speed] says, messages go over the links of [network], and [faults] happen. Where peers go from
round to round together, a peer is evaluated when it has completed a round; where nobody waits for anybody, all are
evaluated at one instant, when they have done so many local rounds in all.
"""

from collections.abc import Callable
from math import inf
from time import perf_counter

from peer.assembly import Assembly, Exchange
from peer.assembly.faults import newcomers, random_faults
from peer.errors import TrainingError
from peer.history import Figures, earliest, peer_score
from peer.learner import Said
from peer.protocol.membership import Patience
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Copied,
    Copy,
    Forget,
    Learn,
    Learned,
    Message,
    Mix,
    Mixed,
    PeerId,
    Send,
    Train,
    Trained,
)
from peer.protocol.pairwise import Pairwise
from peer.record import Divergence, Ended
from peer.simulator.clockwork import Clockwork
from peer.simulator.learners import Learners
from peer.simulator.troubles import Troubles
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
        self.ended = Ended("events", self.learners.step, n, simulated_seconds=0.0)
        self._open: dict[int, dict[PeerId, Figures]] = {}  # round -> peer -> figures, until all are in
        self._held: dict[PeerId, tuple[int, Mixed]] = {}  # who waits at the end of a round until all are judged
        self._local_rounds = 0
        self._is_over = False
        self._adoptions = 0
        self._began_s: dict[PeerId, float] = {}  # when each began the local steps at hand
        self._is_cut_short = False  # by stop_after_s
        world = World(assembly.links, e.network, e.seed, resends=not e.transport.round_deadline_s)
        troubled = bool(assembly.faults or e.faults.per_minute)
        t = e.transport
        patience = Patience(t.suspect_s, t.dead_s, t.join_s) if troubled else None
        self._stuck_s = t.join_s + 2 * t.dead_s if troubled else inf
        self.clockwork = Clockwork(n, self, world, patience, newcomers(assembly.faults), t.heartbeat_s)
        edges = [(a, b) for a in range(n) for b in sorted(assembly.neighbours(a)) if a < b] if troubled else []
        random = random_faults(e, assembly.names, edges)
        self.troubles = Troubles(self.clockwork, assembly.faults, random, self._tell_trouble)
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
            else:
                self._find_out_why()
            self._evaluate_the_end()
        except (Interrupted, KeyboardInterrupt):
            self.ended.outcome = "interrupted"
        except TrainingError as error:
            self.ended.outcome, self.ended.why, self.ended.details = "failed", str(error), error.details
        self.ended.rounds_seconds = perf_counter() - began_s - self._evaluations_s
        return self._result()

    # ---- What the clockwork asks for

    def core(self, me: PeerId) -> Exchange:
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
        self.learners.practise(me)
        learns_later = isinstance(self.clockwork.processes[me].core, Pairwise)
        return Trained(train.round, None if learns_later else self.learners[me].learn())

    def mix(self, me: PeerId, mix: Mix) -> Mixed | None:
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
        self._adoptions += 1
        name = self.assembly.names[me]
        if not self.learners[me].adopt(adopt.payload):
            self.watch.on_alert(name, "was sent parameters that are not finite; it keeps its own")
        whose = "its own parameters" if adopt.payload is None else "a neighbour's parameters"
        self.watch.on_alert(name, f"goes on in round {adopt.round}, from {whose}")
        self._close_entries()  # somebody who was waited for is beyond
        return Adopted(adopt.round)

    def forget(self, me: PeerId, forget: Forget) -> None:
        self.learners[me].forget(forget.peer)

    def sent(self, me: PeerId, send: Send) -> None:
        self.ended.payload_bytes_sent += self.payload_bytes(send.message)

    def alert(self, me: PeerId, alert: Alert) -> None:
        names = self.assembly.names
        text = alert.text if alert.peer is None else f"{names[alert.peer]} {alert.text}"
        self.watch.on_alert(names[me], text)

    def advanced(self, me: PeerId, round: int) -> None:
        if not self.assembly.experiment.is_asynchronous:
            self.troubles.advanced(me, round)
            self._close_entries()

    # ---- Rounds in step

    def _completed(self, me: PeerId, round: int, mixed: Mixed) -> Mixed | None:
        """A peer has completed a round. Where the run may end with it, nobody goes on before all are judged."""
        self.ended.simulated_seconds = self.clockwork.now_s  # the goodbyes that follow are not part of it
        if self.learners[me].has_diverged():
            self._diverged(Divergence(round, self.assembly.names[me]))
        if not self.watch.is_due(round):
            return mixed
        self._evaluate(me, round)
        if self.enough is None:
            return mixed
        self._held[me] = round, mixed
        self._close_entries()
        return None

    def _close_entries(self, final: bool = False) -> None:
        """Give the history an entry for each round that all have evaluated which are still there and are not beyond."""
        for round in sorted(self._open):
            figures, processes, states = self._open[round], self.clockwork.processes, self.clockwork.states
            if not final and not self._adoptions and len(figures) < states["up"] + states["stopped"] + states["done"]:
                return  # nobody has gone beyond a round without having done it
            there = {me: process for me, process in enumerate(processes) if process.state in ("up", "stopped", "done")}
            missing = any(me not in figures and process.core.round < round for me, process in there.items())
            if missing and not final:
                return
            del self._open[round]
            entries = self.watch.history.entries
            kept = {me: found for me, found in figures.items() if me in there}
            is_cut_off = missing and self.ended.outcome == "finished"  # the run ends while others are still before it
            if kept and not is_cut_off and not (entries and round <= entries[-1]["round"]):
                self._add_entry(round, kept)
            self._release(round)

    def _release(self, round: int) -> None:
        for me, (at, mixed) in list(self._held.items()):
            if at <= round:
                del self._held[me]
                if self._is_over:  # the round is completed, and that is all
                    self.clockwork.processes[me].core.handle(mixed, self.clockwork.now_s)
                else:
                    self.clockwork.tell(me, mixed)

    # ---- Rounds of peers that do not wait

    def _mixed_without_waiting(self, me: PeerId, mix: Mix, rejected: tuple[PeerId, ...]) -> Mixed:
        if isinstance(self.clockwork.processes[me].core, Pairwise):
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

    def _figures(self, me: PeerId, round: int) -> Figures:
        began_s = perf_counter()
        learner = self.learners[me]
        found = Figures(peer_score(learner.evaluate(round, self.stop)), learner.params().numpy().copy())
        self._evaluations_s += perf_counter() - began_s
        return found

    def _evaluate(self, me: PeerId, round: int) -> None:
        self._open.setdefault(round, {})[me] = self._figures(me, round)

    def _evaluate_all(self, round: int) -> None:
        """Evaluate everybody who is there, as they are now."""
        there = [me for me, p in enumerate(self.clockwork.processes) if p.state in ("up", "stopped", "done")]
        if there:
            self._add_entry(round, {me: self._figures(me, round) for me in there})

    def _add_entry(self, round: int, figures: dict[PeerId, Figures]) -> None:
        now_s = self.clockwork.now_s
        found = self.watch.evaluated(round, figures, self.ended.payload_bytes_sent, now_s)
        if found is not None:
            self._diverged(found)
        if self.enough is not None and self.enough(self.watch.history.entries[-1]):
            self._is_over = True

    def _diverged(self, found: Divergence) -> None:
        self.ended.diverged = earliest(self.ended.diverged, found, self.assembly.names)

    # ---- The end

    def _look_after_step(self) -> None:
        if self.stop():
            raise Interrupted
        found = self.ended.diverged
        if found is not None and self.assembly.experiment.record.on_divergence == "stop":
            # a diverged run ends when every peer has done the round in which it was seen
            self._is_over |= self.assembly.experiment.is_asynchronous or self._slowest() >= found.round
        if self.watch.wants_pace():
            self.watch.pace(self._rounds(), self._share(), self.clockwork.now_s, self.clockwork.events)

    def _somebody_goes_on(self) -> bool:
        states = self.clockwork.states
        return states["up"] > 0 or (self.troubles.brings_somebody_back and not states["done"])

    def _find_out_why(self) -> None:
        """The clock stands still: all are done, or nobody is left, or nobody can go on."""
        processes = self.clockwork.processes
        if self._is_over:
            return
        if not any(process.state == "done" for process in processes) and not self._somebody_goes_on():
            self.ended.outcome, self.ended.why = "failed", "every peer's process ended before its time"
        elif self._somebody_goes_on():
            waiting = [p.core for p in processes if p.state == "up"]
            names = self.assembly.names
            shown = "; ".join(
                f"{names[core.me]} in round {core.round} waits for {', '.join(names[p] for p in core.waits_for())}"
                for core in waiting[:4]
            )
            self.ended.outcome, self.ended.why = "failed", f"nobody goes on any more: {shown}"

    def _slowest(self) -> int:
        rounds = [p.core.round for p in self.clockwork.processes if p.state in ("up", "stopped", "done")]
        return min(rounds, default=min(p.core.round for p in self.clockwork.processes))

    def _rounds(self) -> int:
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
        self._close_entries(final=True)
        round, entries = self._rounds(), self.watch.history.entries
        judged = entries[-1]["round"] if entries else -1
        is_early = self._is_cut_short or self.ended.diverged is not None
        if self.ended.outcome != "finished" or not is_early or judged > round:
            return
        if judged == round and not self._is_cut_short:
            return
        self.learners.drop_unfinished()
        self._evaluate_all(round)

    def _tell_trouble(self, what: str, peers: tuple[PeerId, ...]) -> None:
        names = [self.assembly.names[peer] for peer in peers]
        self.watch.on_event(what, peers=names, simulated_seconds=self.clockwork.now_s)
        self.watch.on_alert(" and ".join(names) or "network", HAPPENED[what])
        self._close_entries()

    def _result(self) -> Ended:
        ended, processes, names = self.ended, self.clockwork.processes, self.assembly.names
        self.learners.drop_unfinished()
        if ended.diverged is not None and ended.outcome == "finished":
            ended.outcome = "diverged"
        ended.rounds = self._rounds()
        ended.history = self.watch.history.entries
        ended.events, ended.event_hash = self.clockwork.events, self.clockwork.event_hash
        ended.short_rounds = sum(process.core.short_rounds for process in processes)
        ended.gradients = self.learners.gradients
        away = {me for me, process in enumerate(processes) if process.state not in ("up", "done")}
        ended.lost = [names[me] for me in sorted(away)]
        ended.params = [None if me in away else self.learners[me].params().numpy() for me in range(len(names))]
        if self.watch.on_model is not None:
            for me in sorted(self.learners.each.keys() - away):
                self.watch.on_model(names[me], self.learners[me].tensors())
        return ended
