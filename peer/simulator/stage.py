"""The stage of a simulated run: the clockwork and the troubles of an experiment that was made ready."""

from collections.abc import Callable
from math import inf

from peer.assembly import Assembly
from peer.assembly.faults import newcomers, random_faults
from peer.protocol.membership import Patience
from peer.protocol.messages import PeerId
from peer.simulator.clockwork import Clockwork
from peer.simulator.shell import Shell
from peer.simulator.troubles import Troubles
from peer.simulator.world import World


def clockwork_of(assembly: Assembly, shell: Shell) -> Clockwork:
    """Return all nodes on one virtual clock; `shell` is asked for their cores at once."""
    e = assembly.experiment
    world = World(assembly.links, e.network, e.seed, resends=not e.transport.round_deadline_s)
    guests, absent = _guests(assembly), newcomers(assembly.faults)
    absent |= {guests[host] for host in absent & guests.keys()}
    t = e.transport
    patience = Patience(t.suspect_s, t.dead_s, t.join_s) if is_troubled(assembly) else None
    return Clockwork(len(assembly.nodes), shell, world, patience, absent, t.heartbeat_s, assembly.dials)


def troubles_of(assembly: Assembly, clockwork: Clockwork, tell: Callable[[str, tuple[PeerId, ...]], None]) -> Troubles:
    """Return what goes wrong on this clockwork; `tell` is told what has happened to whom."""
    peers = range(len(assembly.names)) if is_troubled(assembly) else ()
    edges = [(a, b) for a in peers for b in sorted(assembly.neighbours(a)) if a < b]
    random = random_faults(assembly.experiment, assembly.names, edges)
    return Troubles(clockwork, assembly.faults, random, tell, _guests(assembly))


def stuck_after_s(assembly: Assembly) -> float:
    """Return how long nothing may happen before nobody can be counted on to go on: inf where nothing can go wrong."""
    t = assembly.experiment.transport
    return t.join_s + 2 * t.dead_s if is_troubled(assembly) else inf


def is_troubled(assembly: Assembly) -> bool:
    """Say whether anything can go wrong."""
    return bool(assembly.faults or assembly.experiment.faults.per_minute)


def _guests(assembly: Assembly) -> dict[PeerId, PeerId]:
    """Return the coordinators by the node in whose process they are: their own, but for that of a peer that trains."""
    return {assembly.host_of(coordinator): coordinator for coordinator in assembly.coordinator_ids}
