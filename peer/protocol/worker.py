"""A worker beside one or several coordinators: it pulls parameters, trains from them, pushes, and waits.

    waiting --a Global of each coordinator--> adopting --Adopted--> training --Trained: a Push to each--> waiting
    adopting the last version of each --Adopted--> closing --each said Bye or is lost--> done

Several coordinators each have a part of the parameters, and the worker trains when each has answered. They know nothing
of one another: each comes, goes and comes back on its own, and counts its own versions.

Nobody interrupts it. While a coordinator is lost the worker ends what it has at hand and waits for that to come back.
Whenever a coordinator has joined, the worker speaks first: it says the push again that was not answered yet, or says by
`Pull` that it trains, or has nothing to do. What was given in an earlier life and is not adopted yet is void.

Pushes are numbered, with one count for all coordinators, and a `Global` says which push it answers. So a push is not
applied twice at one coordinator, however often it is said, and one that a coordinator has lost in its fall is said
again, unless the worker trains from the next version by then. A worker that is started anew takes over the greatest
count that any of them tells. So its next number is new to all. One that has heard less than another, as it forgot in a
fall or as the worker fell between two sends, misses those pushes; they are in the parameters of the other alone.

So several coordinators that wait for all that are alive, or for nobody, come to their end together, whatever is lost on
the way. Where they choose some of the workers for each version (`chosen`), or go by turns, that holds only as long as
nobody is lost: versions or turns may then differ for good, and each may wait for workers that wait for the other.

The last version (`rounds` > 0) is given to all. Who has given it is pushed nothing more, while others go on; when all
have given it, it is adopted, whatever the worker is at. A coordinator that says `Bye` without it was stopped, and then
the worker leaves them all.

Links lose nothing within one life of the two with each other, but what they carry may come twice and in any order;
only `Bye` comes after all else. After a `PeerLost`, and before a `PeerJoined`, what was said is void.
"""

from collections.abc import Sequence
from math import inf
from typing import Literal

from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Bye,
    Command,
    Effect,
    Event,
    Finish,
    Global,
    Message,
    PeerId,
    PeerJoined,
    PeerLost,
    Pull,
    Push,
    Received,
    Send,
    Shares,
    Tick,
    Train,
    Trained,
)

Phase = Literal["waiting", "adopting", "training", "closing", "done"]


