"""How far the run of the events engine has come, by the rounds of those who are there."""

from peer.assembly import Assembly
from peer.protocol.messages import PeerId
from peer.protocol.worker import Worker
from peer.simulator.clockwork import Clockwork


class Progress:
    """Rounds are those that the slowest peer has completed; beside coordinators, the versions of the slowest of these;
    where nobody waits for anybody, n `local_rounds` are one.

    `is_over`: the run has come to its end, whoever could go on. `is_ending`: nobody goes on any more, so nobody who
    stands still is waited for.
    """

    def __init__(self, assembly: Assembly, clockwork: Clockwork) -> None:
        self.local_rounds = 0  # of all peers; whoever carries them out counts them
        self.is_over = False
        self.is_ending = False
        self._assembly = assembly
        self._clockwork = clockwork

    def there(self) -> dict[PeerId, int]:
        """Return who is waited for, and how many rounds each has completed: not who stands still and was given up."""
        there: set[str] = {"up", "done"} if self.is_ending else {"up", "done", "stopped"}
        peers = self._clockwork.processes[: len(self._assembly.names)]
        return {
            me: process.core.version if isinstance(process.core, Worker) else process.core.round
            for me, process in enumerate(peers)
            if process.state in there and not (process.state == "stopped" and self._clockwork.is_given_up(me))
        }

    def slowest(self) -> int:
        """Return what the slowest of those who are there has completed."""
        if self._assembly.coordinators:
            return self.rounds()
        return min(self.there().values(), default=min(p.core.round for p in self._clockwork.processes))

    def rounds(self) -> int:
        """Return how many rounds are complete."""
        if self._assembly.coordinators:
            return min(self._clockwork.processes[me].core.round for me in self._assembly.coordinator_ids)
        if self._assembly.experiment.is_asynchronous:
            return self.local_rounds // len(self._assembly.names)
        return self.slowest()

    def share(self) -> float | None:
        """Return how much of all that is to be done has been done, None where the run has no end of its own."""
        e = self._assembly.experiment
        shares = [self.rounds() / e.rounds] if e.rounds else []
        if e.stop_after_s:
            shares.append(self._clockwork.now_s / e.stop_after_s)
        return max(shares, default=None)
