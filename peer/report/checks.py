"""What is not as a run writes it, of all that a report reads of a summary."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any


def summary_problems(summary: Any) -> Iterator[str]:
    """Say what is not as a summary has it, of all that a report reads."""
    if not isinstance(summary, dict):
        yield "is no table"
        return
    for key in ("outcome", "name", "engine"):
        if not isinstance(summary.get(key), str):
            yield f"{key} is not text"
    for key in ("peers", "rounds", "gradients", "payload_bytes_sent"):
        if not is_number(summary.get(key)):
            yield f"{key} is not a number"
    for key in ("seconds", "rounds_seconds", "simulated_seconds", "consensus_distance", "short_rounds"):
        if summary.get(key) is not None and not is_number(summary[key]):
            yield f"{key} is not a number"
    lost = summary.get("lost")
    if not isinstance(lost, list) or not all(isinstance(name, str) for name in lost):
        yield "lost is not a list of names"
    yield from _figure_problems(summary, "")
    yield from _history_problems(summary.get("history"))
    yield from _staleness_problems(summary.get("staleness"))


def _figure_problems(entry: Mapping[str, Any], where: str) -> Iterator[str]:
    for key in ("accuracy", "loss"):
        value = entry.get(key)
        if not isinstance(value, dict):
            yield f"{where}{key} is missing"
            continue
        numbers = [value.get(which) for which in ("mean", "min", "max")]
        if not (all(map(is_number, numbers)) or all(number is None for number in numbers)):
            yield f"{where}{key} is not mean, min and max"


def _history_problems(history: Any) -> Iterator[str]:
    if not isinstance(history, list):
        yield "history is not a list"
        return
    for i, entry in enumerate(history):
        if not isinstance(entry, dict) or not is_number(entry.get("round")):
            yield f"history.{i} has no round"
            return
        yield from _figure_problems(entry, f"history.{i}.")
        others = ("simulated_seconds", "seconds", "payload_bytes_sent", "consensus_distance", "neighbour_distance")
        for key in others:
            if entry.get(key) is not None and not is_number(entry[key]):
                yield f"history.{i}.{key} is not a number"


def _staleness_problems(staleness: Any) -> Iterator[str]:
    if staleness is None:
        return
    if not isinstance(staleness, dict) or not all(is_number(staleness.get(key)) for key in ("mean", "max")):
        yield "staleness is not mean and max"
        return
    counts = staleness.get("histogram", [])
    if not isinstance(counts, list) or not all(is_number(count) and count >= 0 for count in counts):
        yield "staleness.histogram is not a list of counts"


def prediction_problems(prediction: Any) -> Iterator[str]:
    if prediction is None:
        return
    if not isinstance(prediction, dict):
        yield "prediction is no table"
        return
    for key in ("seconds_per_round", "speed_up", "efficiency"):
        if prediction.get(key) is not None and not is_number(prediction[key]):
            yield f"prediction.{key} is not a number"
    if not isinstance(prediction.get("bottleneck", ""), str):
        yield "prediction.bottleneck is not text"


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
