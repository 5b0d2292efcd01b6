"""The words of a refusal: of all that is wrong, what comes first in the file, in one line that names its key."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from peer.errors import ConfigError
from peer.experiment.experiment import Experiment
from peer.experiment.problem import Problem
from peer.experiment.schema import PeerEntry, Table
from peer.experiment.wording import brief, listed, nearest, one_line

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text (a string in quotes)",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "{} or above"),
    "greater_than": ("gt", "above {}"),
    "less_than_equal": ("le", "{} or below"),
    "less_than": ("lt", "below {}"),
}
# A pattern of keys -> what follows an error there.
_HINTS = {
    r"peers(\.\d+(\.name)?)?": "[[peers]] lists machines, each with a name; their number is topology.peers",
    r"task\.shards(\.\d+)*": "it holds per peer a list of rows, and a row is [features, target]",
}


def first_of(problems: Sequence[Problem], raw: Mapping[str, object]) -> ConfigError:
    """The problem that comes first in the file, and how many more there are."""
    first = min(problems, key=lambda problem: _rank(problem.at or problem.key, raw))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ConfigError(first.key, first.text + more)


def _rank(key: str, raw: object) -> tuple[int, ...]:
    """Where a key stands in the file: its place in each table on the way, last if it is not there."""
    rank = []
    for name in key.split("."):
        if isinstance(raw, Mapping):
            names = list(raw)
            rank.append(names.index(name) if name in names else len(names))
            raw = raw.get(name)
        elif isinstance(raw, tuple) and name.isdigit() and int(name) < len(raw):
            rank.append(int(name))
            raw = raw[int(name)]
    return tuple(rank)


def problem_of(error: Mapping[str, Any]) -> Problem:
    """One error of pydantic's, in our words."""
    key = one_line(".".join(map(str, error["loc"])), 200)
    return Problem(key, _words(error, key))


def _words(error: Mapping[str, Any], key: str) -> str:
    kind, found, context = error["type"], brief(error["input"]), error.get("ctx", {})
    hint = "".join(f"; {text}" for keys, text in _HINTS.items() if re.fullmatch(keys, key))
    if kind == "extra_forbidden":
        return f"unknown key; {_suggestion(error['loc'])}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _TYPES:
        return f"{found} is not {_TYPES[kind]}{hint}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        return f"{found} must be {words.format(int(bound) if bound == int(bound) else bound)}"
    if kind == "finite_number":
        return f"{found} is not finite"
    if kind in ("missing", "too_long"):
        return ("is missing" if kind == "missing" else f"{found} is too long") + hint
    return f"{found}: {one_line(error['msg'])}"


def _suggestion(loc: tuple[int | str, ...]) -> str:
    """Where an unknown key may belong."""
    name, table = str(loc[-1]), str(loc[0]) if len(loc) > 1 else ""
    homes = [home for home, keys in _keys().items() if name in keys and home]
    if table and name in _keys()[""]:
        return f"belongs at the top level: {name} (above the first [table])"
    if homes:
        return "belongs in " + listed([_home(home, name) for home in homes])
    inside = ".".join(map(str, loc[:-1]))
    near = nearest(name, _keys().get(table, ()))
    if near:
        return f"did you mean {inside}.{near}?" if inside else f"did you mean {near}?"
    far = nearest(name, [key for keys in _keys().values() for key in keys])
    if far:
        homes = [home for home, keys in _keys().items() if far in keys]
        return "did you mean " + listed([f"{home}.{far}".lstrip(".") for home in homes]) + "?"
    where = "the top level" if not table else f"[{table}]"
    return f"{where} knows {', '.join(_keys().get(table, ()))}"


def _home(table: str, name: str) -> str:
    return f"[[peers]]: {name}" if table == "peers" else f"[{table}]: {table}.{name}"


def _keys() -> dict[str, tuple[str, ...]]:
    """Table -> the keys it knows; "" is the top level."""
    known = {"": tuple(Experiment.model_fields), "peers": tuple(PeerEntry.model_fields)}
    for name, field in Experiment.model_fields.items():
        if isinstance(field.default, Table):
            known[name] = tuple(type(field.default).model_fields)
    return known
