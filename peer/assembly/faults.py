"""What goes wrong in the simulator, by the [faults] table: as it is written there, or at a rate, from the seed.

An entry with `at_s` happens at that second of simulated time. One with `round` counts completed rounds: a kill, stop or
leave happens to a peer as soon as that peer has completed so many, all else as soon as any peer has. `round = 0` is the
beginning.

    kill        the peer's process is gone, and with it all that it had not saved; nothing that it sends leaves any more
    restart     it is there again, as a new life of that peer
    stop        the peer stands still: it computes and sends nothing, and what arrives waits for it
    continue    it goes on
    cut, heal   the two peers do not hear each other, until they do; heal = true heals everything
    partition   who is in different groups does not hear each other; peers that no group names form one more
    leave       the peer says goodbye and is gone
    join        the peer was not there from the start, and comes now

With `for_s` the opposite follows so many seconds later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from peer.assembly.lines import unknown_peer
from peer.assembly.links import Pair
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.experiment.fault_entry import Action, FaultEntry, fault_entry
from peer.seeds import stream

STOPPED_S, CUT_S, DEAD_S = (1.0, 10.0), (1.0, 10.0), (5.0, 20.0)
"""Between what a random stop, a cut and a kill last."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Either `round` or `at_s` says when; `for_s` is None where it does not end by itself.

    `peers` are the two ends of a cut or a heal, none where everything is healed, and none of a partition, whose
    `groups` name every peer once.
    """

    what: Action
    peers: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    round: int | None = None
    at_s: float | None = None
    for_s: float | None = None


def faults_of(experiment: Experiment, names: Sequence[str]) -> tuple[Fault, ...]:
    """Return what faults.schedule says, in its order. Raises ConfigError for peers that are not there."""
    found = tuple(
        _fault(fault_entry(table), names, f"faults.schedule.{i}") for i, table in enumerate(experiment.faults.schedule)
    )
    _check_newcomers(found, names)
    return found


def newcomers(faults: Sequence[Fault]) -> frozenset[int]:
    """Return the peers that are not there from the start."""
    return frozenset(peer for fault in faults if fault.what == "join" for peer in fault.peers)


def random_faults(experiment: Experiment, names: Sequence[str], edges: Sequence[Pair]) -> Iterator[Fault]:
    """Yield random faults in the order of time, without end; none where faults.per_minute is 0.

    They are a Poisson process. Each is as likely a peer that stands still, an edge of `edges` that is cut, and a peer
    that is killed and restarted; without edges nothing is cut. Each ends by itself.
    """
    per_minute = experiment.faults.per_minute
    if not per_minute:
        return
    now_s = 0.0
    for number in count():
        draw = stream(experiment.seed, "faults", number)
        now_s += 60.0 / per_minute * draw.exponential()
        kind, place, extent = draw.integers(3 if edges else 2), draw.random(), draw.random()
        peer = int(place * len(names))
        if kind == 0:
            yield Fault("stop", (peer,), at_s=now_s, for_s=_within(STOPPED_S, extent))
        elif kind == 1:
            yield Fault("kill", (peer,), at_s=now_s, for_s=_within(DEAD_S, extent))
        else:
            a, b = edges[int(place * len(edges))]
            yield Fault("cut", (a, b), at_s=now_s, for_s=_within(CUT_S, extent))


def _within(between: tuple[float, float], share: float) -> float:
    low, high = between
    return low + (high - low) * share


def _fault(entry: FaultEntry, names: Sequence[str], key: str) -> Fault:
    index = {name: i for i, name in enumerate(names)}
    for name in (*entry.names, *(name for group in entry.groups for name in group)):
        if name not in index:
            raise ConfigError(f"{key}.{entry.what}", unknown_peer(name, names))
    groups = [tuple(sorted(index[name] for name in group)) for group in entry.groups]
    named = {peer for group in groups for peer in group}
    rest = tuple(i for i in range(len(names)) if i not in named)
    if groups and rest:
        groups.append(rest)
    peers = tuple(index[name] for name in entry.names)
    return Fault(entry.what, peers, tuple(groups), entry.round, entry.at_s, entry.for_s)


def _check_newcomers(faults: Sequence[Fault], names: Sequence[str]) -> None:
    """Refuse a second join of a peer, and what happens to it before it is there."""
    joins: dict[int, Fault] = {}
    if len(newcomers(faults)) == len(names):
        raise ConfigError("faults.schedule", "all peers join later; somebody must be there at the start")
    for i, fault in enumerate(faults):
        for peer in fault.peers if fault.what == "join" else ():
            if peer in joins:
                raise ConfigError(f"faults.schedule.{i}.join", f"{names[peer]} joins twice; restart is for coming back")
            joins[peer] = fault
    for i, fault in enumerate(faults):
        for peer in fault.peers if fault.what in ("kill", "restart", "stop", "continue", "leave") else ():
            if peer in joins and _is_before(fault, joins[peer]):
                text = f"{names[peer]} is not there yet: it joins later"
                raise ConfigError(f"faults.schedule.{i}.{fault.what}", text)


def _is_before(fault: Fault, other: Fault) -> bool:
    """Say whether a fault is for sure before another: rounds and seconds are not compared."""
    if fault.round is not None and other.round is not None:
        return fault.round < other.round
    if fault.at_s is not None and other.at_s is not None:
        return fault.at_s < other.at_s
    return False
