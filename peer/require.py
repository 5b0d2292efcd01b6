"""What `--require` demands of a summary, and `stop_when` of an evaluation: a number's name, a comparison, a bound."""

import difflib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peer.errors import ConfigError
from peer.experiment.wording import brief
from peer.record import ENTRY_NUMBERS, SUMMARY_NUMBERS, Row

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}

_FORM = re.compile(r"\s*([A-Za-z_.]+)\s*(>=|<=|==|!=|>|<)\s*([-+0-9.eE_]+)\s*")


@dataclass(frozen=True)
class Requirement:
    """`name` compared with `bound`, such as accuracy.mean >= 0.93."""

    name: str
    comparison: str
    bound: float

    def value_in(self, summary: Row) -> float | None:
        value = summary
        for part in self.name.split("."):
            value = value.get(part) if isinstance(value, dict) else None  # type: ignore[assignment]
        return value if isinstance(value, int | float) else None

    def is_met(self, summary: Row) -> bool:
        """Say whether it holds. A number that is null, or not in this summary, meets nothing."""
        value = self.value_in(summary)
        return value is not None and OPERATORS[self.comparison](value, self.bound)

    def __str__(self) -> str:
        return f"{self.name} {self.comparison} {self.bound:g}"


def parse(text: str) -> Requirement:
    """Read a requirement. Raises ConfigError for another form or an unknown number."""
    return _parse(text, "--require", "in a summary", SUMMARY_NUMBERS)


def parse_stop(text: str) -> Requirement | None:
    """Read `stop_when`; None where it is empty. Raises ConfigError as `parse` does."""
    return _parse(text, "stop_when", "in an evaluation", ENTRY_NUMBERS) if text else None


def _parse(text: str, key: str, where: str, known: Sequence[str]) -> Requirement:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(key, f'{brief(text)} is not NUMBER COMPARISON BOUND, such as "accuracy.mean >= 0.93"')
    name, comparison, bound = match.groups()
    try:
        value = float(bound)
    except ValueError:
        raise ConfigError(key, f"{brief(bound)} is not a number") from None
    if name not in known:
        raise ConfigError(key, f'no number "{name}" {where}; {_hint(name, known)}')
    return Requirement(name, comparison, value)


def _hint(name: str, known: Sequence[str]) -> str:
    parts = [number for number in known if number.startswith(f"{name}.")]
    near = parts[:1] or difflib.get_close_matches(name, known, 1, 0.5)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
