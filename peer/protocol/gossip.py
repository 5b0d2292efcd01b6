"""Synchronous gossip: in each round train, send to the listeners, wait for all that are heard, mix.

    waiting --all neighbours joined or lost--> training --Trained--> gathering --all heard--> mixing
       mixing --Mixed, another exchange--> gathering
       mixing --Mixed, end of the round--> blocked   (until the listeners are near enough: see `_may_send`)
    blocked --all sent--> training, and after the last round closing --all said Bye or are lost--> done

A peer that is late is waited for; `PeerLost`, an early `Bye` and a message that no right peer sends take a neighbour
out. What a lost neighbour would have had of the weights goes to the peer itself, so every row goes on summing to 1; a
symmetric matrix stays symmetric. Where it is the columns that sum to 1, a peer keeps what a lost listener would have
been given; where W is the mean of all, the mean of all that are there takes its place. What one peer says to another
must arrive once and in order, heartbeats apart.

Who hears whom may change from round to round. Under the metric "model" it depends on the parameters instead: two peers
that are found too far apart skip each other for `look_again` rounds. Both find the same, from the same two messages;
should rounding part them, the `Skip` of the one tells the other.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import fsum, inf
from typing import Literal

from peer.protocol.messages import (
    Alert,
    Bye,
    Command,
    Data,
    Done,
    Effect,
    Event,
    Finish,
    Heartbeat,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    Payload,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    Shares,
    Skip,
    Term,
    Train,
    Trained,
)

Phase = Literal["waiting", "training", "blocked", "gathering", "mixing", "closing", "done"]

LEAD_ROUNDS = 1
"""How many rounds ahead of a listener's own a message may reach it. It bounds every inbox: a peer stashes at most
the messages of its round and of the next. Where peers hear each other in every round it holds by itself; elsewhere
`Done` tells how far a listener is."""

SKIPPED = Skip(-1)
"""Stands in the inbox where a neighbour has skipped this peer."""


class Gossip:
    """One peer's half of synchronous gossip.

    `rounds` is how many to do, 0 for until stopped. `around(round)` is the peer's neighbourhood in that round, and
    `neighbours` are all that it ever has to do with: None for those of round 0. `conserves` says which sums of the
    mixing matrix stay 1 when a peer is lost: "rows", "columns", or, where all weights are equal, rows that stay the
    "mean" of who is heard. Where `look_again` is 1, nobody skips anybody; more goes with one exchange
    a round, with sums of rows, and with neighbours who hear each other in every round.
    """

    def __init__(
        self,
        me: PeerId,
        rounds: int,
        around: Callable[[int], Neighbourhood],
        *,
        neighbours: Iterable[PeerId] | None = None,
        exchanges: int = 1,
        conserves: Literal["rows", "columns", "mean"] = "rows",
        look_again: int = 1,
    ) -> None:
        self.me = me
        self.rounds = rounds
        self.exchanges = exchanges
        self.conserves = conserves
        self.look_again = look_again
        self.deadline_s = inf
        self.phase: Phase = "waiting"
        self.round = 0
        self.exchange = 0
        self.short_rounds = 0
        self.lost: dict[PeerId, str] = {}
        self.around = around
        first = around(0)
        self.neighbours = (set(first.weights) | set(first.listeners) if neighbours is None else set(neighbours)) - {me}
        self._awaited = set(self.neighbours)
        self._closed: set[PeerId] = set()
        self._own: Payload = None
        self._told: set[PeerId] = set()  # the listeners to whom the message at hand went
        self._inbox: dict[tuple[int, int, PeerId], Payload] = {}
        self._completed = dict.fromkeys(self.neighbours, -1)  # the last round that each is known to have mixed
        self._unsent: dict[PeerId, list[Data | Skip]] = {}
        self._away_until: dict[PeerId, int] = {}  # the round in which two peers look at each other again
        self._may_part = exchanges == 1 and conserves == "rows"
        self._short = False

    # ---- The Core interface

    def start(self, now_s: float) -> list[Effect]:
        return self._begin_when_all_are_known()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.phase == "done":
            return []
        match event:
            case PeerJoined(peer):
                self._awaited.discard(peer)
                return self._begin_when_all_are_known()
            case PeerLost(peer, reason):
                return self._lose(peer, reason)
            case Received(sender, message):
                return self._receive(sender, message)
            case Trained(round, payload):
                assert self.phase == "training"
                assert round == self.round
                return self._offer(payload)
            case Mixed():
                return self._mixed(event)
            case Command("stop"):
                return self._stop()
        return []

    # ---- What a person may want to know

    @property
    def alive(self) -> set[PeerId]:
        """Neighbours that are neither lost nor done."""
        return self.neighbours - self.lost.keys() - self._closed

    def waits_for(self) -> set[PeerId]:
        """The peers without which this one does not go on at the moment."""
        match self.phase:
            case "waiting":
                return set(self._awaited)
            case "gathering":
                return self._missing()
            case "blocked":
                return set(self._unsent)
            case "closing":
                return self.alive
        return set()

    # ---- Rounds

    def _begin_when_all_are_known(self) -> list[Effect]:
        if self.phase != "waiting" or self._awaited:
            return []
        self.phase = "training"
        return [Train(0)]

    def _offer(self, payload: Payload | Shares) -> list[Effect]:
        """Send the payload of this round and exchange to all listeners, and see whether all have been heard."""
        self._own = payload.own if isinstance(payload, Shares) else payload
        self._told = set(self.around(self.round).listeners) - self.lost.keys() - self._closed
        self.phase = "gathering"
        effects: list[Effect] = []
        for peer in sorted(self._told):
            data = Data(self.round, self.exchange, payload.to[peer] if isinstance(payload, Shares) else payload)
            effects += self._send(peer, Skip(self.round) if self._is_away(peer) else data)
        return effects + self._mix_when_all_are_heard()

    def _send(self, peer: PeerId, message: Data | Skip) -> list[Effect]:
        if self._may_send(peer, message):
            return [Send(peer, message)]
        self._unsent.setdefault(peer, []).append(message)
        return []

    def _may_send(self, peer: PeerId, message: Data | Skip) -> bool:
        return peer not in self._unsent and message.round <= self._completed[peer] + 1 + LEAD_ROUNDS

    def _is_away(self, peer: PeerId) -> bool:
        return self.round < self._away_until.get(peer, 0)

    def _missing(self) -> set[PeerId]:
        heard = {p for (r, k, p) in self._inbox if (r, k) == (self.round, self.exchange)}
        return set(self.around(self.round).weights) - {self.me} - self.lost.keys() - heard

    def _mix_when_all_are_heard(self) -> list[Effect]:
        if self.phase != "gathering" or self._missing():
            return []
        self.phase = "mixing"
        here, inbox = self.around(self.round), self._take_out()
        heard = {peer: what for peer, what in inbox.items() if what is not SKIPPED}
        self._short |= len(inbox) < len(here.weights.keys() - {self.me})
        if self.conserves == "mean":
            kept = 1.0 / (len(heard) + 1)
            weight: Mapping[PeerId, float] = dict.fromkeys(heard, kept)
        else:
            kept = own_weight(self.me, here, heard, self._told, self.conserves)
            weight = here.weights if self.conserves == "rows" else dict.fromkeys(heard, 1.0)
        terms = [Term(kept, self.me, self._own), *(Term(weight[peer], peer, what) for peer, what in heard.items())]
        return [Mix(self.round, self.exchange, self.me, tuple(sorted(terms, key=lambda term: term.sender)))]

    def _take_out(self) -> dict[PeerId, Payload]:
        """Empty the inbox of this round and exchange; what is not heard of both sides counts as skipped."""
        heard: dict[PeerId, Payload] = {}
        for peer in self.around(self.round).weights:
            key = (self.round, self.exchange, peer)
            if key not in self._inbox:
                continue
            heard[peer] = self._inbox.pop(key)
            if self._is_away(peer):
                heard[peer] = SKIPPED
            elif heard[peer] is SKIPPED:  # it found in the last round that the two are too far apart
                self._away_until[peer] = self.round - 1 + self.look_again
        return heard

    def _mixed(self, event: Mixed) -> list[Effect]:
        assert self.phase == "mixing"
        assert (event.round, event.exchange) == (self.round, self.exchange)
        effects: list[Effect] = [
            Alert(f"sent numbers that are not finite in round {self.round}; they were not mixed", peer)
            for peer in event.rejected
        ]
        self._short |= bool(event.rejected)
        assert self._may_part or not event.far
        self._away_until.update(dict.fromkeys(event.far, self.round + self.look_again))
        if self.exchange + 1 < self.exchanges:
            self.exchange += 1
            return effects + self._offer(event.payload)
        return effects + self._complete_round()

    def _complete_round(self) -> list[Effect]:
        effects: list[Effect] = [Send(peer, Done(self.round)) for peer in sorted(self._who_must_know())]
        self.short_rounds += self._short
        self._short, self._own = False, None
        self.round, self.exchange = self.round + 1, 0
        self.phase = "blocked"
        return effects + self._go_on_when_all_is_sent()

    def _who_must_know(self) -> set[PeerId]:
        """Return who will say something that may not come before this round is mixed, and does not learn of that by
        being told something first."""
        first = self.round + 1
        due = first + LEAD_ROUNDS
        if self.rounds and due >= self.rounds:
            return set()
        told = {peer for round in range(first, due) for peer in self.around(round).listeners}
        return set(self.around(due).weights) - told - {self.me} - self.lost.keys() - self._closed

    def _go_on_when_all_is_sent(self) -> list[Effect]:
        if self.phase != "blocked" or self._unsent:
            return []
        if self.rounds and self.round == self.rounds:
            return self._close()
        self.phase = "training"
        return [Train(self.round)]

    # ---- Neighbours

    def _receive(self, sender: PeerId, message: Message) -> list[Effect]:
        if sender not in self.neighbours or sender in self.lost:
            return []
        match message:
            case Skip(round) if self.look_again == 1 or not self._may_part:
                return self._lose(sender, f"skipped round {round}, as nobody may here")
            case Data(round) | Skip(round):
                if round > self.round + LEAD_ROUNDS or 0 < self.rounds <= round:
                    return self._lose(sender, f"sent a message of round {round} while this is round {self.round}")
                effects = self._note_completed(sender, round - 1)
                exchange, payload = (0, SKIPPED) if isinstance(message, Skip) else (message.exchange, message.payload)
                if self._is_wanted(sender, round, exchange):
                    self._inbox[round, exchange, sender] = payload
                return effects + self._mix_when_all_are_heard()
            case Done(round):
                return self._note_completed(sender, round)
            case Heartbeat(round):
                return self._note_completed(sender, round - 1)
            case Bye(rounds):
                return self._farewell(sender, rounds)
        return []

    def _is_wanted(self, sender: PeerId, round: int, exchange: int) -> bool:
        """Say whether a message will be mixed: so nothing is stashed that nobody takes out again."""
        at = (round, exchange)
        heard = sender in self.around(round).weights and exchange < self.exchanges
        return heard and at >= self._next_to_mix() and (*at, sender) not in self._inbox

    def _next_to_mix(self) -> tuple[int, int]:
        """Return the first round and exchange that no `Mix` has been asked for."""
        return self.round, self.exchange + (self.phase == "mixing")

    def _note_completed(self, peer: PeerId, round: int) -> list[Effect]:
        """The peer has mixed this round: send it what had to wait for that."""
        self._completed[peer] = max(self._completed[peer], round)
        effects: list[Effect] = []
        waiting = self._unsent.pop(peer, [])
        while waiting and self._may_send(peer, waiting[0]):
            effects.append(Send(peer, waiting.pop(0)))
        if waiting:
            self._unsent[peer] = waiting
        return effects + self._go_on_when_all_is_sent()

    def _farewell(self, peer: PeerId, rounds: int) -> list[Effect]:
        if self.rounds == 0 or rounds < self.rounds:
            return self._lose(peer, f"left after round {rounds}")
        if self._owes(peer):
            return self._lose(peer, f"said goodbye with messages missing, in round {self.round}")
        effects = self._note_completed(peer, rounds - 1)
        self._closed.add(peer)
        return effects + self._finish_when_all_are_done()

    def _owes(self, peer: PeerId) -> bool:
        """Say whether a message is missing that this peer must have sent before it could be done."""
        rounds = (r for r in range(self.round, self.rounds) if peer in self.around(r).weights)
        to_come = ((r, k) for r in rounds for k in range(self.exchanges))
        return any(at >= self._next_to_mix() and (*at, peer) not in self._inbox for at in to_come)

    def _lose(self, peer: PeerId, reason: str) -> list[Effect]:
        if peer in self.lost or peer in self._closed or peer not in self.neighbours:
            return []
        self.lost[peer] = reason
        self._awaited.discard(peer)
        self._unsent.pop(peer, None)
        effects: list[Effect] = [Alert(f"is lost ({reason})", peer)]
        effects += self._begin_when_all_are_known()
        effects += self._mix_when_all_are_heard()
        effects += self._go_on_when_all_is_sent()
        return effects + self._finish_when_all_are_done()

    # ---- The end

    def _close(self) -> list[Effect]:
        self.phase = "closing"
        return self._say_goodbye() + self._finish_when_all_are_done()

    def _say_goodbye(self) -> list[Effect]:
        """To those that were done before, too: they wait for it."""
        return [Send(peer, Bye(self.round)) for peer in sorted(self.neighbours - self.lost.keys())]

    def _finish_when_all_are_done(self) -> list[Effect]:
        if self.phase != "closing" or self.alive:
            return []
        self.phase = "done"
        return [Finish("finished")]

    def _stop(self) -> list[Effect]:
        if self.phase == "closing":  # its own rounds are complete: it stops waiting for the others
            self.phase = "done"
            return [Finish("finished")]
        self.phase = "done"
        return [*self._say_goodbye(), Finish("interrupted")]


def own_weight(
    me: PeerId,
    here: Neighbourhood,
    heard: Collection[PeerId],
    told: Collection[PeerId],
    conserves: Literal["rows", "columns"],
) -> float:
    """Return the weight that a peer's own message gets, so that its row of W sums to 1, or its column.

    Beside what W gives it, that is the weights of those it has not heard, or of those it has not told.
    """
    others, there = (here.weights, heard) if conserves == "rows" else (here.listeners, told)
    return fsum((here.weights[me], *(w for peer, w in others.items() if peer != me and peer not in there)))
