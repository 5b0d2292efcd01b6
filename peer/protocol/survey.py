"""The metric "rtt": peers measure how far apart they are, agree on who hears whom, and then gossip.

    waiting --all candidates joined or lost--> measuring
    measuring each candidate --PROBES echoes, and told the other one's figure--> near or far
    all near, far or lost: telling the near ones the own degree --all theirs known--> gossip

Of the round trips that the two sides of a pair have seen, the shortest counts: whatever else happens on the way makes
them longer. Both sides compare the same two numbers, so they agree. The weights follow from the degrees that the peers
tell each other, by the rules that `topology.weights` has for a graph that is known in advance.

Who is far is of no further concern: it may be done and go home before the own survey is over, or die, and is no loss.
A candidate that is lost before it was measured is no neighbour; a near one that is lost later leaves its weight to the
peer itself, as in gossip.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Literal

from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Alert,
    Bye,
    Command,
    Data,
    Degree,
    Echo,
    Effect,
    Event,
    Finish,
    Measured,
    Message,
    Neighbourhood,
    PeerId,
    PeerJoined,
    PeerLost,
    Probe,
    Received,
    Send,
)

PROBES = 10
"""How often each pair is measured from each side, one probe after the other. Of fewer, all are easily disturbed by
what else two busy machines do."""

ROUNDING = 1e-9
"""A pair counts as at the threshold if only rounding puts it beyond."""

Rule = Literal["metropolis", "uniform", "lazy"]


@dataclass
class _Candidate:
    """What is known of a peer that may become a neighbour."""

    joined: bool = False
    sent_s: float = 0.0  # when the last probe went out
    seen_us: list[int] = field(default_factory=list)
    told_us: int | None = None  # the shortest that it has seen itself
    degree: int | None = None
    ahead: Data | None = None  # its first message: it cannot go on before it has heard this peer's

    @property
    def rtt_us(self) -> int | None:
        """The round trip that the two agree on; None while one of them still measures."""
        if self.told_us is None or len(self.seen_us) < PROBES:
            return None
        return min(*self.seen_us, self.told_us)


class Survey:
    """One peer's half of the survey, and after it of the gossip among those that are near.

    `candidates` are the graph's own neighbours; near are those at a round trip of at most `threshold_ms`. `gossip_of`
    makes the core that follows.
    """

    def __init__(
        self,
        me: PeerId,
        candidates: frozenset[PeerId],
        threshold_ms: float,
        rule: Rule,
        gossip_of: Callable[[Neighbourhood], Gossip],
    ) -> None:
        self.me = me
        self.neighbours = set(candidates)
        self.near: tuple[PeerId, ...] | None = None  # until it is known
        self.gossip: Gossip | None = None
        self._threshold_ms = threshold_ms
        self._rule: Rule = rule
        self._gossip_of = gossip_of
        self._candidates = {peer: _Candidate() for peer in sorted(candidates)}
        self._lost: dict[PeerId, str] = {}
        self._stopped = False

    # ---- The Core interface

    @property
    def deadline_s(self) -> float:
        return inf if self.gossip is None else self.gossip.deadline_s

    def start(self, now_s: float) -> list[Effect]:
        return self._go_on(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.gossip is not None:
            return self._with_goodbyes(self.gossip.handle(event, now_s))
        if self._stopped:
            return []
        match event:
            case PeerJoined(peer) if not self._candidates[peer].joined:
                self._candidates[peer].joined = True
                return [self._probe(peer, now_s)]
            case PeerLost(peer, reason):
                return self._lose(peer, reason, now_s)
            case Received(sender, message) if sender in self._candidates and sender not in self._lost:
                return self._receive(sender, message, now_s)
            case Command("stop"):
                self._stopped = True
                return [*(Send(peer, Bye(0)) for peer in sorted(self.alive)), Finish("interrupted")]
        return []

    # ---- What a person may want to know: of the survey, then of the gossip

    @property
    def rtt_us(self) -> dict[PeerId, int]:
        """The round trips to the candidates that were measured, as the two of each pair agree on them."""
        found = ((peer, candidate.rtt_us) for peer, candidate in self._candidates.items())
        return {peer: rtt_us for peer, rtt_us in found if rtt_us is not None}

    @property
    def round(self) -> int:
        return 0 if self.gossip is None else self.gossip.round

    @property
    def phase(self) -> str:
        if self.gossip is not None:
            return self.gossip.phase
        return "waiting" if self._awaited() else "measuring"

    @property
    def short_rounds(self) -> int:
        return 0 if self.gossip is None else self.gossip.short_rounds

    @property
    def lost(self) -> dict[PeerId, str]:
        return self._lost if self.gossip is None else self._lost | self.gossip.lost

    @property
    def alive(self) -> set[PeerId]:
        return self.neighbours - self._lost.keys() if self.gossip is None else self.gossip.alive

    def waits_for(self) -> set[PeerId]:
        """The peers without which this one does not go on at the moment."""
        if self.gossip is not None:
            return self.gossip.waits_for()
        return self._awaited() or self._unmeasured() or self._untold()

    def around(self, round: int) -> Neighbourhood:
        """Return the neighbourhood of a round, once it is known."""
        assert self.gossip is not None
        return self.gossip.around(round)

    # ---- Measuring

    def _awaited(self) -> set[PeerId]:
        return {peer for peer, it in self._candidates.items() if not it.joined} - self._lost.keys()

    def _unmeasured(self) -> set[PeerId]:
        return {peer for peer, it in self._candidates.items() if it.rtt_us is None} - self._lost.keys()

    def _untold(self) -> set[PeerId]:
        return {peer for peer in self.near or () if self._candidates[peer].degree is None} - self._lost.keys()

    def _is_within(self, rtt_us: int) -> bool:
        return rtt_us <= self._threshold_ms * 1000.0 * (1.0 + ROUNDING)

    def _is_far(self, peer: PeerId) -> bool:
        rtt_us = self._candidates[peer].rtt_us
        return rtt_us is not None and not self._is_within(rtt_us)

    def _probe(self, peer: PeerId, now_s: float) -> Effect:
        candidate = self._candidates[peer]
        candidate.sent_s = now_s
        return Send(peer, Probe(len(candidate.seen_us)))

    def _receive(self, sender: PeerId, message: Message, now_s: float) -> list[Effect]:
        match message:
            case Probe(number):
                return [Send(sender, Echo(number))]
            case Echo(number):
                return self._measure(sender, number, now_s)
            case Measured(rtt_us):
                self._candidates[sender].told_us = rtt_us
                return self._go_on(now_s)
            case Degree(count):
                self._candidates[sender].degree = count
                return self._go_on(now_s)
            case Data():
                return self._keep(sender, message, now_s)
            case Bye(rounds):
                return self._lose(sender, f"left after round {rounds}", now_s)
        return []  # a heartbeat says nothing that the next one does not say

    def _measure(self, peer: PeerId, number: int, now_s: float) -> list[Effect]:
        candidate = self._candidates[peer]
        if not candidate.joined or not number == len(candidate.seen_us) < PROBES:
            return []
        candidate.seen_us.append(round((now_s - candidate.sent_s) * 1e6))
        if len(candidate.seen_us) < PROBES:
            return [self._probe(peer, now_s)]
        return [Send(peer, Measured(min(candidate.seen_us))), *self._go_on(now_s)]

    def _keep(self, sender: PeerId, message: Data, now_s: float) -> list[Effect]:
        """Keep the first message of a neighbour that is ahead; a right one sends no other, so this is all there is."""
        candidate = self._candidates[sender]
        at = (message.round, message.exchange)
        if candidate.rtt_us is None or candidate.ahead is not None or at != (0, 0):
            return self._lose(sender, f"sent a message of round {message.round} out of turn", now_s)
        candidate.ahead = message
        return []

    def _lose(self, peer: PeerId, reason: str, now_s: float) -> list[Effect]:
        if peer in self._lost or peer not in self._candidates or self._is_far(peer):
            return []
        self._lost[peer] = reason
        return [Alert(f"is lost ({reason})", peer), *self._go_on(now_s)]

    # ---- From the survey to gossip

    def _go_on(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.near is None and not self._unmeasured():
            effects += self._choose()
        if self.near is not None and not self._untold():
            effects += self._begin(now_s)
        return effects

    def _choose(self) -> list[Effect]:
        there = {peer: rtt_us for peer, rtt_us in self.rtt_us.items() if peer not in self._lost}
        self.near = tuple(peer for peer, rtt_us in there.items() if self._is_within(rtt_us))
        effects: list[Effect] = [Send(peer, Degree(len(self.near))) for peer in self.near]
        far = [rtt_us / 1000 for peer, rtt_us in there.items() if peer not in self.near]
        if far:
            effects.append(Alert(self._who_is_far(len(there), min(far))))
        return effects

    def _who_is_far(self, there: int, nearest_ms: float) -> str:
        within = f"within {self._threshold_ms:g} ms"
        nearest = f"{nearest_ms:.3g} ms" if nearest_ms < 100 else f"{nearest_ms:.0f} ms"
        if not self.near:
            return f"nobody answers {within}, the nearest takes {nearest}: it trains alone"
        return f"{len(self.near)} of {there} answer {within} and are its neighbours, the others take {nearest} or more"

    def _begin(self, now_s: float) -> list[Effect]:
        assert self.near is not None
        degrees = {peer: self._candidates[peer].degree or 1 for peer in self.near}  # 1: of one that is lost by now
        self.gossip = self._gossip_of(neighbourhood(self.me, degrees, self._rule))
        effects = self.gossip.start(now_s)
        for peer in self.near:
            effects += self._tell(self.gossip, peer, now_s)
        # Who is lost was said when it was.
        return self._with_goodbyes([effect for effect in effects if not isinstance(effect, Alert)])

    def _tell(self, gossip: Gossip, peer: PeerId, now_s: float) -> list[Effect]:
        """Tell gossip of a neighbour what is known of it; its message first, for what the dead have said counts."""
        ahead, lost = self._candidates[peer].ahead, self._lost.get(peer)
        news: list[Event] = [] if ahead is None else [Received(peer, ahead)]
        news.append(PeerJoined(peer) if lost is None else PeerLost(peer, lost))
        return [effect for event in news for effect in gossip.handle(event, now_s)]

    def _with_goodbyes(self, effects: list[Effect]) -> list[Effect]:
        """Take leave of those that are far, at the end: or they would look for this peer when it is gone."""
        if not any(isinstance(effect, Finish) for effect in effects):
            return effects
        far = self.neighbours - set(self.near or ()) - self._lost.keys()
        return [*(Send(peer, Bye(self.round)) for peer in sorted(far)), *effects]


def neighbourhood(me: PeerId, degrees: Mapping[PeerId, int], rule: Rule) -> Neighbourhood:
    """Return a peer's row and column of W from the degrees of its neighbours; its own is how many they are.

    The same as `topology.mixing_matrix` has for the whole graph, to the last bit.
    """
    own = len(degrees)

    def weight(receiver_degree: int, sender_degree: int) -> float:
        match rule:
            case "uniform":
                return 1.0 / (receiver_degree + 1)
            case "lazy":
                return 0.5 / (1 + max(receiver_degree, sender_degree))
        return 1.0 / (1 + max(receiver_degree, sender_degree))

    heard = {peer: weight(own, degree) for peer, degree in degrees.items()}
    kept = fsum((1.0, *(-w for w in heard.values())))
    return Neighbourhood({me: kept} | heard, {peer: weight(degree, own) for peer, degree in degrees.items()})
