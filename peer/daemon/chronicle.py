"""The history of a run of daemons: what each node was judged to be, put together to entries as soon as all have told.

Where peers have a model each, an entry waits until all that are there have been judged. Where the coordinator's is the
only one, it judges that for all, and what it tells makes an entry by itself. Several coordinators have a part each:
where entries show the whole, it comes into them when the last part is told.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from peer.assembly import Assembly
from peer.assembly.coordination import judges_copies, owner_of
from peer.daemon.roster import Roster
from peer.entries import Entries, Judged
from peer.history import Figures, History
from peer.protocol.messages import PeerId
from peer.record import Divergence, PeerScore, Row, listed, metric_row, round_seconds
from peer.task.layout import Layout

KEPT_PARTS = 8
"""Of how many entries the coordinators' parameters may still be missing."""

Added = Callable[[Row, Divergence | None], None]


class Chronicle:
    """Makes the history's entries out of what nodes tell.

    `on_entry` and `on_metric` are told what is to be recorded; `on_added` each entry when it is in the history, and
    where the run has left all bounds, if it has. `on_late` is told which node has been judged after a round that the
    history has gone beyond.
    """

    def __init__(
        self,
        assembly: Assembly,
        layout: Layout,
        roster: Roster,
        *,
        on_entry: Callable[[Row], None],
        on_metric: Callable[[Row], None],
        on_added: Added,
        on_late: Callable[[PeerId, int], None],
    ) -> None:
        self._assembly = assembly
        self._roster = roster
        self._on_metric = on_metric
        self._on_added = on_added
        self._on_late = on_late
        self._dtype = dtype_of(layout)
        every = assembly.experiment.record.params == "every"
        gossiped = assembly.shared_columns(layout)
        self._history = History(assembly.nodes, every, gossiped, on_entry, owner_of(assembly))
        self._entries = Entries()  # that wait for somebody
        self._judged: set[PeerId] = set()  # peers that have been judged at all
        self._last: dict[PeerId, Judged] = {}  # what each peer was where the run was ended
        has_parts = every and bool(assembly.coordinators)
        self._parts = Parts(assembly.coordinator_ids, self._dtype) if has_parts else None
        self._began_s = monotonic()
        self.is_one_model = bool(assembly.coordinators) and not judges_copies(assembly)

    @property
    def entries(self) -> list[Row]:
        """The entries so far."""
        return self._history.entries

    def take(self, i: PeerId, fields: dict[str, Any], seconds: float) -> None:
        """Take in what node i tells: a peer of itself, or a coordinator of all, or what its parameters are.

        `seconds` are those since all had been told where the others are.
        """
        if self._parts is not None and i in self._assembly.coordinator_ids:
            self._parts.add(i, fields["round"], fields["params"])
            self._parts.put_into(self.entries)
        judged = self._judged_by(i, fields, seconds)
        if not judged:
            return
        self._note(judged, fields["round"], fields["payload_bytes"])
        if fields["is_last"]:
            self._last |= judged
        elif self.is_one_model:
            if self._is_late(fields["round"]):  # made again after a fall: who waits for a word has it
                self._on_late(i, fields["round"])
            else:
                away = self._roster.away()
                self._add(fields["round"], {j: one for j, one in judged.items() if j not in away})
        else:
            for j, one in judged.items():
                self._entries.add(j, fields["round"], one)

    def add_complete(self) -> None:
        """Add an entry for each round that all peers which are still there have evaluated."""
        if self.is_one_model:
            return
        away = self._roster.away()
        peers = enumerate(self._roster.peers[: len(self._assembly.names)])
        there = {i: p.round if i in self._judged else -1 for i, p in peers if i not in away}
        for round, judged in self._entries.complete(there):
            if not self._is_late(round):
                self._add(round, judged)

    def add_last(self) -> None:
        """A run that was ended in the middle has its last entry there, by the round of the slowest."""
        away = self._roster.away()
        last = {i: judged for i, judged in self._last.items() if i not in away}
        round = self._roster.rounds(away)
        last_round = self.entries[-1]["round"] if self.entries else -1
        if last and (round > max(0, last_round) or round == last_round > 0):
            self._add(round, last)

    # ---- Inside

    def _judged_by(self, i: PeerId, fields: dict[str, Any], seconds: float) -> dict[PeerId, Judged]:
        """Return what each peer is worth by what node i tells; nothing where others judge."""
        scores = [PeerScore(**score) for score in fields["scores"]]
        if not scores:
            return {}
        params = np.frombuffer(fields["params"], dtype=self._dtype)
        earlier = self._roster.peers[i].earlier["payload_bytes"]
        sent = fields["payload_bytes"] + earlier + fields["heard_bytes"]
        at = {"payload_bytes_sent": sent, "seconds": round_seconds(seconds)}
        everyone = range(len(self._assembly.names))
        whose = [i] if len(scores) == 1 and i in everyone else everyone
        return {j: Judged(Figures(score, params), at) for j, score in zip(whose, scores, strict=True)}

    def _note(self, judged: Mapping[PeerId, Judged], round: int, payload_bytes: int) -> None:
        seconds = monotonic() - self._began_s
        for j, one in judged.items():
            peer = self._roster.peers[j]
            peer.score = one.figures.score
            self._judged.add(j)
            self._on_metric(metric_row(peer.name, round, one.figures.score, seconds, payload_bytes))

    def _is_late(self, round: int) -> bool:
        """Say whether the history has gone on beyond this round."""
        return bool(self.entries) and round <= self.entries[-1]["round"]

    def _add(self, round: int, judged: Mapping[PeerId, Judged]) -> None:
        """The entry is of the time at which the last of them was judged, and of the bytes of all."""
        if not judged:
            return
        each = [one.at["payload_bytes_sent"] for one in judged.values()]
        bytes_sent = max(each) if self.is_one_model else sum(each)  # one model is judged for all
        for last in self.entries[-1:]:  # of a peer that is gone since, say
            bytes_sent = max(bytes_sent, last["payload_bytes_sent"])
        at: Row = {"payload_bytes_sent": bytes_sent, "seconds": max(one.at["seconds"] for one in judged.values())}
        if self._parts is not None:
            at["coordinator"] = None  # until all have told
        found = self._history.add(round, {i: one.figures for i, one in judged.items()}, at)
        if self._parts is not None:
            self._parts.put_into(self.entries)
        self._on_added(self.entries[-1], found)


