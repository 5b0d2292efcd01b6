"""What runs are called beside each other, and in which keys their experiments differ."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from peer.experiment import Experiment, Table
from peer.experiment.choices import COORDINATING
from peer.experiment.fingerprint import flat
from peer.experiment.wording import one_line, shown
from peer.report.effects import HEARS_AS_IT_IS, effective
from peer.report.runs import Recorded

NOT_SET = "-"
NO_EFFECT = ""
QUOTE = '"'
IN_A_LABEL = 3
"""At most so many keys go into a label."""

LONGEST = 30
"""A run whose label would have more characters is called after its folder."""

SHOWN = 48
BEGINNING = 8
"""Names that were given by hand are shown up to this length; of longer ones that begin alike, so much of the beginning
and so much before what differs."""


# ---- What differs

ALWAYS_SAID = ("topology.family", "algorithm.name", "coordinator.quorum", "coordinator.buffer")
"""Keys that say what a run is, even by their defaults."""


def differing(runs: Sequence[Recorded]) -> dict[str, list[str]]:
    """Return dotted key -> each run's value as text, for the keys of the experiments that are not the same in all.

    Where a key has no effect in a run, the text is empty. A key that only some of the runs use is left out where these
    have its default, but for those that say what a run is. The experiment's name is left out: it is the run's.
    """
    tables = [effective(run.experiment, str(run.summary["engine"])) for run in runs]
    usual = dict(flat(Experiment().model_dump()))
    found = {}
    for key in dict.fromkeys(key for table in tables for key in table):
        used = [table[key] for table in tables if key in table]
        is_partial = len(used) < len(runs) and (key in ALWAYS_SAID or any(value != usual.get(key) for value in used))
        if is_partial or len(set(map(_text, used))) > 1:
            found[key] = [short(_text(table[key])) if key in table else NO_EFFECT for table in tables]
    return found


def _text(value: object) -> str:
    return NOT_SET if value is None else shown(value)


def short(text: str, limit: int = 48) -> str:
    """Return text on one line; what is cut is told apart by a hash."""
    if len(text) <= limit:
        return one_line(text, limit * 10)
    return f"{one_line(text[: limit - 9], limit * 10)}… {hashlib.sha256(text.encode()).hexdigest()[:7]}"


# ---- Labels


def labels_of(runs: Sequence[Recorded]) -> list[str]:
    """Return a name for each run, no two alike: the experiment's, or where several have the same, what differs."""
    names = [run.name for run in runs]
    labels = list(names)
    for name, count in Counter(names).items():
        if count > 1:
            alike = [i for i, other in enumerate(names) if other == name]
            before = "" if count == len(runs) else f"{name}: "
            for i, what in zip(alike, _apart([runs[i] for i in alike]), strict=True):
                labels[i] = before + what if what else name
    return _numbered(_fitting(labels))


def _fitting(labels: Sequence[str]) -> list[str]:
    """Shorten labels by what long ones begin with in common, so that what differs stays; then at their ends."""
    long = [label for label in labels if len(label) > SHOWN]
    alike = [len(set(column)) == 1 for column in zip(*long, strict=False)]
    left_out = (alike.index(False) if False in alike else len(alike)) - BEGINNING
    if len(long) > 1 and left_out > BEGINNING:
        labels = [f"{one[:BEGINNING]}…{one[left_out:]}" if len(one) > SHOWN else one for one in labels]
    return [one if len(one) <= SHOWN else f"{one[: SHOWN - 1]}…" for one in labels]


def _numbered(labels: Sequence[str]) -> list[str]:
    counts, seen, numbered = Counter(labels), Counter[str](), []
    for label in labels:
        seen[label] += 1
        numbered.append(f"{label} #{seen[label]}" if counts[label] > 1 else label)
    return numbered


def _apart(runs: Sequence[Recorded]) -> list[str]:
    """Say in a few words what tells runs of one name apart; where that is too long or not possible, by the folder."""
    kinds = kinds_of([run.experiment for run in runs])
    texts = list(kinds) if len(set(kinds)) > 1 else [""] * len(runs)
    for kind in dict.fromkeys(kinds):
        those = [i for i, other in enumerate(kinds) if other == kind]
        for i, words in zip(those, _details([runs[i] for i in those]), strict=True):
            texts[i] = ", ".join(filter(None, (texts[i], *words)))
    engines = [str(run.summary["engine"]) for run in runs]
    folders = [run.folder.resolve().name for run in runs]
    texts = _told_further(texts, engines)
    texts = _told_further(_short_or(folders, texts), folders)
    return _short_or(folders, texts)


