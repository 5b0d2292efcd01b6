"""The shell of the fault bed: carries out what the cores ask for, with plain numbers, and looks at what comes of it."""

from collections import Counter
from dataclasses import dataclass
from math import fsum, nan
from random import Random
from typing import Any

from peer.assembly.faults import newcomers
from peer.assembly.links import Link, LinkTable
from peer.experiment import Network
from peer.protocol.asynchronous import Asynchronous
from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Copied,
    Copy,
    Finish,
    Forget,
    Learn,
    Learned,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    PeerId,
    Received,
    Send,
    Shares,
    Train,
    Trained,
)
from peer.protocol.pairwise import Pairwise
from peer.simulator.clockwork import Clockwork
from peer.simulator.timeline import Arrival, Later
from peer.simulator.troubles import Troubles
from peer.simulator.world import World
from tests.fault_checks import Broken, Core, Said, Watched
from tests.fault_numbers import Mass, Numbers, State, is_finite, neighbourhoods, weighted_sum
from tests.fault_rules import WatchedGossip, watched
from tests.fault_schedule import HEARTBEAT_S, PATIENCE, PAYLOAD_BYTES, Schedule

MOST_EVENTS = 300_000
STUCK_S = PATIENCE.join_s + 2 * PATIENCE.dead_s
BY_FAULT = ("kill", "restart", "leave", "join")


@dataclass(frozen=True)
class Result:
    """How a run ended that broke no rule."""

    event_hash: str
    events: int
    states: tuple[str, ...]
    numbers: tuple[str, ...]  # of each peer, to the last bit; nan equals nan


