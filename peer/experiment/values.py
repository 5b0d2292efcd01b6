"""The kinds of value that a key may hold, and the checks behind them.

A check returns the value, or raises ValueError with the words that follow the key.
"""

import ipaddress
import math
import re
import unicodedata
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from peer.experiment.choices import CHOICES, Choice, matches
from peer.experiment.wording import brief, listed, nearest

MAX_INT = 2**63 - 1
MAX_PEERS = 10_000_000


def _check_choice(choice: Choice, value: str) -> str:
    if value in choice.built or matches(value, choice.forms):
        return value
    allowed = [*choice.built, *(form.text for form in choice.forms)]
    if value in choice.later or matches(value, choice.later_forms):
        raise ValueError(f"{brief(value)} is not built yet; built are: {', '.join(allowed)}")
    near = nearest(value, choice.built)
    hint = f" (did you mean {near}?)" if near and len(allowed) > 1 else ""
    raise ValueError(f"{brief(value)} is not known; choose {listed(allowed)}{hint}")


def one_of(key: str) -> AfterValidator:
    return AfterValidator(partial(_check_choice, CHOICES[key]))


def _check_name(name: str, max_bytes: int = 200) -> str:
    """A name becomes a folder's name, and stands in one-line messages."""
    if not name.strip() or name in (".", ".."):
        raise ValueError(f"{brief(name)} is not a name")
    if "/" in name or "\\" in name:
        raise ValueError(f"{brief(name)} must not contain / or \\, for a folder is named after it")
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
        raise ValueError(f"{brief(name)} must not contain control characters")
    if len(name.encode()) > max_bytes:
        raise ValueError(f"{brief(name)} must be at most {max_bytes} bytes long")
    return name


def check_peer_name(name: str) -> str:
    """Return the name of a peer; raises ValueError for what cannot be one."""
    if len(name) > 64:
        raise ValueError(f"{brief(name)} must be at most 64 characters long")
    return _check_name(name)


def _check_address(text: str, lowest_port: int = 1, scheme_optional: bool = True) -> str:
    example = "host:5555 or tcp://host:5555" if scheme_optional else "tcp://0.0.0.0:5555"
    wrong = f"{brief(text)} is not an address such as {example}, IPv6 in brackets"
    found = re.fullmatch(r"(tcp://)?(\[[^\s\[\]]+\]|[^\s\[\]:/@]+):([0-9]{1,5})", text)
    if found is None or not text.isprintable() or not (found[1] or scheme_optional):
        raise ValueError(wrong)
    if found[2].startswith("[") and not _is_ipv6(found[2][1:-1]):
        raise ValueError(wrong)
    if not lowest_port <= int(found[3]) <= 65535:
        raise ValueError(f"{brief(text)}: a port is from {lowest_port} to 65535")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _check_listen(text: str) -> str:
    if text in ("auto", "none"):
        return text
    if not text.startswith("tcp://"):
        raise ValueError(f'{brief(text)} is not known; choose auto, none or "tcp://ADDRESS:PORT"')
    return _check_address(text, lowest_port=0, scheme_optional=False)


def _check_advertise(text: str) -> str:
    return _check_address(text) if text else text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_vector(value: object) -> tuple[float, ...]:
    if not isinstance(value, tuple) or not value:
        raise ValueError(f"{brief(value)} is not an array of numbers")
    for number in value:
        if not _is_number(number):
            raise ValueError(f"{brief(number)} is not a number")
    try:
        vector = tuple(map(float, value))
    except OverflowError:
        raise ValueError(f"{brief(value)} does not fit a float64") from None
    if not all(map(math.isfinite, vector)):
        raise ValueError(f"{brief(value)} is not finite")
    return vector


def _check_init(value: object) -> object:
    """Flat: one start for all peers. Nested: one start for each peer."""
    if not isinstance(value, tuple) or not any(isinstance(row, tuple) for row in value):
        return _check_vector(value)
    rows = tuple(map(_check_vector, value))
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"row {i} has length {len(row)}, and row 0 has length {len(rows[0])}")
    return rows


def _check_filled(value: tuple[object, ...]) -> tuple[object, ...]:
    if not value:
        raise ValueError("[] must not be empty")
    return value


def _check_quorum(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MAX_PEERS
    fraction = isinstance(value, float) and 0 < value <= 1
    if not (whole or fraction):
        raise ValueError(f"{brief(value)} must be a fraction up to 1.0, or a count of 2 and more")
    return value


def _check_args(args: dict[str, Any]) -> dict[str, Any]:
    for name, value in args.items():
        if not name.isidentifier():
            raise ValueError(f"{brief(name)} is not an argument's name")
        if not _is_plain(value):
            raise ValueError(f"{brief({name: value})} must be text, finite numbers, true, false or arrays of them")
    return args


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


Int = Annotated[int, Field(ge=0, le=MAX_INT)]
Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Peers = Annotated[int, Field(ge=1, le=MAX_PEERS)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Chance = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
SomeSeconds = Annotated[float, Field(gt=0, le=1e9)]
Device = Annotated[str, one_of("task.device")]
Address = Annotated[str, AfterValidator(_check_address)]
Listen = Annotated[str, AfterValidator(_check_listen)]
Advertise = Annotated[str, AfterValidator(_check_advertise)]
FILLED = AfterValidator(_check_filled)
Name = Annotated[str, AfterValidator(_check_name)]
PeerName = Annotated[str, AfterValidator(check_peer_name)]
Quorum = Annotated[int | float, BeforeValidator(_check_quorum)]
Arguments = Annotated[dict[str, Any], AfterValidator(_check_args)]
Row = tuple[tuple[float, ...], float]
Shard = tuple[Row, ...]
Starts = Annotated[tuple[float, ...] | tuple[tuple[float, ...], ...], BeforeValidator(_check_init)]
