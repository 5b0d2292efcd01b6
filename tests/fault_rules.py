"""The rules of each kind of core, whatever goes wrong: what is mixed with which weight, how old it is, what is kept."""

from collections import Counter
from collections.abc import Collection
from math import inf
from typing import Any

from peer.protocol.asynchronous import Asynchronous
from peer.protocol.gossip import LEAD_ROUNDS, Gossip
from peer.protocol.messages import (
    Bye,
    Data,
    Done,
    Effect,
    Event,
    Mix,
    Mixed,
    PeerId,
    PeerJoined,
    PeerLost,
    Propose,
    Received,
    Resume,
    Send,
    Train,
    Trained,
)
from tests.fault_checks import Broken, Core, Said, Surroundings, Watched


class WatchedGossip(Watched):
    """Rows or columns sum to 1, what is mixed is of this very round, and a deadline is kept."""

    def __init__(self, core: Gossip, bed: Surroundings) -> None:
        super().__init__(core, bed)
        self.spoke_s = inf  # when it said what it mixes next
        self.told: set[PeerId] = set()  # to whom
        self._came: dict[PeerId, set[tuple[int, int]]] = {}  # rounds and exchanges that each has been heard in
        self._asked: dict[PeerId, int] = {}  # the round of the `Resume` to each,
        self._answered: dict[PeerId, int] = {}  # and of that of each

    def note(self, event: Event, now_s: float) -> None:
        match event:
            case PeerJoined(peer):
                self._begin_life(peer, set())
            case PeerLost(peer):
                self._begin_life(peer, self._came.get(peer, set()))
            case Received(sender, Bye(rounds)) if rounds != self.core.rounds:  # it left early, and counts as lost
                self._begin_life(sender, self._came.get(sender, set()))
            case Received(sender, Data(round, exchange)) if self._last[sender] == "joined":
                self._came[sender].add((round, exchange))
            case Received(sender, Resume(round)):
                self._answered.setdefault(sender, round)

    def _begin_life(self, peer: PeerId, came: set[tuple[int, int]]) -> None:
        """What came in rounds that the two began together is mixed nevertheless."""
        self._came[peer] = {at for at in came if self._has_begun_with(peer, at[0])}
        self._asked.pop(peer, None)
        self._answered.pop(peer, None)

    def look_at(self, event: Event | None, effects: list[Effect], now_s: float) -> None:
        if isinstance(event, Trained | Mixed) and self.core.phase in ("gathering", "mixing"):
            self.spoke_s = now_s
            sent = {e.to for e in effects if isinstance(e, Send) and isinstance(e.message, Data)}
            self.told = sent | {
                p
                for p, unsent in self.core._outbox.waiting.items()
                if any(self._is_at_hand(message) for message in unsent)
            }
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Resume):
                self._asked[effect.to] = effect.message.round
            if isinstance(effect, Train):
                self._check_left_behind(effect.round, now_s)
        self._check_deadline(effects, now_s)
        super().look_at(event, effects, now_s)

    def _is_at_hand(self, message: Any) -> bool:
        at = (message.round, message.exchange) if isinstance(message, Data) else None
        return at == (self.core.round, self.core.exchange)

    def _check_deadline(self, effects: list[Effect], now_s: float) -> None:
        deadline_s = self.core.round_deadline_s
        was_stopped = self.bed.stopped_s.get(self.me, -inf) >= self.spoke_s
        has_waited = self.core.phase == "gathering" or any(isinstance(effect, Mix) for effect in effects)
        if deadline_s and has_waited and not was_stopped and now_s > self.spoke_s + deadline_s + 1e-9:
            text = f"{self.where(now_s)} has waited for {self.waits_for()} since {self.spoke_s:.3f} s"
            raise Broken("rounds close by their deadline", text)

    def _takes_part(self, peer: PeerId, round: int) -> bool:
        """Say whether a peer counts in a round by what the two have told each other, as far as this one knows."""
        if peer not in self._asked and peer not in self._answered:
            return True
        return round >= max(self._asked.get(peer, inf), self._answered.get(peer, inf))

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
        self._check_who_is_mixed(mix, others.keys(), now_s)
        for term in mix.terms:
            said: Said = term.payload
            if (said.sender, said.round, said.exchange) != (term.sender, mix.round, mix.exchange):
                raise Broken("what is mixed is of this round", f"{self.where(now_s)} mixes {said}")
            if term.sender != self.me:
                self.check_life(said, now_s)

    def _has_begun_with(self, peer: PeerId, round: int) -> bool:
        """Say whether a peer counts in a round, and this one has begun the first in which it does."""
        first = max(self._asked.get(peer, -1), self._answered.get(peer, -1))
        has_begun = self.core.round - (self.core.phase in ("waiting", "blocked", "fetching", "adopting")) >= first
        return self._takes_part(peer, round) and (first < 0 or has_begun)

    def _check_left_behind(self, round: int, now_s: float) -> None:
        """Nobody does rounds alone when all that are there count it only from later ones on."""
        there = [peer for peer, last in self._last.items() if last == "joined"]
        since = [max(self._asked.get(peer, -1), self._answered.get(peer, -1)) for peer in there]
        has_answered = all(peer in self._asked and peer in self._answered for peer in there)
        if there and has_answered and min(since) > round + 1:
            text = f"{self.where(now_s)} trains round {round}, and counts with {there} from {since}"
            raise Broken("who is left behind catches up", text)

    def _check_who_is_mixed(self, mix: Mix, mixed: Collection[PeerId], now_s: float) -> None:
        """Who was heard in time and takes part is mixed, and nobody who does not."""
        for peer in sorted(self.core.around(mix.round).weights.keys() - {self.me}):
            takes_part = self._takes_part(peer, mix.round)
            if peer in mixed and not takes_part:
                text = f"{self.where(now_s)} mixes {peer}, told it {self._asked} and was told {self._answered}"
                raise Broken("who is mixed counts", text)
            if takes_part and (mix.round, mix.exchange) in self._came.get(peer, ()) and peer not in mixed:
                raise Broken("who was heard is mixed", f"{self.where(now_s)} leaves out {peer}, and has heard it")

    def check_queues(self, now_s: float) -> None:
        core: Gossip = self.core
        most = (1 + LEAD_ROUNDS) * core.exchanges
        for (round, exchange, _), _what in core._inbox.items():
            if not (core.round <= round <= core.round + LEAD_ROUNDS and exchange < core.exchanges):
                raise Broken("the inbox is bounded", f"{self.where(now_s)} keeps a message of {round}, {exchange}")
        kept = Counter(peer for _, _, peer in core._inbox)
        unsent = {peer: len(messages) for peer, messages in core._outbox.waiting.items()}
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
            case Received(sender, Bye(rounds)) if rounds != self.core.rounds:  # it left early, and counts as lost
                self._newest.pop(sender, None)
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
                told, true = (term.staleness, term.age_s), (staleness, age_s)
                text = f"{self.where(now_s)} takes what {peer} said as {told} rounds and seconds old, and it is {true}"
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
