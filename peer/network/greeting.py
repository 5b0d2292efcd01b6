"""The greeting: who a peer is and what it runs, and why another one is turned down."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from peer.errors import WireError
from peer.network.wire import LIST_ITEMS

SHORT_CHARACTERS = 256
LAYOUT_BYTES = 32 * 1024
"""How much of the layout's lines a greeting carries; the digest covers the rest."""

SHOWN = 8
"""How many differences a refusal lists."""


@dataclass(frozen=True)
class Greeting:
    """What each side of a new connection says of itself.

    `session` is drawn anew by each process. `fingerprint` has a short text for every key of the experiment that all
    peers must share, `digest` covers the same keys whole. `layout` has a line for each tensor of the model.
    """

    name: str
    session: str
    digest: str
    fingerprint: dict[str, str]
    layout_digest: str
    layout: list[str]
    code: str
    device: str
    step: str

    def to_wire(self) -> dict[str, Any]:
        return {**asdict(self), "layout": _beginning(self.layout, LAYOUT_BYTES)}


def from_wire(fields: Mapping[str, Any]) -> Greeting:
    """Check the types of what another peer sent. Raises WireError."""
    texts = ("name", "session", "digest", "layout_digest", "code", "device", "step")
    if set(fields) != set(Greeting.__dataclass_fields__):
        raise WireError("a greeting with other fields than this version knows")
    if not all(_is_short_text(fields[name]) for name in texts):
        raise WireError("a greeting with a field that is no short text")
    fingerprint, layout = fields["fingerprint"], fields["layout"]
    if not isinstance(fingerprint, dict) or not all(isinstance(x, str) for pair in fingerprint.items() for x in pair):
        raise WireError("a greeting whose fingerprint is no table of texts")
    if not isinstance(layout, tuple | list) or not all(isinstance(line, str) for line in layout):
        raise WireError("a greeting whose layout is no list of texts")
    return Greeting(**{**fields, "layout": list(layout)})


def refusal(ours: Greeting, theirs: Greeting) -> str | None:
    """Return why these two cannot train together, with both sides' values; None if they can.

    Device and step may differ: a GPU beside a CPU is shown, not refused.
    """
    if ours.digest != theirs.digest:
        return "another experiment: " + ("; ".join(_differences(ours, theirs)) or "the files differ")
    if ours.code != theirs.code:
        return (
            f"another version of the user's code: {ours.code[:16]} at {ours.name}, {theirs.code[:16]} at {theirs.name}"
        )
    if ours.layout_digest != theirs.layout_digest:
        here = _beginning(ours.layout, LAYOUT_BYTES)
        return (
            f"another model layout: {_only_in(here, theirs.layout)} at {ours.name}, "
            f"{_only_in(theirs.layout, here)} at {theirs.name}"
        )
    return None


def plain(text: str, characters: int = SHORT_CHARACTERS) -> str:
    """Return another peer's text as it may be shown at a terminal: one line, no control characters, cut short."""
    return "".join(c if c.isprintable() else "?" for c in text[:characters])


def _differences(ours: Greeting, theirs: Greeting) -> list[str]:
    keys = sorted(ours.fingerprint.keys() | theirs.fingerprint.keys())
    differing = [key for key in keys if ours.fingerprint.get(key) != theirs.fingerprint.get(key)]
    shown = [
        f"{plain(key)} is {plain(ours.fingerprint.get(key, 'not set'))} at {ours.name} "
        f"and {plain(theirs.fingerprint.get(key, 'not set'))} at {theirs.name}"
        for key in differing[:SHOWN]
    ]
    more = len(differing) - len(shown)
    return [*shown, f"and {more} more"] if more else shown


def _only_in(lines: list[str], others: list[str]) -> str:
    known = set(others)
    return ", ".join(plain(line) for line in [line for line in lines if line not in known][:4]) or "nothing more"


def _beginning(lines: list[str], most_bytes: int) -> list[str]:
    """Return the first lines, as many as fit."""
    fitting, left = [], most_bytes
    for line in lines[:LIST_ITEMS]:
        left -= len(line.encode())
        if left < 0:
            break
        fitting.append(line)
    return fitting


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= SHORT_CHARACTERS and value.isprintable()