class Worker:
    """One worker's half of a parameter server.

    `rounds` is how many versions each coordinator makes, 0 for until stopped. A lost coordinator is waited for during
    `return_s`, then the worker ends as "failed"; 0: it is waited for without end. One that is lost before it was ever
    heard ends it as "alone".

    `round` counts the pushes of this worker, and is the round in `Train` and `Adopt`. `versions` are those of the
    parameters from which it trains, or has trained, by coordinator; `version` is the least of them.
    """

    short_rounds = 0  # the coordinators count them

    def __init__(self, me: PeerId, coordinators: Sequence[PeerId], rounds: int, *, return_s: float = 0.0) -> None:
        self.me = me
        self.coordinators = tuple(sorted(coordinators))
        self.neighbours = set(coordinators)
        assert 0 < len(self.neighbours) == len(self.coordinators)
        assert me not in self.neighbours
        self.rounds = rounds
        self.return_s = return_s
        self.deadline_s = inf
        self.phase: Phase = "waiting"
        self.round = 0
        self.versions: dict[PeerId, int] = dict.fromkeys(self.coordinators, 0)
        self.lost: dict[PeerId, str] = {}
        self._there: set[PeerId] = set()
        self._never_heard = set(self.neighbours)
        self._closed: set[PeerId] = set()  # said Bye in this life, after their last version
        self._given: dict[PeerId, Global] = {}  # and not adopted yet; the last version stays
        self._unanswered: dict[PeerId, Push] = {}  # the last push, until what answers it is adopted
        self._due_back_s: dict[PeerId, float] = {}

    # ---- The Core interface

    def start(self, now_s: float) -> list[Effect]:
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.phase == "done":
            return []
        match event:
            case PeerJoined(peer) if peer in self.neighbours:
                return self._greet(peer)
            case PeerLost(peer, reason) if peer in self.neighbours:
                return self._lose(peer, reason, now_s)
            case Received(sender, message) if sender in self._there:
                return self._receive(sender, message)
            case Adopted(round) if self.phase == "adopting" and round == self.round:
                return self._adopted()
            case Trained(round, payload) if self.phase == "training" and round == self.round:
                assert isinstance(payload, Shares)
                return self._push(payload)
            case Tick() if now_s >= self.deadline_s:
                return self._give_up()
            case Command("stop"):
                return self._leave("finished" if self.phase == "closing" else "interrupted")
        return []

    # ---- What a person may want to know

    @property
    def version(self) -> int:
        """The version of the parameters from which this worker trains, or has trained: the least of all parts."""
        return min(self.versions.values())

    @property
    def alive(self) -> set[PeerId]:
        """Coordinators that are neither lost nor done."""
        return self.neighbours - self.lost.keys() - self._closed

    def waits_for(self) -> set[PeerId]:
        """The peers without which this one does not go on at the moment."""
        match self.phase:
            case "waiting":
                return self.neighbours - self._given.keys()
            case "closing":
                return self.alive
        return set()

    # ---- Pull, train, push

    def _receive(self, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case Global() if self._is_wanted(sender, message):
                self._given[sender] = message
                if self._is_last(message):
                    self._unanswered.pop(sender, None)
                return self._adopt_when_all_is_there()
            case Bye() if self._has_given_last(sender):
                self._closed.add(sender)
                return self._finish_when_all_are_done()
            case Bye():
                return self._leave("interrupted")
        return []

    def _is_wanted(self, sender: PeerId, message: Global) -> bool:
        if sender in self._given:
            return self._is_last(message) and not self._has_given_last(sender)
        if self._is_last(message):
            return True
        push = self._unanswered.get(sender)
        return self.phase == "waiting" and (push is None or message.heard >= push.number)

    def _is_last(self, message: Global) -> bool:
        return 0 < self.rounds <= message.version

    def _has_given_last(self, peer: PeerId) -> bool:
        return peer in self._given and self._is_last(self._given[peer])

    def _adopt_when_all_is_there(self) -> list[Effect]:
        """While it trains, only last versions are there: then all of them end what it is at."""
        is_free = self.phase in ("waiting", "training")
        return self._adopt() if is_free and self._given.keys() == self.neighbours else []

    def _adopt(self) -> list[Effect]:
        self.phase = "adopting"
        given = [self._given[peer] for peer in self.coordinators]
        is_answer = all(message.heard >= self.round for message in given if self._is_last(message))
        self.round = max(self.round, *(message.heard for message in given))
        fallen = [
            Alert(f"goes on from version {message.version}; what had come of it up to version {before} is lost", peer)
            for (peer, before), message in zip(self.versions.items(), given, strict=True)
            if message.version < before
        ]
        self.versions = {peer: self._given[peer].version for peer in self.coordinators}
        self._unanswered.clear()
        self._given = {peer: message for peer, message in self._given.items() if self._is_last(message)}
        payloads = tuple(message.payload for message in given)
        return [*fallen, Adopt(self.round, payloads, self.version, is_answer)]

    def _adopted(self) -> list[Effect]:
        if 0 < self.rounds <= min(self.versions.values()):
            self.phase = "closing"
            return self._finish_when_all_are_done()
        self.phase = "training"
        return self._adopt_when_all_is_there() or [Train(self.round)]

    def _push(self, payload: Shares) -> list[Effect]:
        self.phase = "waiting"
        self.round += 1
        going_on = [peer for peer in self.coordinators if peer not in self._given]
        self._unanswered = {peer: Push(self.round, self.versions[peer], payload.to[peer]) for peer in going_on}
        return [Send(peer, push) for peer, push in self._unanswered.items() if peer in self._there]

    # ---- Coordinators come and go

    def _greet(self, peer: PeerId) -> list[Effect]:
        self._end_life(peer)
        self._there.add(peer)
        self._never_heard.discard(peer)
        return [Send(peer, self._unanswered.get(peer) or self._pull(peer))]

    def _pull(self, peer: PeerId) -> Pull:
        is_at_work = self.phase in ("adopting", "training") and not self._has_given_last(peer)
        return Pull(self.versions[peer] if is_at_work else None)

    def _lose(self, peer: PeerId, reason: str, now_s: float) -> list[Effect]:
        if peer in self.lost:
            return []
        self._end_life(peer)
        self.lost[peer] = reason
        if peer in self._never_heard:
            return [Alert(f"is lost ({reason})", peer), *self._leave("alone", "a coordinator was never heard")]
        if self._has_given_last(peer):
            return [
                Alert(f"is lost ({reason}); it has given its last version", peer),
                *self._finish_when_all_are_done(),
            ]
        if self.return_s:
            self._due_back_s[peer] = now_s + self.return_s
            self._set_deadline()
        return [Alert(f"is lost ({reason}); this worker waits for it to come back", peer)]

    def _end_life(self, peer: PeerId) -> None:
        """What was said in this life is void, but the last version, which is the same in all of them."""
        self._there.discard(peer)
        self._closed.discard(peer)
        self.lost.pop(peer, None)
        self._due_back_s.pop(peer, None)
        self._set_deadline()
        if not self._has_given_last(peer):
            self._given.pop(peer, None)

    def _set_deadline(self) -> None:
        self.deadline_s = min(self._due_back_s.values(), default=inf)

    def _give_up(self) -> list[Effect]:
        late = min(self._due_back_s, key=lambda peer: (self._due_back_s[peer], peer))
        why = f"did not come back within {self.return_s:g} s"
        return [Alert(why, late), *self._leave("failed", f"a coordinator {why}")]

    # ---- The end

    def _finish_when_all_are_done(self) -> list[Effect]:
        return self._leave("finished") if self.phase == "closing" and not self.alive else []

    def _leave(self, outcome: Literal["finished", "interrupted", "alone", "failed"], why: str = "") -> list[Effect]:
        self.phase = "done"
        self.deadline_s = inf
        return [*(Send(peer, Bye(self.round)) for peer in sorted(self._there)), Finish(outcome, why)]