class Parts:
    """The parameters of each version of several coordinators, until all have told theirs."""

    def __init__(self, ids: Sequence[PeerId], dtype: np.dtype[Any]) -> None:
        self._ids = ids
        self._dtype = dtype
        self._told: dict[int, dict[PeerId, bytes]] = {}  # by version

    def add(self, i: PeerId, version: int, params: bytes) -> None:
        self._told.setdefault(version, {}).setdefault(i, params)  # as it was when it was first made

    def put_into(self, entries: list[Row]) -> None:
        """Put the coordinators' parameters into entries of versions of which all have told theirs."""
        for entry in entries[-KEPT_PARTS:]:
            parts = self._told.get(entry["round"], {})
            if len(parts) == len(self._ids) and entry.get("coordinator") is None:
                whole = np.concatenate([np.frombuffer(parts[i], dtype=self._dtype) for i in self._ids])
                entry["coordinator"] = listed([whole])[0]
        last = entries[-1]["round"] if entries else 0
        for version in [v for v in self._told if v < last and len(self._told[v]) == len(self._ids)][:-KEPT_PARTS]:
            del self._told[version]


def dtype_of(layout: Layout) -> np.dtype[Any]:
    """Return the type of the numbers in parameters that come as bytes."""
    return np.dtype(str(layout.dtype).removeprefix("torch."))
