"""What goes wrong in a simulated run, and when: the [faults] table, played on a clockwork."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from peer.assembly.faults import Fault
from peer.experiment.fault_entry import Action
from peer.protocol.messages import PeerId
from peer.simulator.clockwork import Clockwork

OPPOSITE: dict[Action, Action] = {"kill": "restart", "stop": "continue", "cut": "heal", "partition": "heal"}
OF_ONE_PEER = ("kill", "restart", "stop", "continue", "leave", "join")
BY_ITS_OWN_ROUND = ("kill", "stop", "leave")


class Troubles:
    """Plays faults on a clockwork: `schedule` by time or by round, and `random` ones in the order of time.

    `tell` is told in words what has happened to whom. `guests` are nodes in the process of another, by whose it is:
    what happens to that process happens to them.
    """

    def __init__(
        self,
        clockwork: Clockwork,
        schedule: Sequence[Fault],
        random: Iterator[Fault],
        tell: Callable[[str, tuple[PeerId, ...]], None],
        guests: Mapping[PeerId, PeerId] | None = None,
    ) -> None:
        self._guests = guests or {}
        self._clockwork = clockwork
        self._random = random
        self._tell = tell
        self._until_s: dict[tuple[Action, tuple[PeerId, ...]], float] = {}  # when the last fault of a kind ends
        self._returns = 0  # how many are still to come of what brings a peer back
        self._by_round = [fault for fault in schedule if fault.round is not None]
        for fault in schedule:
            if fault.at_s is not None:
                self._plan(fault, fault.at_s)
        self._plan_next()

    @property
    def brings_somebody_back(self) -> bool:
        """Whether a peer that is away now is to come back at a known time."""
        return self._returns > 0

    def advanced(self, me: PeerId, round: int) -> None:
        """A peer has completed so many rounds."""
        due = [fault for fault in self._by_round if self._is_due(fault, me, round)]
        for fault in due:
            self._by_round.remove(fault)
            if fault.what in BY_ITS_OWN_ROUND and len(fault.peers) > 1:
                others = tuple(peer for peer in fault.peers if peer != me)
                self._by_round.append(replace(fault, peers=others))
                fault = replace(fault, peers=(me,))
            self._clockwork.at(self._clockwork.now_s, partial(self._happen, fault))

    # ---- Inside

    def _is_due(self, fault: Fault, me: PeerId, round: int) -> bool:
        assert fault.round is not None
        return round >= fault.round and (me in fault.peers or fault.what not in BY_ITS_OWN_ROUND)

    def _plan(self, fault: Fault, at_s: float) -> None:
        is_return = fault.what in ("restart", "join", "continue")
        self._returns += is_return

        def happen() -> None:
            self._returns -= is_return
            self._happen(fault)

        self._clockwork.at(at_s, happen)

    def _plan_next(self) -> None:
        fault = next(self._random, None)
        if fault is None:
            return

        def happen() -> None:
            self._happen(fault)
            self._plan_next()

        assert fault.at_s is not None
        self._clockwork.at(fault.at_s, happen)

    def _happen(self, fault: Fault) -> None:
        for peers in [(peer,) for peer in fault.peers] if fault.what in OF_ONE_PEER else [fault.peers]:
            if self._do(fault, peers):
                self._tell(fault.what, peers)
            guest = self._guests.get(peers[0]) if fault.what in OF_ONE_PEER else None
            if guest is not None:
                self._do(fault, (guest,))
        if fault.for_s is not None:
            self._plan_end(fault, self._clockwork.now_s + fault.for_s)

    def _plan_end(self, fault: Fault, at_s: float) -> None:
        """Plan what ends a fault, unless another one of its kind lasts longer."""
        what = fault.what, fault.peers
        self._until_s[what] = max(at_s, self._until_s.get(what, 0.0))
        ends = Fault(OPPOSITE[fault.what], () if fault.what == "partition" else fault.peers)
        self._returns += fault.what in ("kill", "stop")

        def happen() -> None:
            self._returns -= fault.what in ("kill", "stop")
            if at_s >= self._until_s[what]:
                self._happen(ends)

        self._clockwork.at(at_s, happen)

    def _do(self, fault: Fault, peers: tuple[PeerId, ...]) -> bool:
        """Let it happen; returns whether it has changed anything."""
        clockwork = self._clockwork
        match fault.what:
            case "kill":
                return clockwork.kill(*peers)
            case "restart" | "join":
                return clockwork.restart(*peers)
            case "stop":
                return clockwork.stop(*peers)
            case "continue":
                return clockwork.go_on(*peers)
            case "leave":
                return clockwork.leave(*peers)
            case "cut":
                return clockwork.cut(*peers)
            case "partition":
                return clockwork.part(fault.groups)
            case "heal" if peers:
                return clockwork.heal(*peers)
            case "heal":
                return clockwork.heal_all()