class Bed:
    """A schedule as it runs."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.lives: Counter[PeerId] = Counter()
        self.lost_any = False
        self.mishaps = 0
        self.stopped_s: dict[PeerId, float] = {}
        self.trouble_s = 0.0
        self.states: dict[PeerId, State] = {}
        self.mass = Mass(schedule.peers)
        self.averaged: dict[int, Said] = {}  # id of what a peer had -> what it averaged that with
        self._kept: list[Said] = []  # so that no id is given twice
        self._around = [neighbourhoods(schedule, turn) for turn in range(schedule.turns)]
        net = schedule.links
        table = LinkTable(Link(net.latency_ms, net.bandwidth_mbps, net.loss))
        world = World(table, Network(**vars(net)), schedule.seed, resends=not schedule.round_deadline_s)
        self.clockwork = Clockwork(
            schedule.peers,
            self,
            world,
            PATIENCE if schedule.membership else None,
            newcomers(schedule.faults),
            HEARTBEAT_S,
        )
        self.troubles = Troubles(self.clockwork, schedule.faults, iter(()), self._trouble)

    def run(self) -> Result:
        clockwork = self.clockwork
        clockwork.start()
        self.troubles.advanced(-1, 0)
        while self._somebody_goes_on():
            if clockwork.is_stuck(STUCK_S):
                raise Broken("a run ends", f"nobody goes on any more: {self._who_waits()}")
            clockwork.step()
            if clockwork.now_s > self.trouble_s + self.schedule.calm_s() or clockwork.events > MOST_EVENTS:
                text = f"{clockwork.now_s:.1f} s and {clockwork.events} events, the last trouble at {self.trouble_s} s"
                raise Broken("a run ends in time", f"{text}: {self._who_waits()}")
        self._check_the_end()
        return Result(
            clockwork.event_hash,
            clockwork.events,
            tuple(process.state for process in clockwork.processes),
            tuple(repr(self.states[me].now) for me in range(self.schedule.peers)),
        )

    def _somebody_goes_on(self) -> bool:
        states = self.clockwork.states
        return states["up"] + states["stopped"] > 0 or self.troubles.brings_somebody_back

    def _who_waits(self) -> str:
        cores = [(process.state, process.core) for process in self.clockwork.processes]
        return "; ".join(
            f"{core.me} is {state}, {core.core.phase} in round {core.round} for {sorted(core.waits_for())}"  # type: ignore[attr-defined]
            for state, core in cores
            if state in ("up", "stopped")
        )

    def _trouble(self, what: str, peers: tuple[PeerId, ...]) -> None:
        self.trouble_s = self.clockwork.now_s
        self.mishaps += 1
        self.lost_any |= what in BY_FAULT
        for peer in peers if what in ("stop", "continue") else ():
            self.stopped_s[peer] = self.clockwork.now_s

    # ---- What the clockwork asks for

    def core(self, me: PeerId) -> Any:  # a `Watched`: what the clockwork only reads, it cannot set
        self.lives[me] += 1
        start = (float(me + 1), 1.0) if self.schedule.conserves == "columns" else (float(me + 1),)
        self.states[me] = State(start, start)
        return watched(self._core(me), self)

    def _core(self, me: PeerId) -> Core:
        s = self.schedule

        def around(round: int) -> Neighbourhood:
            return self._around[round % s.turns][me]

        neighbours = {a if b == me else b for a, b in s.arcs if me in (a, b)}
        if s.core == "asynchronous":
            return Asynchronous(me, s.rounds, around, max_staleness=s.max_staleness)
        if s.core == "pairwise":
            order = sorted(neighbours)
            return Pairwise(me, s.rounds, around, partners=lambda r: Random(r * 64 + me).sample(order, len(order)))
        return Gossip(
            me,
            s.rounds,
            around,
            neighbours=neighbours,
            exchanges=s.exchanges,
            conserves=s.conserves,
            round_deadline_s=s.round_deadline_s,
        )

    def step_s(self, me: PeerId, round: int) -> float:
        return self.schedule.step_s(me, round)

    def payload_bytes(self, message: Message) -> int:
        return PAYLOAD_BYTES if hasattr(message, "payload") else 0

    def begin(self, me: PeerId, train: Train) -> None:
        pass

    def train(self, me: PeerId, train: Train) -> Trained:
        if self.schedule.core == "pairwise":
            return Trained(train.round, None)
        self._learn(me, train.round)
        return Trained(train.round, self._say(me, train.round, 0))

    def learn(self, me: PeerId, learn: Learn) -> Learned:
        if learn.round is not None:
            self._learn(me, learn.round)
            self.states[me].settled = self.states[me].now
        return Learned(self._say(me, self._core_of(me).round, 0))

    def mix(self, me: PeerId, mix: Mix) -> Mixed:
        state = self.states[me]
        values = {term.sender: term.payload.value for term in mix.terms}
        if self.schedule.conserves == "columns":
            values |= {term.sender: self._take(me, term.payload) for term in mix.terms if term.sender != me}
        elif values[me] != state.now and not state.is_poisoned:
            raise Broken("nothing changes between message and mixing", f"{me} said {values[me]} and has {state.now}")
        rejected = tuple(peer for peer, what in values.items() if peer != me and not is_finite(what))
        weights = {term.sender: term.weight for term in mix.terms if term.sender not in rejected}
        if self.schedule.conserves != "columns":
            weights[me] += fsum(term.weight for term in mix.terms if term.sender in rejected)
        own = state.now
        state.now = weighted_sum([(weight, values[peer]) for peer, weight in weights.items()])
        if not is_finite(state.now) and not state.is_poisoned:
            raise Broken("nothing that is not finite is mixed", f"{me} has {state.now} after {mix}")
        if self.schedule.conserves == "columns":
            self._check_mass(me, own)
        if self.schedule.core == "pairwise":
            self._pair(me, mix)
        if mix.exchange + 1 < self.schedule.exchanges:
            return Mixed(mix.round, mix.exchange, self._say(me, mix.round, mix.exchange + 1), rejected)
        state.settled = state.now
        said = self._say(me, mix.round, 0) if self.schedule.core == "pairwise" else None
        return Mixed(mix.round, mix.exchange, said, rejected)

    def copy(self, me: PeerId, copy: Copy) -> Copied:
        return Copied(copy.to, self._params(me))

    def adopt(self, me: PeerId, adopt: Adopt) -> Adopted:
        state = self.states[me]
        self.lost_any = True
        state.now = state.settled
        state.is_poisoned = not is_finite(state.now)
        if adopt.payload is not None and is_finite(adopt.payload):
            now = (*adopt.payload, 1.0) if self.schedule.conserves == "columns" else adopt.payload
            self.states[me] = State(now, now)
        return Adopted(adopt.round)

    def forget(self, me: PeerId, forget: Forget) -> None:
        self.states[me].given.pop(forget.peer, None)
        self.states[me].taken.pop(forget.peer, None)

    def compute(self, me: PeerId, what: object) -> None:
        raise Broken("peers that gossip ask for nothing that coordinators do", f"{me} asked for {what}")

    def finished(self, me: PeerId, finish: Finish) -> None:
        pass

    def sent(self, me: PeerId, send: Send) -> None:
        pass

    def alert(self, me: PeerId, alert: Alert) -> None:
        pass

    def save(self, me: PeerId) -> None:
        pass

    def advanced(self, me: PeerId, round: int) -> None:
        self.troubles.advanced(me, round)

    # ---- Numbers

    def _core_of(self, me: PeerId) -> Watched:
        core = self.clockwork.processes[me].core
        assert isinstance(core, Watched)
        return core

    def _params(self, me: PeerId) -> Numbers:
        now = self.states[me].now
        return (now[0] / now[1],) if self.schedule.conserves == "columns" else now

    def _learn(self, me: PeerId, round: int) -> None:
        """What was learned is added to the parameter as it is now."""
        state = self.states[me]
        is_poisoned = (me, round) in self.schedule.poisoned
        found = nan if is_poisoned else float((me + 1) * (round + 3) % 7 - 3)
        state.now = (state.now[0] + found, *state.now[1:])
        if is_poisoned:
            state.is_poisoned = self.mass.is_void = True
        self.mass.add(found)

    def _say(self, me: PeerId, round: int, exchange: int) -> Said | Shares:
        state, life = self.states[me], self.lives[me]
        own = Said(state.now, me, life, round, exchange)
        self._kept.append(own)
        if self.schedule.conserves != "columns":
            return own
        shares = {}
        for peer, share in self._core_of(me).core.around(round).listeners.items():
            before = state.given.get(peer, (0.0, 0.0))
            state.given[peer] = tuple(b + share * x for b, x in zip(before, state.now, strict=True))
            shares[peer] = Said(state.given[peer], me, life, round, exchange)
        return Shares(own, shares)

    def _take(self, me: PeerId, said: Said) -> Numbers:
        state = self.states[me]
        before = state.taken.get(said.sender)
        if before is not None and before.life != said.life:
            raise Broken("a counter belongs to one life", f"{me} takes {said} after {before}")
        state.taken[said.sender] = said
        new = tuple(c - b for c, b in zip(said.value, before.value if before else (0.0, 0.0), strict=True))
        self.mass.taken(said.sender, me, new)
        return new

    def _check_mass(self, me: PeerId, own: Numbers) -> None:
        """What all hold and what is on its way is what there was and what was learned, while nobody is lost."""
        core = self._core_of(me)
        assert isinstance(core, WatchedGossip)
        listeners = core.core.around(core.round).listeners
        for peer in core.told:
            self.mass.gave(me, peer, tuple(listeners[peer] * x for x in own))
        self.mass.is_void |= self.lost_any
        holds = {peer: state.now for peer, state in self.states.items()}
        self.mass.check(holds, self.clockwork.now_s)

    def _pair(self, me: PeerId, mix: Mix) -> None:
        """Both of a pair average the same two numbers, unless one has lost the other meanwhile."""
        (own,) = (term.payload for term in mix.terms if term.sender == me)
        (other,) = (term.payload for term in mix.terms if term.sender != me)
        if id(own) in self.averaged:
            raise Broken("a state is averaged once", f"{me} averages {own} with {other} and {self.averaged[id(own)]}")
        self.averaged[id(own)] = other
        theirs = self.averaged.get(id(other))
        were_apart = self._core_of(me).losses[other.sender] or self._core_of(other.sender).losses[me]
        if theirs is not None and theirs is not own and not were_apart:
            raise Broken("averaging keeps the sum", f"{own} takes half of {other}, which took half of {theirs}")

    # ---- The end

    def _check_the_end(self) -> None:
        left = self.clockwork.processes
        for me, process in enumerate(left):
            core = self._core_of(me).core
            if process.state == "done" and core.round != self.schedule.rounds:
                raise Broken("who is done has done all rounds", f"{me} is done in round {core.round}")
        if self.schedule.core == "pairwise" and not self.lost_any:
            lonely = [said for key, said in self.averaged.items() if id(said) not in self.averaged]
            if lonely:
                raise Broken("averaging keeps the sum", f"only one side averaged, of {lonely}")
        if self.schedule.conserves == "columns" and not self.schedule.round_deadline_s:
            self.mass.check_arrived()
        self._check_that_nothing_comes_after()

    def _check_that_nothing_comes_after(self) -> None:
        """Whatever is still on its way changes nothing: neither on the clock, nor if it were handed to the cores."""
        clockwork = self.clockwork
        before = [(process.state, repr(self.states[me].now)) for me, process in enumerate(clockwork.processes)]
        clockwork.timeline.drop(Later)
        for _, _, me, thing in list(clockwork.timeline.heap):
            if isinstance(thing, Arrival) and clockwork.processes[me].state == "done":
                core = self._core_of(me).core
                effects = core.handle(Received(thing.sender, thing.what), clockwork.now_s)  # type: ignore[arg-type]
                if effects:
                    raise Broken("a finished peer is silent", f"{me} asks for {effects} after {thing}")
        while clockwork.next_s < float("inf"):
            clockwork.step()
        after = [(process.state, repr(self.states[me].now)) for me, process in enumerate(clockwork.processes)]
        if before != after:
            raise Broken("a finished run stays as it is", f"{before} became {after}")
