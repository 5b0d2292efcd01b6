"""The links of the simulator, by the [network] table: how long a message is on its way, and whether it arrives.

The table's `file` is CSV with a header, as `topology.family = "file:links.csv"` takes it too, so that one file can say
who is linked and how well. Peers stand in it by name, or by number, from 0 in node order. What a line leaves empty is
as [network] has it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer.assembly.lines import lines_of, number_in, numbered, unknown_peer
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.experiment.wording import brief

KEY = "network.file"

HEADER_BYTES = 64
"""What each message has on the wire beside its payload."""

RESEND_S = 0.2
"""A message that was lost is sent again so long, and a round trip, later."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link. `bandwidth_mbps` is in 10^6 bits a second, 0 for no limit; `loss` is the share of
    messages that do not arrive. `is_local`: both ends are in one process, and nothing goes over a line."""

    latency_ms: float = 0.0
    bandwidth_mbps: float = 0.0
    loss: float = 0.0
    is_local: bool = False


FIGURES = ("latency_ms", "bandwidth_mbps", "loss")
LOCAL = Link(is_local=True)


@dataclass(frozen=True)
class LinkTable:
    """The links that have a line of their own, and what all others are like."""

    all: Link = Link()
    own: Mapping[Pair, Link] = field(default_factory=dict)

    def of(self, sender: int, receiver: int) -> Link:
        """Return a link; a line of the file for the other direction counts where this one has none."""
        found = self.own.get((sender, receiver))
        return self.own.get((receiver, sender), self.all) if found is None else found

    def one_way_ms(self, sender: int, receiver: int) -> float:
        """Return how long a message is on its way, without its transmission."""
        return self.of(sender, receiver).latency_ms

    def round_trip_ms(self, a: int, b: int) -> float:
        """Return how long it takes from one peer to the other and back."""
        return self.one_way_ms(a, b) + self.one_way_ms(b, a)


def transmission_s(link: Link, payload_bytes: int) -> float:
    """Return for how long a message keeps its link busy, from its first bit to its last."""
    if not link.bandwidth_mbps:
        return 0.0
    return (payload_bytes + HEADER_BYTES) * 8 / (link.bandwidth_mbps * 1e6)


def links_of(experiment: Experiment, names: Sequence[str], within: Iterable[Pair] = ()) -> LinkTable:
    """Read the links of an experiment; `within` are pairs in one process.

    Raises ConfigError for what is wrong in the file, with its line.
    """
    network = experiment.network
    all_links = Link(network.latency_ms, network.bandwidth_mbps, network.loss)
    path = experiment.folder / Path(network.file).expanduser()
    own = _read(path, names, all_links) if network.file else {}
    return LinkTable(all_links, own | {pair: LOCAL for a, b in within for pair in ((a, b), (b, a))})


def _read(path: Path, names: Sequence[str], all_links: Link) -> dict[Pair, Link]:
    index = numbered(names)
    found: dict[Pair, Link] = {}
    for where, cells in lines_of(path, KEY, ("from", "to"), FIGURES):
        for name in (cells["from"], cells["to"]):
            if name not in index:
                raise ConfigError(KEY, f"{where}: {unknown_peer(name, names)}")
        pair = index[cells["from"]], index[cells["to"]]
        if pair in found:
            raise ConfigError(KEY, f"{where}: the link {cells['from']} to {cells['to']} stands in the file twice")
        found[pair] = _link(cells, where, all_links)
    return found


def _link(cells: Mapping[str, str], where: str, all_links: Link) -> Link:
    stated = {name: number_in(cells, name) for name in FIGURES if cells.get(name)}
    if not stated:
        raise ConfigError(KEY, f"{where}: it says nothing of the link; there are {', '.join(FIGURES)}")
    for name, number in stated.items():
        if not 0.0 <= number < math.inf:
            raise ConfigError(KEY, f"{where}: {name} is {brief(cells[name])}, not a number of 0 or more")
    if stated.get("loss", 0.0) >= 1.0:
        raise ConfigError(KEY, f"{where}: loss is {brief(cells['loss'])}, and must be below 1: nothing would arrive")
    return Link(**{name: stated.get(name, getattr(all_links, name)) for name in FIGURES})
