"""What must hold at every event of a core, whatever goes wrong. Each core is watched; what breaks a rule is said."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Any, Protocol

from peer.protocol.asynchronous import Asynchronous
from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Bye,
    Effect,
    Event,
    Finish,
    Mix,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Send,
)
from peer.protocol.pairwise import Pairwise
from peer.simulator.clockwork import Clockwork

TOLERANCE = 1e-12

Core = Gossip | Asynchronous | Pairwise


class Broken(Exception):  # noqa: N818  (it is a rule that is broken)
    """A rule does not hold. `rule` is its short name, the same for all that break it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Said:
    """A payload: numbers, and who said them when. Nothing but the checks looks at the latter."""

    value: tuple[float, ...]
    sender: PeerId
    life: int
    round: int
    exchange: int


class Surroundings(Protocol):
    """What the checks know of the bed beside the core itself."""

    clockwork: Clockwork
    lives: Counter[PeerId]
    lost_any: bool
    mishaps: int
    stopped_s: dict[PeerId, float]


class Watched:
    """A core, and what is checked at each of its events; to the clockwork it is the core."""

    def __init__(self, core: Core, bed: Surroundings) -> None:
        self.core: Any = core
        self.me = core.me
        self.bed = bed
        self.mixes = 0
        self._last = dict.fromkeys(core.neighbours, "unknown")  # told of each neighbour: joined, left or lost
        self._since_life = dict.fromkeys(core.neighbours, 0)  # the life of each that this core was told of
        self._incarnations = dict.fromkeys(core.neighbours, 0)
        self.losses: Counter[PeerId] = Counter()
        self._said_goodbye: set[PeerId] = set()
        self._is_finished = False

    @property
    def round(self) -> int:
        return int(self.core.round)

    @property
    def phase(self) -> str:
        return str(self.core.phase)

    @property
    def neighbours(self) -> set[PeerId]:
        return set(self.core.neighbours)

    @property
    def short_rounds(self) -> int:
        return int(self.core.short_rounds)

    @property
    def deadline_s(self) -> float:
        return float(self.core.deadline_s)

    def waits_for(self) -> set[PeerId]:
        return set(self.core.waits_for())

    def start(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = self.core.start(now_s)
        self.look_at(None, effects, now_s)
        return effects

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        before = self.core.round
        self.note(event, now_s)
        effects: list[Effect] = self.core.handle(event, now_s)
        if self.core.round < before:
            raise Broken("rounds never fall", f"{self.where(now_s)} was in round {before}")
        if self._is_finished and effects:
            raise Broken("a finished peer is silent", f"{self.where(now_s)} asks for {effects} after {event}")
        self._check_joins(event, now_s)
        self._check_incarnations(now_s)
        self.look_at(event, effects, now_s)
        return effects

    def where(self, now_s: float) -> str:
        return f"at {now_s:.3f} s peer {self.me}, {self.core.phase} in round {self.core.round},"

    # ---- For each kind of core

    def note(self, event: Event, now_s: float) -> None:
        """Take note of an event before the core sees it."""

    def check_mix(self, mix: Mix, now_s: float) -> None:
        raise NotImplementedError

    def check_queues(self, now_s: float) -> None:
        raise NotImplementedError

    def look_at(self, event: Event | None, effects: list[Effect], now_s: float) -> None:
        self.check_queues(now_s)
        for effect in effects:
            match effect:
                case Mix():
                    self._check_form(effect, now_s)
                    self.check_mix(effect, now_s)
                    self.mixes += 1
                case Send(to, _) if to not in self.core.neighbours:
                    raise Broken("only neighbours are talked to", f"{self.where(now_s)} sends {effect}")
                case Send(to, message):
                    if to in self._said_goodbye:
                        raise Broken("nothing follows a goodbye", f"{self.where(now_s)} sends {effect} after {event}")
                    if isinstance(message, Bye):
                        self._said_goodbye.add(to)
                case Finish():
                    self._is_finished = True

    # ---- For all of them

    def _check_form(self, mix: Mix, now_s: float) -> None:
        senders = [term.sender for term in mix.terms]
        where = f"{self.where(now_s)} mixes {[(t.weight, t.sender) for t in mix.terms]}"
        if mix.me != self.me or senders.count(self.me) != 1:
            raise Broken("the own term once", where)
        if senders != sorted(set(senders)):
            raise Broken("terms in node order", where)
        if not all(isfinite(term.weight) and term.weight >= 0.0 for term in mix.terms):
            raise Broken("weights are not negative", where)
        if self.core.rounds and mix.round >= self.core.rounds:
            raise Broken("nothing is mixed after the last round", where)

    def check_sum(self, weights: Iterable[float], now_s: float, what: str) -> None:
        weights = list(weights)
        if abs(fsum(weights) - 1.0) > TOLERANCE:
            raise Broken(f"{what} sum to 1", f"{self.where(now_s)} mixes with {weights}, in all {fsum(weights)}")

    def _check_joins(self, event: Event, now_s: float) -> None:
        match event:
            case PeerJoined(peer):
                if self._last[peer] == "joined":
                    raise Broken("joins and losses alternate", f"{self.where(now_s)} is told twice that {peer} joined")
                self._last[peer], self._since_life[peer] = "joined", self.bed.lives[peer]
                self._said_goodbye.discard(peer)
            case PeerLost(peer, reason):
                self.bed.lost_any = True
                if self._last[peer] == "lost":
                    text = f"{self.where(now_s)} is told twice that {peer} is lost, now as {reason!r}"
                    raise Broken("joins and losses alternate", text)
                self._last[peer] = "lost"
                self.losses[peer] += 1
                if self.losses[peer] > 2 * (1 + self.bed.mishaps):
                    text = f"{self.where(now_s)} has lost {peer} {self.losses[peer]} times, now as {reason!r}"
                    raise Broken("losses have a cause", f"{text}, and {self.bed.mishaps} things went wrong")
            case Received(sender, Bye()):
                self._last[sender] = "left"

    def _check_incarnations(self, now_s: float) -> None:
        clockwork = self.bed.clockwork
        membership = clockwork.processes[self.me].membership
        if membership is None:
            return
        for peer, before in self._incarnations.items():
            true = clockwork.connections.incarnation(self.me, peer)
            now = membership.incarnation(peer)
            if not before <= now <= true:
                text = f"{self.where(now_s)} goes from {before} to {now} with {peer}, and it is {true}"
                raise Broken("incarnations grow", text)
            self._incarnations[peer] = now

    def check_life(self, said: Said, now_s: float) -> None:
        if said.life < self._since_life[said.sender]:
            text = f"{self.where(now_s)} mixes {said}, who has begun life {self._since_life[said.sender]} since"
            raise Broken("an earlier life is void", text)
