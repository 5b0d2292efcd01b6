"""The greeting: who a peer is and what it runs, and why another one is turned down."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from peer.errors import WireError


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
        return asdict(self)


def from_wire(fields: Mapping[str, Any]) -> Greeting:
    """Check the types of what another peer sent. Raises WireError."""
    texts = ("name", "session", "digest", "layout_digest", "code", "device", "step")
    if set(fields) != set(Greeting.__dataclass_fields__):
        raise WireError("a greeting with other fields than this version knows")
    if not all(isinstance(fields[name], str) and len(fields[name]) <= 256 for name in texts):
        raise WireError("a greeting with a field that is no short text")
    fingerprint, layout = fields["fingerprint"], fields["layout"]
    if not isinstance(fingerprint, dict) or not all(isinstance(v, str) for v in fingerprint.values()):
        raise WireError("a greeting whose fingerprint is no table of texts")
    if not isinstance(layout, tuple | list) or not all(isinstance(line, str) for line in layout):
        raise WireError("a greeting whose layout is no list of texts")
    return Greeting(**{**fields, "layout": list(layout)})


def refusal(ours: Greeting, theirs: Greeting) -> str | None:
    """Return why these two cannot train together, with both sides' values; None if they can.

    Device and step may differ: a GPU beside a CPU is shown, not refused.
    """
    if ours.digest != theirs.digest:
        keys = sorted(ours.fingerprint.keys() | theirs.fingerprint.keys())
        differing = [
            f"{key} is {ours.fingerprint.get(key, 'not set')} at {ours.name} "
            f"and {theirs.fingerprint.get(key, 'not set')} at {theirs.name}"
            for key in keys
            if ours.fingerprint.get(key) != theirs.fingerprint.get(key)
        ]
        return "another experiment: " + ("; ".join(differing[:8]) or "the files differ")
    if ours.code != theirs.code:
        return (
            f"another version of the user's code: {ours.code[:16]} at {ours.name}, {theirs.code[:16]} at {theirs.name}"
        )
    if ours.layout_digest != theirs.layout_digest:
        only_ours = [line for line in ours.layout if line not in theirs.layout]
        only_theirs = [line for line in theirs.layout if line not in ours.layout]
        return (
            f"another model layout: {', '.join(only_ours[:4]) or 'nothing more'} at {ours.name}, "
            f"{', '.join(only_theirs[:4]) or 'nothing more'} at {theirs.name}"
        )
    return None
