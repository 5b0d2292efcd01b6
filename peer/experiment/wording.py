"""The words of one value. Whatever they are made from, they are one line."""

import difflib
import json
from collections.abc import Mapping, Sequence

from peer.errors import printable


def shown(value: object, depth: int = 20) -> str:
    """The value as a TOML file would have it, on one line; what lies deeper than `depth` is left out."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping | list | tuple) and depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {shown(item, depth - 1)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(item, depth - 1) for item in value) + "]"
    return str(value)


def one_line(text: str, limit: int = 80) -> str:
    """The text cut to `limit` characters, with every character that is not printable escaped."""
    clipped = text if len(text) <= limit else text[: limit - 3] + "..."
    return printable(clipped)


def brief(value: object) -> str:
    return one_line(shown(value), 60)


def listed(words: Sequence[str]) -> str:
    """a, b or c"""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def nearest(word: str, words: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.7)), None)
