"""Synchronous gossip: in each round train, send to the listeners, wait for all that are heard, mix.

    waiting --all neighbours joined or lost--> training --Trained--> gathering --all heard--> mixing
       mixing --Mixed, another exchange--> gathering
       mixing --Mixed, end of the round--> blocked   (until the listeners are near enough: see `Outbox`)
    blocked --all sent--> training, and after the last round closing --all said Bye or are lost--> done
    any --left behind by all--> fetching --Model--> adopting --Adopted--> training

A peer that is late is waited for; `PeerLost`, an early `Bye` and a message that no right peer sends take a neighbour
out. What a lost neighbour would have had of the weights goes to the peer itself, so every row goes on summing to 1; a
symmetric matrix stays symmetric. Where it is the columns that sum to 1, a peer keeps what a lost listener would have
been given; where W is the mean of all, the mean of all that are there takes its place. What one peer says to another
must arrive, and a `Bye` after all that was said before it; otherwise messages may come twice and in any order. Nothing
is said after a `Bye`, until one of the two begins another life.

A neighbour that was lost and is there again counts from a round that the two agree on by `Resume`; see `Standing`. A
peer that finds itself left behind by all that are there goes on in their first common round: from its own parameters
where it lags little, else from those of a neighbour.

With a `round_deadline_s`, a round is closed so long after the peer's own message, whoever is missing; then nobody is
waited for, messages may be lost, and what a listener is too far behind for is not kept for it.

Who hears whom may change from round to round. Under the metric "model" it depends on the parameters instead: two peers
that are found too far apart skip each other for `look_again` rounds. Both find the same, from the same two messages;
should rounding part them, the `Skip` of the one tells the other.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Literal

from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Bye,
    Command,
    Copied,
    Copy,
    Data,
    Done,
    Effect,
    Event,
    Fetch,
    Finish,
    Forget,
    Heartbeat,
    Message,
    Mix,
    Mixed,
    Model,
    Neighbourhood,
    Payload,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Resume,
    Send,
    Shares,
    Skip,
    Term,
    Tick,
    Train,
    Trained,
)
from peer.protocol.outbox import LEAD_ROUNDS, Outbox
from peer.protocol.standing import KEEPS_OWN_ROUNDS, Standing
from peer.protocol.weights import own_weight

Phase = Literal["waiting", "training", "blocked", "gathering", "mixing", "fetching", "adopting", "closing", "done"]

SKIPPED = Skip(-1)
"""Stands in the inbox where a neighbour has skipped this peer."""


class Gossip:
    """One peer's half of synchronous gossip.

    `rounds` is how many to do, 0 for until stopped. `around(round)` is the peer's neighbourhood in that round, and
    `neighbours` are all that it ever has to do with: None for those of round 0. `conserves` says which sums of the
    mixing matrix stay 1 when a peer is lost: "rows", "columns", or, where all weights are equal, rows that stay the
    "mean" of who is heard. Where `look_again` is 1, nobody skips anybody; more goes with one exchange
    a round, with sums of rows, and with neighbours who hear each other in every round. `round_deadline_s` is how long
    after its own message a peer closes an exchange without those that it has not heard, 0 for never.
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
        round_deadline_s: float = 0.0,
    ) -> None:
        self.me = me
        self.rounds = rounds
        self.exchanges = exchanges
        self.conserves = conserves
        self.look_again = look_again
        self.round_deadline_s = round_deadline_s
        self.deadline_s = inf
        self.phase: Phase = "waiting"
        self.round = 0
        self.exchange = 0
        self.short_rounds = 0
        self.around = around
        first = around(0)
        self.neighbours = (set(first.weights) | set(first.listeners) if neighbours is None else set(neighbours)) - {me}
        self._standing = Standing(frozenset(self.neighbours))
        self._awaited = set(self.neighbours)
        self._said_goodbye: set[PeerId] = set()
        self._source: PeerId | None = None  # whose parameters were asked for
        self._now_s = 0.0
        self._own: Payload = None
        self._told: set[PeerId] = set()  # the listeners to whom the message at hand went
        self._inbox: dict[tuple[int, int, PeerId], Payload] = {}
        self._outbox = Outbox(self.neighbours, exchanges * (1 + LEAD_ROUNDS) if round_deadline_s else None)
        self._away_until: dict[PeerId, int] = {}  # the round in which two peers look at each other again
        self._may_part = exchanges == 1 and conserves == "rows"
        self._short = False

    # ---- The Core interface

    def start(self, now_s: float) -> list[Effect]:
        return self._begin_when_all_are_known()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        self._now_s = now_s
        if self.phase == "done":
            return []
        match event:
            case PeerJoined(peer):
                return self._join(peer)
            case PeerLost(peer, reason):
                return self._lose(peer, reason)
            case Received(sender, message):
                return self._receive(sender, message)
            case Trained(round, payload) if self.phase == "training" and round == self.round:
                return self._offer(payload)
            case Mixed():
                return self._mixed(event)
            case Copied(to, payload) if to in self.alive - self._said_goodbye:
                return [Send(to, Model(self.round, payload))]
            case Adopted():
                return self._adopted()
            case Tick() if now_s >= self.deadline_s:
                return self._close_round()
            case Command("stop"):
                return self._stop()
        return []

    # ---- What a person may want to know

    @property
    def alive(self) -> set[PeerId]:
        """Neighbours that are neither lost nor done."""
        return self._standing.alive

    @property
    def lost(self) -> dict[PeerId, str]:
        """Neighbours that are lost, and why."""
        return self._standing.lost

    def waits_for(self) -> set[PeerId]:
        """The peers without which this one does not go on at the moment."""
        match self.phase:
            case "waiting":
                return set(self._awaited)
            case "gathering":
                return self._missing()
            case "blocked":
                return self._held_up_by()
            case "fetching" if self._source is not None:
                return {self._source}
            case "closing":
                return self.alive
        return set()

    # ---- Rounds

    def _begin_when_all_are_known(self) -> list[Effect]:
        if self.phase != "waiting" or self._awaited or self._standing.unanswered():
            return []
        return self._catch_up() or self._begin_round()

    def _begin_round(self) -> list[Effect]:
        self.phase = "training"
        return [*(Forget(peer) for peer in self._standing.starting(self.round)), Train(self.round)]

    def _last_begun(self) -> int:
        """Return the last round that has begun, -1 before the first."""
        return self.round - (self.phase in ("waiting", "blocked", "fetching", "adopting"))

    def _offer(self, payload: Payload | Shares) -> list[Effect]:
        """Send the payload of this round and exchange to all listeners, and see whether all have been heard."""
        self._own = payload.own if isinstance(payload, Shares) else payload
        listeners = self._standing.counting(self.around(self.round).listeners, self.round)
        self._told = listeners - self._standing.closed
        self.phase = "gathering"
        self.deadline_s = self._now_s + self.round_deadline_s if self.round_deadline_s else inf
        effects: list[Effect] = []
        for peer in sorted(self._told):
            data = Data(self.round, self.exchange, payload.to[peer] if isinstance(payload, Shares) else payload)
            effects += self._outbox.send(peer, Skip(self.round) if self._is_away(peer) else data)
        return effects + self._mix_when_all_are_heard()

    def _is_away(self, peer: PeerId) -> bool:
        return self.round < self._away_until.get(peer, 0)

    def _missing(self) -> set[PeerId]:
        heard = {p for (r, k, p) in self._inbox if (r, k) == (self.round, self.exchange)}
        missing = self._standing.counting(self.around(self.round).weights, self.round) - heard
        return missing - self._standing.closed if self.round_deadline_s else missing

    def _mix_when_all_are_heard(self) -> list[Effect]:
        if self.phase != "gathering" or self._missing():
            return []
        return self._mix()

    def _close_round(self) -> list[Effect]:
        """The time for this exchange is over: go on with those that have been heard."""
        assert self.phase == "gathering"
        return self._mix()

    def _mix(self) -> list[Effect]:
        self.phase = "mixing"
        self.deadline_s = inf
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
        counting = self._standing.counting
        told = {peer for round in range(first, due) for peer in counting(self.around(round).listeners, round)}
        if self.round_deadline_s:  # what they are told first may get lost
            told = set()
        return counting(self.around(due).weights, due) - told - self._standing.closed

    def _held_up_by(self) -> set[PeerId]:
        """Return who must be heard of before the next round begins."""
        unsent = set() if self.round_deadline_s else set(self._outbox.waiting)
        return unsent | self._standing.unanswered(self.round)

    def _go_on_when_all_is_sent(self) -> list[Effect]:
        if self.phase != "blocked" or self._held_up_by():
            return []
        if self.rounds and self.round == self.rounds:
            return self._close()
        return self._catch_up() or self._begin_round()

    # ---- Neighbours

    def _receive(self, sender: PeerId, message: Message) -> list[Effect]:
        if sender not in self.neighbours or sender in self.lost:
            return []
        match message:
            case Resume(round):
                return self._resume(sender, round)
            case Fetch():  # nothing follows a goodbye
                return [] if sender in self._said_goodbye else [Copy(sender)]
            case Model(_, payload):
                return self._adopt(sender, payload)
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
        """Say whether a message will be mixed: so nothing is stashed that nobody takes out again.

        It may overtake the `Resume` of its sender, who has heard that of this peer, or would not send it.
        """
        at = (round, exchange)
        heard = sender in self.around(round).weights and exchange < self.exchanges
        heard = heard and self._standing.may_count(sender, round)
        return heard and at >= self._next_to_mix() and (*at, sender) not in self._inbox

    def _next_to_mix(self) -> tuple[int, int]:
        """Return the first round and exchange that no `Mix` has been asked for."""
        return self.round, self.exchange + (self.phase == "mixing")

    def _note_completed(self, peer: PeerId, round: int) -> list[Effect]:
        """The peer has mixed this round: send it what had to wait for that."""
        return self._outbox.completed(peer, round) + self._go_on_when_all_is_sent()

    def _farewell(self, peer: PeerId, rounds: int) -> list[Effect]:
        if self.rounds == 0 or rounds < self.rounds:
            return self._lose(peer, f"left after round {rounds}")
        if self._owes(peer):
            return self._lose(peer, f"said goodbye with messages missing, in round {self.round}")
        if self._standing.has_asked(peer):  # it did not know that this one did not count it in
            self._drop(peer)
        self._standing.close(peer)
        effects = self._begin_when_all_are_known() + self._note_completed(peer, rounds - 1)
        if self.phase == "closing" and peer not in self._said_goodbye:  # it came back when this one was done
            effects += self._say_goodbye([peer])
        if self.round_deadline_s:
            effects += self._mix_when_all_are_heard()
        if peer == self._source:
            effects += self._fetch()
        return effects + self._finish_when_all_are_done()

    def _owes(self, peer: PeerId) -> bool:
        """Say whether a message is missing that this peer must have sent before it could be done."""
        if self.round_deadline_s:
            return False
        counts = self._standing.counts
        rounds = (r for r in range(self.round, self.rounds) if peer in self.around(r).weights and counts(peer, r))
        to_come = ((r, k) for r in rounds for k in range(self.exchanges))
        return any(at >= self._next_to_mix() and (*at, peer) not in self._inbox for at in to_come)

    def _lose(self, peer: PeerId, reason: str) -> list[Effect]:
        if peer not in self.alive:
            return []
        if self._standing.counts_from(peer) > self._last_begun():  # it never came to count
            self._drop(peer)
        self._standing.lose(peer, reason)
        self._awaited.discard(peer)
        self._outbox.drop(peer)
        effects: list[Effect] = [Alert(f"is lost ({reason})", peer)]
        effects += self._begin_when_all_are_known()
        effects += self._mix_when_all_are_heard()
        effects += self._go_on_when_all_is_sent()
        if peer == self._source:
            effects += self._fetch()
        return effects + self._finish_when_all_are_done()

    # ---- Coming back

    def _join(self, peer: PeerId) -> list[Effect]:
        if peer in self.lost or peer in self._standing.closed:
            return self._ask(peer)
        self._awaited.discard(peer)
        return self._begin_when_all_are_known()

    def _ask(self, peer: PeerId) -> list[Effect]:
        """Tell a peer that is there again the next round that has not begun."""
        next_round = self.round if self.phase in ("waiting", "fetching", "adopting") else self.round + 1
        self._standing.ask(peer, next_round)
        self._forget(peer)
        return [Send(peer, Resume(next_round))]

    def _resume(self, peer: PeerId, round: int) -> list[Effect]:
        """A peer counts on this one again. If that is news, it had lost it before this one was there."""
        if self._standing.has_answered(peer) or peer in self._said_goodbye:
            return []
        effects = [] if self._standing.has_asked(peer) else self._ask(peer)
        self._awaited.discard(peer)
        since = self._standing.agree(peer, round)
        self._drop(peer, since)
        effects += self._outbox.completed(peer, round - 2)
        if self.phase == "closing" and round > self.rounds:  # so is the other, and waits for a goodbye
            effects += self._say_goodbye([peer])
        effects += self._begin_when_all_are_known()
        effects += self._mix_when_all_are_heard()
        effects += self._go_on_when_all_is_sent()
        if self.phase in ("training", "gathering"):
            effects += self._catch_up()
        return effects

    def _forget(self, peer: PeerId) -> None:
        """What was said in an earlier life is void."""
        self._said_goodbye.discard(peer)
        self._outbox.begin_anew(peer)
        self._away_until.pop(peer, None)
        self._drop(peer)

    def _drop(self, peer: PeerId, before: float = inf) -> None:
        """What the peer said of rounds before this one is not mixed."""
        self._inbox = {key: what for key, what in self._inbox.items() if key[2] != peer or key[0] >= before}

    def _catch_up(self) -> list[Effect]:
        """Go on where the others are, if all that are there have left this peer behind."""
        first = self._standing.first_common_round()
        if self._standing.unanswered() or first == inf or first <= self.round + (self.phase != "waiting"):
            return []
        is_new, behind = self.round == 0, int(first) - self.round
        self.round = min(int(first), self.rounds) if self.rounds else int(first)
        self.exchange, self._short, self._own, self.deadline_s = 0, False, None, inf
        self._inbox = {key: payload for key, payload in self._inbox.items() if key[0] >= self.round}
        self._outbox.clear()
        if is_new or behind > KEEPS_OWN_ROUNDS:
            return self._fetch()
        self.phase = "adopting"
        return [Adopt(self.round, None)]

    def _fetch(self) -> list[Effect]:
        """Ask the neighbour that counts soonest for its parameters; where nobody is left, keep the own ones."""
        soonest = self._standing.soonest()
        self._source = soonest[0] if soonest else None
        if self._source is None:
            self.phase = "adopting"
            return [Adopt(self.round, None)]
        self.phase = "fetching"
        return [Send(self._source, Fetch())]

    def _adopt(self, sender: PeerId, payload: Payload) -> list[Effect]:
        if self.phase != "fetching" or sender != self._source:
            return []
        self.phase, self._source = "adopting", None
        return [Adopt(self.round, payload)]

    def _adopted(self) -> list[Effect]:
        """Tell those that are there how far this peer has come, as if it had done the rounds that it missed."""
        effects: list[Effect] = [Send(peer, Done(self.round - 1)) for peer in sorted(self.alive)]
        self.phase = "blocked"
        return effects + self._go_on_when_all_is_sent()

    # ---- The end

    def _close(self) -> list[Effect]:
        self.phase = "closing"
        self._outbox.clear()  # of a round deadline: who is too far behind hears a goodbye instead, and no more after it
        return self._say_goodbye(self.neighbours - self.lost.keys()) + self._finish_when_all_are_done()

    def _say_goodbye(self, peers: Iterable[PeerId]) -> list[Effect]:
        """To those that were done before, too: they wait for it."""
        self._said_goodbye |= set(peers)
        return [Send(peer, Bye(self.round)) for peer in sorted(peers)]

    def _finish_when_all_are_done(self) -> list[Effect]:
        if self.phase != "closing" or self.alive:
            return []
        self.phase = "done"
        return [Finish("finished")]

    def _stop(self) -> list[Effect]:
        if self.phase == "closing":  # its own rounds are complete: it stops waiting for the others
            self.phase = "done"
            return [*self._say_goodbye(self.alive - self._said_goodbye), Finish("finished")]
        self.phase = "done"
        return [*self._say_goodbye(self.neighbours - self.lost.keys()), Finish("interrupted")]
