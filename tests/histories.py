"""Histories of two ways to run, side by side."""

from collections.abc import Sequence
from typing import Any

COSTS = ("seconds", "simulated_seconds", "payload_bytes_sent")


def figures(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries without what only one way of running knows: when they were, and what it had cost."""
    return [{name: value for name, value in entry.items() if name not in COSTS} for entry in history]
