"""The metric "rtt": peers measure how far apart they are, agree on who hears whom, and then gossip.

    measuring each candidate --PROBES echoes--> told the other one's figure --all candidates--> near ones known
    telling the near ones the own degree --all theirs known--> gossip

Of the round trips that the two sides of a pair have seen, the shortest counts: whatever else happens on the way makes
them longer. Both sides compare the same two numbers, so they agree. The weights follow from the degrees that the peers
tell each other, by the rules that `topology.weights` has for a graph that is known in advance.
"""

from collections.abc import Callable, Mapping
from math import fsum, inf
from typing import Literal

from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Alert,
    Bye,
    Command,
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

PROBES = 5
"""How often each pair is measured from each side."""

Rule = Literal["metropolis", "uniform", "lazy"]


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
        self.rtt_us: dict[PeerId, int] = {}  # as the two of a pair agree on it
        self.gossip: Gossip | None = None
        self._threshold_us = threshold_ms * 1000.0
        self._rule: Rule = rule
        self._gossip_of = gossip_of
        self._sent_s: dict[PeerId, float] = {}
        self._seen_us: dict[PeerId, list[int]] = {peer: [] for peer in candidates}
        self._told_us: dict[PeerId, int] = {}
        self._degrees: dict[PeerId, int] = {}
        self._lost: dict[PeerId, str] = {}
        self._near: tuple[PeerId, ...] | None = None
        self._early: list[Event] = []  # what gossip is to be told when it begins
        self._stopped = False

    # ---- The Core interface

    @property
    def deadline_s(self) -> float:
        return inf if self.gossip is None else self.gossip.deadline_s

    def start(self, now_s: float) -> list[Effect]:
        return self._go_on(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(sender, Probe(number)):
                return [] if self._stopped else [Send(sender, Echo(number))]
            case _ if self.gossip is not None:
                return self._with_goodbyes(self.gossip.handle(event, now_s))
            case _ if self._stopped:
                return []
            case PeerJoined(peer) if not self._seen_us[peer]:
                self._early.append(event)
                return self._probe(peer, now_s)
            case PeerLost(peer, reason):
                return self._lose(peer, reason, now_s)
            case Received(sender, message) if sender not in self._lost:
                return self._receive(sender, message, now_s)
            case Command("stop"):
                self._stopped = True
                return [*(Send(peer, Bye(0)) for peer in sorted(self.alive)), Finish("interrupted")]
        return []

    # ---- What a person may want to know: of the survey, then of the gossip

    @property
    def round(self) -> int:
        return 0 if self.gossip is None else self.gossip.round

    @property
    def phase(self) -> str:
        return "measuring" if self.gossip is None else self.gossip.phase

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
        return (
            self._unmeasured() or {peer for peer in self._near or () if peer not in self._degrees} - self._lost.keys()
        )

    def around(self, round: int) -> Neighbourhood:
        """Return the neighbourhood of a round, once it is known."""
        assert self.gossip is not None
        return self.gossip.around(round)

    # ---- Inside

    def _probe(self, peer: PeerId, now_s: float) -> list[Effect]:
        self._sent_s[peer] = now_s
        return [Send(peer, Probe(len(self._seen_us[peer])))]

    def _receive(self, sender: PeerId, message: Message, now_s: float) -> list[Effect]:
        match message:
            case Echo(number) if sender in self._sent_s and number == len(self._seen_us[sender]) < PROBES:
                self._seen_us[sender].append(max(1, round((now_s - self._sent_s[sender]) * 1e6)))
                if len(self._seen_us[sender]) < PROBES:
                    return self._probe(sender, now_s)
                told: Effect = Send(sender, Measured(min(self._seen_us[sender])))
                return [told, *self._go_on(now_s)]
            case Measured(rtt_us):
                self._told_us[sender] = rtt_us
                return self._go_on(now_s)
            case Degree(count):
                self._degrees[sender] = count
                return self._go_on(now_s)
            case Bye(rounds):
                return self._lose(sender, f"left after round {rounds}", now_s)
        self._early.append(Received(sender, message))  # a neighbour that is ahead is at most two rounds ahead
        return []

    def _lose(self, peer: PeerId, reason: str, now_s: float) -> list[Effect]:
        if peer in self._lost or peer not in self.neighbours:
            return []
        self._lost[peer] = reason
        self._early.append(PeerLost(peer, reason))
        return [Alert(f"is lost ({reason})", peer), *self._go_on(now_s)]

    def _unmeasured(self) -> set[PeerId]:
        return {
            p for p in self.neighbours if len(self._seen_us[p]) < PROBES or p not in self._told_us
        } - self._lost.keys()

    def _go_on(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._near is None and not self._unmeasured():
            there = sorted(self.neighbours - self._lost.keys())
            self.rtt_us = {peer: min(*self._seen_us[peer], self._told_us[peer]) for peer in there}
            self._near = tuple(peer for peer in there if self.rtt_us[peer] <= self._threshold_us)
            effects += [Send(peer, Degree(len(self._near))) for peer in self._near]
            if there and not self._near:
                nearest = min(self.rtt_us.values()) / 1000
                effects.append(Alert(f"no neighbour answers within the threshold; the nearest takes {nearest:.3g} ms"))
        if self._near is not None and not self._untold():
            effects += self._begin(now_s)
        return effects

    def _begin(self, now_s: float) -> list[Effect]:
        assert self._near is not None
        here = neighbourhood(self.me, {peer: self._degrees.get(peer, 1) for peer in self._near}, self._rule)
        self.gossip = self._gossip_of(here)
        effects = self.gossip.start(now_s)
        for event in self._early:
            effects += self.gossip.handle(event, now_s)
        self._early.clear()
        return self._with_goodbyes(effects)

    def _with_goodbyes(self, effects: list[Effect]) -> list[Effect]:
        """Take leave, at the end, of those that were measured and are not near."""
        if not any(isinstance(effect, Finish) for effect in effects):
            return effects
        others = self.neighbours - set(self._near or ()) - self._lost.keys()
        return [*(Send(peer, Bye(self.round)) for peer in sorted(others)), *effects]


def neighbourhood(me: PeerId, degrees: Mapping[PeerId, int], rule: Rule) -> Neighbourhood:
    """Return a peer's row and column of W from the degrees of its neighbours; its own is how many they are."""
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
