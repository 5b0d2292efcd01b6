"""What a run of daemons came to: the sums over all nodes, the parameters they ended with, and the outcome in a word."""

from typing import Any

import numpy as np

from peer.daemon.distributed import uses_distributed
from peer.daemon.roster import PeerView, Roster
from peer.record import Ended, Outcome, Staleness


def ended(roster: Roster, dtype: np.dtype[Any]) -> Ended:
    """Return what all nodes have done, by what each said last. Who decided the outcome, and the history, come to it.

    `dtype` is that of the parameters, which nodes tell as bytes.
    """
    assembly, peers, away = roster.assembly, roster.peers, roster.away()
    ends = [peer.end for peer in peers if peer.end is not None]
    steps = [end["step"] for end in ends if "step" in end]
    found = Ended("daemons", steps[0] if steps else "plain", len(assembly.names))
    found.rounds = roster.rounds(away)
    found.rounds_seconds = max((end.get("rounds_seconds", 0.0) for end in ends), default=0.0)
    found.payload_bytes_sent = _count(peers, "payload_bytes")
    found.wire_bytes_sent = None if uses_distributed(assembly) else _count(peers, "wire_bytes")  # which does not tell
    found.gradients = sum(peer.last_figures["gradients"] for peer in peers if peer.last_figures)
    for peer in peers:  # a coordinator's of all its lives
        told = Staleness(**(peer.end or {}).get("staleness", {}))
        found.staleness.include(peer.staleness if peer.staleness.count else told)
    found.short_rounds = sum(end.get("short_rounds", 0) for end in ends)
    found.lost = [peer.name for i, peer in enumerate(peers) if i in away]
    params = [_params(peer, dtype) for peer in peers]
    found.params, parts = params[: found.peers], [x for x in params[found.peers :] if x is not None]
    if parts and len(parts) == len(assembly.coordinators):
        found.coordinator = np.concatenate(parts)
    found.details = next((end["details"] for end in ends if end.get("details")), "")
    return found


def outcome(
    roster: Roster, *, has_diverged: bool, is_interrupted: bool, has_reached_its_end: bool
) -> tuple[Outcome, str]:
    """Return what it came to, and why where the word alone does not say it."""
    peers = roster.peers
    for peer in peers:
        if peer.end is not None and peer.outcome == "failed":
            return "failed", f"{peer.name}: {peer.end['failure']}"
    if has_diverged:
        return "diverged", ""
    if is_interrupted:
        return "interrupted", ""
    if has_reached_its_end:
        return "finished", ""
    ended_well = [peer for peer in peers if peer.end is not None]
    if not ended_well:
        return "failed", "every peer's process ended before its time"
    alone = [peer.name for peer in peers if peer.outcome == "alone"]
    if alone:
        return "alone", f"{', '.join(alone)} never heard a neighbour"
    stopped = [peer.name for peer in peers if peer.outcome == "interrupted"]
    if len(stopped) == len(ended_well):
        return "interrupted", f"{', '.join(stopped)} was stopped"
    return "finished", ""


def _count(peers: list[PeerView], name: str) -> int:
    """Return the sum over all nodes and their lives."""
    return sum(peer.last_figures.get(name, 0) + peer.earlier[name] for peer in peers)


def _params(peer: PeerView, dtype: np.dtype[Any]) -> np.ndarray | None:
    raw = (peer.end or {}).get("params")
    return None if raw is None else np.frombuffer(raw, dtype=dtype)
