"""Where two experiments differ, in words: what peers tell each other when their digests are not the same."""

import hashlib
from collections.abc import Iterator, Mapping

from peer.experiment.wording import one_line


def differing_keys(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Where two fingerprints differ: "task.lr: 0.05 here, 0.1 there". Texts in `theirs` may be anything."""
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [
        f"{one_line(key)}: {one_line(ours.get(key, 'not set'))} here, {one_line(theirs.get(key, 'not set'))} there"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def short(text: str) -> str:
    return text if len(text) <= 64 else "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
