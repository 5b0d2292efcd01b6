"""What must hold at every event of a core, whatever goes wrong: each core is watched, and what breaks a rule is said."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum, inf, isfinite
from typing import Any, Protocol

from peer.protocol.asynchronous import Asynchronous
from peer.protocol.gossip import LEAD_ROUNDS, Gossip
from peer.protocol.messages import (
    Adopt,
    Bye,
    Data,
    Done,
    Effect,
    Event,
    Finish,
    Mix,
    Mixed,
    PeerId,
    PeerJoined,
    PeerLost,
    Propose,
    Received,
    Send,
    Train,
    Trained,
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
        self._is_finished = False

    @property
    def round(self) -> int:
        return int(self.core.round)

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
            case PeerLost(peer, reason):
                self.bed.lost_any = True
                if self._last[peer] == "lost":
                    text = f"{self.where(now_s)} is told twice that {peer} is lost, now as {reason!r}"
                    raise Broken("joins and losses alternate", text)
                self._last[peer] = "lost"
            case Received(sender, Bye()):
                self._last[sender] = "left"

    def _check_incarnations(self, now_s: float) -> None:
        membership = self.bed.clockwork.processes[self.me].membership
        for peer, before in self._incarnations.items() if membership is not None else ():
            now = membership.incarnation(peer)
            if now < before:
                raise Broken("incarnations grow", f"{self.where(now_s)} goes from {before} to {now} with {peer}")
            self._incarnations[peer] = now

    def check_life(self, said: Said, now_s: float) -> None:
        if said.life < self._since_life[said.sender]:
            text = f"{self.where(now_s)} mixes {said}, who has begun life {self._since_life[said.sender]} since"
            raise Broken("an earlier life is void", text)


class WatchedGossip(Watched):
    """Rows or columns sum to 1, what is mixed is of this very round, and a deadline is kept."""

    spoke_s = inf  # when it said what it mixes next

    def note(self, event: Event, now_s: float) -> None:
        self._had_spoken = self.core.phase == "gathering"

    def look_at(self, event: Event | None, effects: list[Effect], now_s: float) -> None:
        if isinstance(event, Trained | Mixed) and self.core.phase in ("gathering", "mixing"):
            self.spoke_s = now_s
            sent = {e.to for e in effects if isinstance(e, Send) and isinstance(e.message, Data)}
            self.told = sent | {
                p for p, unsent in self.core._unsent.items() if any(self._is_at_hand(message) for message in unsent)
            }
        self._check_deadline(now_s)
        super().look_at(event, effects, now_s)

    def _is_at_hand(self, message: Any) -> bool:
        at = (message.round, message.exchange) if isinstance(message, Data) else None
        return at == (self.core.round, self.core.exchange)

    def _check_deadline(self, now_s: float) -> None:
        deadline_s = self.core.round_deadline_s
        was_stopped = self.bed.stopped_s.get(self.me, -inf) >= self.spoke_s
        if deadline_s and self.core.phase == "gathering" and not was_stopped:
            if now_s > self.spoke_s + deadline_s + 1e-9:
                text = f"{self.where(now_s)} has waited for {self.waits_for()} since {self.spoke_s:.3f} s"
                raise Broken("rounds close by their deadline", text)

    def check_mix(self, mix: Mix, now_s: float) -> None:
        here = self.core.around(mix.round)
        weights = {term.sender: term.weight for term in mix.terms}
        others = {peer: weight for peer, weight in weights.items() if peer != self.me}
        match self.core.conserves:
            case "rows":
                right = all(weight == here.weights[peer] for peer, weight in others.items())
                self.check_sum(weights.values(), now_s, "rows")
            case "mean":
                right = len(set(weights.values())) == 1
                self.check_sum(weights.values(), now_s, "rows")
            case _:
                right = all(weight == 1.0 for weight in others.values())
                self.check_sum([weights[self.me], *(here.listeners[p] for p in self.told)], now_s, "columns")
        if not right or not others.keys() <= here.weights.keys():
            raise Broken("each has the weight that W gives it", f"{self.where(now_s)} mixes with {weights}")
        for term in mix.terms:
            said: Said = term.payload
            if (said.sender, said.round, said.exchange) != (term.sender, mix.round, mix.exchange):
                raise Broken("what is mixed is of this round", f"{self.where(now_s)} mixes {said}")
            if term.sender != self.me:
                self.check_life(said, now_s)

    def check_queues(self, now_s: float) -> None:
        core: Gossip = self.core
        most = (1 + LEAD_ROUNDS) * core.exchanges
        for (round, exchange, _), _what in core._inbox.items():
            if not (core.round <= round <= core.round + LEAD_ROUNDS and exchange < core.exchanges):
                raise Broken("the inbox is bounded", f"{self.where(now_s)} keeps a message of {round}, {exchange}")
        kept = Counter(peer for _, _, peer in core._inbox)
        unsent = {peer: len(messages) for peer, messages in core._unsent.items()}
        for name, counts in (("the inbox", kept), ("what is unsent", unsent)):
            if any(count > most for count in counts.values()) or not counts.keys() <= core.neighbours:
                raise Broken(f"{name} is bounded", f"{self.where(now_s)} keeps {dict(counts)}, and {most} may be")


class WatchedAsynchronous(Watched):
    """Rows sum to 1; the newest of each neighbour is mixed, and how stale it is is told as it is."""

    def __init__(self, core: Asynchronous, bed: Surroundings) -> None:
        super().__init__(core, bed)
        self._newest: dict[PeerId, tuple[Data, int, float]] = {}  # what came, after so many mixes, when
        self._mixed_now: dict[PeerId, Data] = {}
        self._unanswered: dict[PeerId, int] = {}

    def note(self, event: Event, now_s: float) -> None:
        match event:
            case PeerJoined(peer) | PeerLost(peer):
                self._newest.pop(peer, None)
                self._unanswered.pop(peer, None)
            case Received(sender, Data() as data) if self._last[sender] == "joined":
                newest = self._newest.get(sender)
                if newest is None or data.round > newest[0].round:
                    self._newest[sender] = (data, self.mixes, now_s)
            case Received(sender, Done(round)) if self._unanswered.get(sender) == round:
                del self._unanswered[sender]
            case Mixed(rejected=rejected):
                for peer in rejected:
                    if peer in self._newest and self._newest[peer][0] is self._mixed_now.get(peer):
                        self._newest[peer] = (self._newest[peer][0], -(2**62), now_s)  # not to be offered again

    def look_at(self, event: Event | None, effects: list[Effect], now_s: float) -> None:
        super().look_at(event, effects, now_s)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Data):
                if effect.to in self._unanswered:
                    text = f"{self.where(now_s)} sends {effect} before round {self._unanswered[effect.to]} is answered"
                    raise Broken("one message is unanswered", text)
                self._unanswered[effect.to] = effect.message.round

    def check_mix(self, mix: Mix, now_s: float) -> None:
        self.check_sum((term.weight for term in mix.terms), now_s, "rows")
        bound = inf if self.core.max_staleness is None else self.core.max_staleness
        fresh = {p: what for p, what in self._newest.items() if self.mixes - what[1] <= min(bound, 2**61)}
        heard = {term.sender: term for term in mix.terms if term.sender != self.me}
        self._mixed_now = {peer: self._newest[peer][0] for peer in heard if peer in self._newest}
        for peer, term in heard.items():
            if peer not in fresh or term.payload is not fresh[peer][0].payload:
                newest = self._newest.get(peer)
                raise Broken("the newest is mixed", f"{self.where(now_s)} mixes {term.payload}, and heard {newest}")
            staleness, age_s = self.mixes - fresh[peer][1], now_s - fresh[peer][2]
            if term.staleness != staleness or abs(term.age_s - age_s) > 1e-9:
                text = f"{self.where(now_s)} takes {peer}'s as {term.staleness} rounds old, and it is {staleness}"
                raise Broken("staleness is true", text)
            self.check_life(term.payload, now_s)
        if heard.keys() != fresh.keys():
            raise Broken("who was heard is mixed", f"{self.where(now_s)} mixes {set(heard)}, and heard {set(fresh)}")

    def check_queues(self, now_s: float) -> None:
        for kept in (self.core._heard, self.core._unanswered, self.core._following):
            if not kept.keys() <= self.core.neighbours:
                raise Broken("the inbox is bounded", f"{self.where(now_s)} keeps something for {set(kept)}")


class WatchedPairwise(Watched):
    """Halves of two; whoever has proposed waits, and its state does not change meanwhile."""

    def look_at(self, event: Event | None, effects: list[Effect], now_s: float) -> None:
        super().look_at(event, effects, now_s)
        proposals = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Propose)]
        if len(proposals) > 1:
            raise Broken("one proposal at a time", f"{self.where(now_s)} sends {proposals}")

    def check_mix(self, mix: Mix, now_s: float) -> None:
        self.check_sum((term.weight for term in mix.terms), now_s, "rows")
        if [term.weight for term in mix.terms] != [0.5, 0.5]:
            raise Broken("two average", f"{self.where(now_s)} mixes {mix.terms}")
        for term in mix.terms:
            if term.sender != self.me:
                self.check_life(term.payload, now_s)

    def check_queues(self, now_s: float) -> None:
        if not self.core._line.keys() <= {self.me, *self.core.neighbours}:
            raise Broken("the inbox is bounded", f"{self.where(now_s)} keeps {self.core._line}")


def watched(core: Core, bed: Surroundings) -> Watched:
    if isinstance(core, Gossip):
        return WatchedGossip(core, bed)
    return WatchedAsynchronous(core, bed) if isinstance(core, Asynchronous) else WatchedPairwise(core, bed)


__all__ = ["Adopt", "Broken", "Said", "Train", "Watched", "watched"]
