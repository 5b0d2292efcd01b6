"""What runs are called beside each other, and in which keys their experiments differ."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from peer.experiment.fingerprint import flat
from peer.experiment.wording import one_line, shown
from peer.report.runs import Recorded

NOT_SET = "-"
QUOTE = '"'
IN_A_LABEL = 3
"""At most so many keys go into a label."""


def differing(runs: Sequence[Recorded]) -> dict[str, list[str]]:
    """Return dotted key -> each run's value as text, for the keys of the experiments that are not the same in all.

    The experiment's name is left out: it is the run's.
    """
    tables = [dict(flat(run.experiment.model_dump(exclude_none=True))) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table if key != "name")
    texts = {key: [shown(table[key]) if key in table else NOT_SET for table in tables] for key in keys}
    return {key: list(map(short, values)) for key, values in texts.items() if len(set(values)) > 1}


def short(text: str, limit: int = 48) -> str:
    """Return text on one line; what is cut is told apart by a hash."""
    if len(text) <= limit:
        return one_line(text, limit * 10)
    return f"{one_line(text[: limit - 9], limit * 10)}… {hashlib.sha256(text.encode()).hexdigest()[:7]}"


def labels_of(runs: Sequence[Recorded]) -> list[str]:
    """Return a name for each run, no two alike: the experiment's, with what differs among those of the same name."""
    names = [run.name for run in runs]
    labels = list(names)
    for name, count in Counter(names).items():
        if count > 1:
            alike = [i for i, other in enumerate(names) if other == name]
            for i, what in zip(alike, _apart([runs[i] for i in alike]), strict=True):
                labels[i] = f"{name} ({what})" if what else name
    counts, seen = Counter(labels), Counter[str]()
    for i, label in enumerate(labels):
        seen[label] += 1
        if counts[label] > 1:
            labels[i] = f"{label} #{seen[label]}"
    return labels


def _apart(runs: Sequence[Recorded]) -> list[str]:
    """Say what tells runs of one name apart: a few keys that do, with their values, else the engine or the folder."""
    found = _telling(differing(runs))
    words = [[f"{key} = {values[i].strip(QUOTE)}" for key, values in found.items()] for i in range(len(runs))]
    texts = [", ".join(said) for said in words]
    for more in ([str(run.summary["engine"]) for run in runs], [run.folder.resolve().name for run in runs]):
        alike = Counter(texts)
        longer = [f"{text}, {more[i]}".lstrip(", ") if alike[text] > 1 else text for i, text in enumerate(texts)]
        if len(set(longer)) > len(set(texts)):
            texts = longer
    return texts


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