def _short_or(folders: Sequence[str], texts: Sequence[str]) -> list[str]:
    return [folder if len(text) > LONGEST else text for folder, text in zip(folders, texts, strict=True)]


def _told_further(texts: Sequence[str], more: Sequence[str]) -> list[str]:
    """Add something to those texts that are alike, if that tells them apart."""
    alike = Counter(texts)
    longer = [", ".join(filter(None, (text, more[i]))) if alike[text] > 1 else text for i, text in enumerate(texts)]
    return longer if len(set(longer)) > len(set(texts)) else list(texts)


def _details(runs: Sequence[Recorded]) -> list[list[str]]:
    """Return of each of some runs of one kind the keys that tell it from the others, in words."""
    found = _telling({key: values for key, values in differing(runs).items() if key not in OF_A_KIND})
    return [[_said(key, values[i]) for key, values in found.items() if values[i]] for i in range(len(runs))]


def _telling(keys: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return a few of the keys, of which each tells more runs apart than those before it."""
    found: dict[str, list[str]] = {}
    groups = 1
    while len(found) < IN_A_LABEL:
        told = {key: len(set(zip(*found.values(), values, strict=True))) for key, values in keys.items()}
        best = max(told, key=lambda key: told[key], default="")
        if not best or told[best] <= groups:
            break
        found[best], groups = keys[best], told[best]
    return found


# ---- A key in words

CLEAR = (
    *("task.model", "task.partition", "task.lr_schedule", "task.dtype", "topology.weights", "algorithm.order"),
    *("compression.name", "coordinator.aggregate", "coordinator.server_optimizer", "coordinator.staleness"),
)
"""Keys whose values are understood without them."""

UNCLEAR = ("none", "auto", "own", NOT_SET)
"""Values that say nothing without their key."""


def _said(key: str, text: str) -> str:
    """Return "inverse", "servers 4", "network.loss 0.1": as much of the key as it takes."""
    value, (table, _, last) = text.strip(QUOTE), key.rpartition(".")
    if key in CLEAR and value not in UNCLEAR:
        return value
    return f"{last if not table or _names()[last] == 1 else key} {value}"


def _names() -> Counter[str]:
    """Count in how many tables a key has the same name."""
    fields = {name: field.annotation for name, field in Experiment.model_fields.items()}
    tables = [kind for kind in fields.values() if isinstance(kind, type) and issubclass(kind, Table)]
    return Counter([name for table in tables for name in table.model_fields] + list(fields))


# ---- Kinds of runs

OF_A_KIND = ("coordinator.mode", "algorithm.name", "algorithm.mode", "topology.family")
"""What the words for a kind say."""


def kinds_of(experiments: Sequence[Experiment]) -> list[str]:
    """Return what each of them is, in a few words: "sync", "easgd", "ring gossip".

    Families of topologies are left out where it is something else that differs.
    """
    gossiping = [e for e in experiments if e.coordinator.mode == "none" and e.algorithm.name not in HEARS_AS_IT_IS]
    same_family = len({e.topology.family for e in gossiping}) == 1 and len({_way(e) for e in gossiping}) > 1
    return [kind_of(e, names_family=not same_family) for e in experiments]


def kind_of(e: Experiment, *, names_family: bool = True) -> str:
    mode = e.coordinator.mode
    if mode == "ring":
        return "ring all-reduce"
    if mode in COORDINATING:
        return mode if not e.is_elastic else "easgd" if mode == "sync" else f"easgd {mode}"
    if not names_family or e.algorithm.name in HEARS_AS_IT_IS:
        return _way(e)
    before, _, after = e.topology.family.partition(":")
    family = after.replace("\\", "/").rpartition("/")[2] if before == "file" else after or before
    return f"{family} {_way(e)}"


def _way(e: Experiment) -> str:
    """Return what peers without a coordinator do."""
    name = "gossip" if e.algorithm.name == "dpsgd" else e.algorithm.name.rpartition(":")[2]
    return f"async {name}" if e.algorithm.mode == "async" and e.algorithm.name != "adpsgd" else name
