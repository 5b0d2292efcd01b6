"""AD-PSGD: averaging by pairs, while the training goes on. Lian et al. 2018, algorithm 1; here without a deadlock.

    waiting --all neighbours joined or lost--> training --Trained--> trying, one partner after the other
      trying --averaged with one, or none is free--> learning --Learned--> the next local round

The local steps of a round start from the state of that moment. Meanwhile others may average with it; when the steps
are done the peer averages with one neighbour itself, and takes what was learned into the state as it is then.

One averaging is a `Propose`, which holds the state of its sender, and an `Accept`, which holds that of the other.
Both then have half of each, so their sum stays what it was. That needs a state that does not change between message
and mixing. So whoever has proposed is *locked*: until the answer it averages with nobody else. A proposal that comes

- while the state is being changed, is served when that is done;
- while locked, from a lower peer: waits until the lock is gone;
- while locked, from a higher peer: is answered with `Busy`;
- while locked, from the very peer to which this one has proposed, before it had seen that: the two have crossed, and
  each is the answer to the other. Where it had seen that, its answer is on its way, and the proposal is the next one.

Waiting for a locked peer goes from lower to higher only, so there is no cycle of those who wait. Proposals are served
in the order in which they came, and the peer's own wish stands in the same line: so a hub of many is not kept from
averaging itself.
"""

from collections.abc import Callable, Sequence

from peer.protocol.independent import Independent
from peer.protocol.messages import (
    Accept,
    Busy,
    Effect,
    Event,
    Learn,
    Learned,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    Payload,
    PeerId,
    Propose,
    Send,
    Term,
    Train,
    Trained,
)


class Pairwise(Independent):
    """One peer's half of averaging by pairs.

    `partners(round)` are the neighbours in the order in which to try them in that local round. Neighbours hear each
    other; the weights of `around` are not used.
    """

    def __init__(
        self,
        me: PeerId,
        rounds: int,
        around: Callable[[int], Neighbourhood],
        *,
        partners: Callable[[int], Sequence[PeerId]],
    ) -> None:
        super().__init__(me, rounds, around)
        self.partners = partners
        self._own: Payload = None  # what this peer says of its present state
        self._knows_own = False
        self._is_changing = False  # a Mix or Learn of the state is at hand
        self._locked_on: PeerId | None = None
        self._to_try: list[PeerId] = []
        self._line: dict[PeerId, Propose | None] = {}  # who is served next; None: it is this peer's turn to propose
        self._mixes = 0  # since the local steps began, but for the averaging of this round itself
        self._proposed = dict.fromkeys(self.neighbours, 0)  # the number of the last proposal to each
        self._answered = dict.fromkeys(self.neighbours, 0)  # and of the last one of each that was answered

    def waits_for(self) -> set[PeerId]:
        return super().waits_for() if self._locked_on is None else {self._locked_on}

    # ---- Local rounds

    def _is_free(self) -> bool:
        return not self._is_changing and self._locked_on is None

    def _go_on(self, now_s: float) -> list[Effect]:
        if not self._is_free():
            return []
        if not self._knows_own:
            self._is_changing = True
            return [Learn(None)]
        begun = self._begin()
        if not self._line:
            return begun
        peer = next(iter(self._line))
        proposal = self._line.pop(peer)
        return begun + (self._try_the_next() if proposal is None else self._serve(peer, proposal))

    def _begin(self) -> list[Effect]:
        """First of all, so that the local steps start from a state at which nothing is at hand."""
        if self.phase != "waiting" or self._awaited:
            return []
        self.phase = "training"
        self._mixes = 0
        return [Train(self.round)]

    def _note_work(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Trained(round) if self.phase == "training" and round == self.round:
                self.phase = "trying"
                self._to_try = list(self.partners(round)) if self.alive else []
                self._line[self.me] = None
            case Mixed(payload=payload) if self._is_changing:
                self._own, self._is_changing = payload, False
                return self._alerts(event) + (self._learn() if self.phase == "learning" else [])
            case Learned(payload) if self._is_changing:
                return self._learned(payload)
        return []

    def _try_the_next(self) -> list[Effect]:
        while self._to_try:
            partner = self._to_try.pop(0)
            if partner in self.alive:
                return self._propose(partner)
        self.phase = "learning"
        return self._learn()

    def _learn(self) -> list[Effect]:
        self._is_changing = True
        return [Learn(self.round, self._mixes)]

    def _learned(self, payload: Payload) -> list[Effect]:
        self._own, self._is_changing = payload, False
        if not self._knows_own:
            self._knows_own = True
            return []
        self.phase = "waiting"
        return self._complete_round()

    def _drop_training(self) -> None:
        self._line.pop(self.me, None)
        self._knows_own = False

    # ---- Averaging

    def _propose(self, partner: PeerId) -> list[Effect]:
        self._proposed[partner] += 1
        proposal = Propose(self._proposed[partner], self._answered[partner], self._own)
        effects: list[Effect] = [Send(partner, proposal)]
        theirs = self._line.pop(partner, None)
        if theirs is not None:
            return effects + self._cross(partner, theirs)
        self._locked_on = partner
        for peer, waiting in list(self._line.items()):
            if waiting is not None and peer > self.me:
                del self._line[peer]
                effects += self._refuse(peer, waiting)
        return effects

    def _hear(self, sender: PeerId, message: Message, now_s: float) -> list[Effect]:
        match message:
            case Propose(number) if number > self._answered[sender]:
                return self._consider(sender, message)
            case Accept(number, payload) if sender == self._locked_on and number == self._proposed[sender]:
                return self._average_as_wished(sender, payload)
            case Busy(number) if sender == self._locked_on and number == self._proposed[sender]:
                self._unlock()
        return []

    def _consider(self, sender: PeerId, proposal: Propose) -> list[Effect]:
        if sender == self._locked_on and proposal.answered < self._proposed[sender]:
            return self._cross(sender, proposal)
        if self._locked_on not in (None, sender) and sender > self.me:
            return self._refuse(sender, proposal)
        self._line.setdefault(sender, proposal)
        return []

    def _serve(self, peer: PeerId, proposal: Propose) -> list[Effect]:
        self._answered[peer] = proposal.number
        self._mixes += 1
        return [Send(peer, Accept(proposal.number, self._own)), self._mix(peer, proposal.payload)]

    def _refuse(self, peer: PeerId, proposal: Propose) -> list[Effect]:
        self._answered[peer] = proposal.number
        return [Send(peer, Busy(proposal.number))]

    def _cross(self, peer: PeerId, proposal: Propose) -> list[Effect]:
        self._answered[peer] = proposal.number
        return self._average_as_wished(peer, proposal.payload)

    def _average_as_wished(self, peer: PeerId, payload: Payload) -> list[Effect]:
        self._locked_on = None
        self.phase = "learning"
        return [self._mix(peer, payload)]

    def _mix(self, peer: PeerId, payload: Payload) -> Mix:
        self._is_changing = True
        terms = sorted((Term(0.5, self.me, self._own), Term(0.5, peer, payload)), key=lambda term: term.sender)
        return Mix(self.round, 0, self.me, tuple(terms))

    # ---- Neighbours

    def _unlock(self) -> None:
        """The wish was not met: those that wait are served, and then the next partner is tried."""
        self._locked_on = None
        self._line[self.me] = None

    def _part(self, peer: PeerId) -> None:
        self._line.pop(peer, None)
        if self._locked_on == peer:
            self._unlock()

    def _forget(self, peer: PeerId) -> None:
        self._proposed[peer] = self._answered[peer] = 0
