"""One entry of faults.schedule: {round = 20, kill = "peer-3"}, {at_s = 40, cut = ["peer-1", "peer-2"], for_s = 10}.

An entry has one time, `round` or `at_s`; one action; and where what goes wrong ends by itself, `for_s`. Whether there
are peers of these names is not looked at here: only the topology knows all of them.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeGuard, cast, get_args

from peer.experiment.wording import brief, listed, nearest, one_line

Action = Literal["kill", "restart", "stop", "continue", "cut", "heal", "partition", "leave", "join"]

ACTIONS: tuple[Action, ...] = get_args(Action)
TIMES = ("round", "at_s")
ENDING = ("kill", "stop", "cut", "partition")
"""What may have a `for_s`."""


class FaultEntry(NamedTuple):
    """What happens, to whom, when and for how long. Of `names` and `groups` one is empty; both are where everything is
    healed. `round` counts completed rounds; seconds are simulated ones."""

    what: Action
    names: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    round: int | None
    at_s: float | None
    for_s: float | None


class FaultError(ValueError):
    """An entry is wrong: `name` is the key in it that is to blame, "" where no single one is."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        self.text = text


def fault_entry(table: Mapping[str, Any]) -> FaultEntry:
    """Read one entry of the schedule. Raises FaultError."""
    _check_keys(table)
    what = _action(table)
    names, groups = _whom(what, table[what])
    return FaultEntry(what, names, groups, *_when(table), _for_s(what, table))


def _check_keys(table: Mapping[str, Any]) -> None:
    known = (*TIMES, *ACTIONS, "for_s")
    for key in table:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else f"an entry knows {', '.join(known)}"
            raise FaultError(one_line(key, 40), f"unknown key; {hint}")


def _action(table: Mapping[str, Any]) -> Action:
    found = [what for what in ACTIONS if what in table]
    if not found:
        raise FaultError("", f'{brief(table)} does nothing; it needs an action, such as kill = "peer-3"')
    if len(found) > 1:
        raise FaultError("", f"has {' and '.join(found)}; an entry has one action")
    return found[0]


# ---- When


def _when(table: Mapping[str, Any]) -> tuple[int | None, float | None]:
    found = [name for name in TIMES if name in table]
    if len(found) != 1:
        has = "both round and at_s" if found else "no time"
        raise FaultError("", f"has {has}; it needs one of them, such as round = 20 or at_s = 30")
    value = table[found[0]]
    if found[0] == "at_s":
        return None, _seconds("at_s", value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FaultError("round", f"{brief(value)} is not a whole number of 0 or more")
    return value, None


def _for_s(what: Action, table: Mapping[str, Any]) -> float | None:
    if "for_s" not in table:
        return None
    if what not in ENDING:
        raise FaultError("for_s", f"belongs to {listed(ENDING)}, and the action is {what}")
    for_s = _seconds("for_s", table["for_s"])
    if for_s == 0:
        raise FaultError("for_s", f"{brief(table['for_s'])} must be above 0")
    return for_s


def _seconds(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= cast(float, value) < math.inf:
        raise FaultError(name, f"{brief(value)} is not a number of seconds of 0 or more")
    return float(cast(float, value))


# ---- Whom


def _whom(what: Action, value: object) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    match what:
        case "partition":
            return (), _groups(value)
        case "heal" if value is True or value == "all":
            return (), ()
        case "cut" | "heal":
            return _pair(what, value), ()
    return _peers(what, value), ()


def _peers(what: Action, value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not _are_names(names):
        raise FaultError(what, f"{brief(value)} is not a peer's name, or a list of them")
    return _distinct(what, names)


def _pair(what: Action, value: object) -> tuple[str, ...]:
    if not _are_names(value) or len(value) != 2:
        everything = ", or true for everything that is cut" if what == "heal" else ""
        raise FaultError(what, f"{brief(value)} is not a list of two names{everything}")
    return _distinct(what, value)


def _groups(value: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, tuple | list) or len(value) < 2 or not all(map(_are_names, value)):
        raise FaultError("partition", f"{brief(value)} is not a list of two or more lists of names")
    _distinct("partition", tuple(name for group in value for name in group))
    return tuple(map(tuple, value))


def _are_names(value: object) -> TypeGuard[tuple[str, ...]]:
    return isinstance(value, tuple | list) and bool(value) and all(isinstance(name, str) for name in value)


def _distinct(what: Action, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise FaultError(what, f"names {brief(name)} twice")
    return names
