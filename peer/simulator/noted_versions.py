"""What a coordinator that waited for nobody noted in a run's events: from which pushes it made each version.

For each push that it took in there is a line, in its order: {"event": "update", "peer", "version", "staleness",
"distance"}.
"""

from dataclasses import dataclass
from pathlib import Path

from peer.assembly import Assembly
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.protocol.messages import PeerId
from peer.simulator.left import KEY, Left, Note, events_of, left_by, not_an_event

LACKING = "what was not finite was left out, or lines are missing"


@dataclass(frozen=True)
class Taken:
    """A push that was taken in: whose it was, and how many versions it was behind."""

    sender: PeerId
    staleness: int


def versions_of(run: Path, assembly: Assembly) -> list[list[Taken]]:
    """Read from a run folder what each version was made from, the first one first.

    Raises ConfigError where that is not noted, or cannot be all.
    """
    check_is_noted(assembly.experiment)
    c, versions = assembly.experiment.coordinator, list[list[Taken]]()
    for where, note in events_of(run):
        if note["event"] in ("lost", "restarted"):
            _refuse_a_loss(note, where)
        if note["event"] == "update":
            _add(versions, note, assembly.names, where)
    path, size = run / "events.jsonl", c.buffer if c.mode == "buffered" else 1
    if not versions:
        raise ConfigError(KEY, f"{path} has no updates; without a version there is nothing to do again")
    for version, made in enumerate(versions, 1):
        if len(made) != size:
            text = f"{path} has {len(made)} updates for version {version}, which takes {size}"
            why = "" if len(made) > size else f"; {LACKING}"
            raise ConfigError(KEY, text + why)
    _check_end(left_by(run), path, len(versions))
    return versions


def check_is_noted(experiment: Experiment) -> None:
    """Refuse runs beside coordinators that no notes bring back, or that need none. Raises ConfigError."""
    c = experiment.coordinator
    if c.mode in ("sync", "ring"):
        text = f'with coordinator.mode = "{c.mode}" a run is in step and needs no notes'
        nearly = "" if c.engine == "own" else f", to rounding, as {c.engine} made the sums"
        raise ConfigError(KEY, f"{text}; simulate --engine events comes to the same parameters{nearly}")
    if c.mode == "quorum":
        text = "a quorum leaves out what comes too late, and whose that was is not noted"
        raise ConfigError(KEY, f"{text}; such a run cannot be done again")
    if c.servers > 1:
        text = f"which of the {c.servers} servers made a version is not noted"
        raise ConfigError(KEY, f"{text}; only a run with one can be done again")


def _refuse_a_loss(note: Note, where: str) -> None:
    """After a loss, or a fall, pushes may have come to nothing, and versions with them: the notes do not say."""
    who = note.get("neighbour") or note.get("peer")
    did = "was started again" if note["event"] == "restarted" else "was lost on the way"
    text = f"{where}: {who} {did}, and what came to nothing by that is not noted"
    raise ConfigError(KEY, f"{text}; such a run cannot be done again")


def _add(versions: list[list[Taken]], note: Note, names: tuple[str, ...], where: str) -> None:
    peer, version, staleness = note.get("peer"), note.get("version"), note.get("staleness")
    if not isinstance(version, int) or not isinstance(staleness, int) or peer is None:
        raise not_an_event(where)
    if peer not in names:
        raise ConfigError(KEY, f"{where}: {peer} is not a peer of this experiment")
    if not 0 <= staleness < version:
        raise ConfigError(KEY, f"{where}: version {version} cannot take in what is {staleness} versions behind")
    if version > len(versions) + 1:
        text = f"{where}: version {len(versions) + 1} has no update before one of version {version}"
        raise ConfigError(KEY, f"{text}; {LACKING}")
    if version < len(versions):
        raise ConfigError(KEY, f"{where}: version {version} is there again, after version {len(versions)}")
    if version > len(versions):
        versions.append([])
    versions[-1].append(Taken(names.index(peer), staleness))


def _check_end(left: Left, path: Path, versions: int) -> None:
    """The summary says how many versions there were."""
    made = left.summary.get("rounds", versions)
    if made != versions:
        text = f"{path} ends with version {versions}, and the run with version {made}"
        raise ConfigError(KEY, f"{text}; what was made after a stop is not noted, or lines are missing")
