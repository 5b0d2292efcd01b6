"""Ctrl-C and SIGTERM: a run ends in good order, and says so."""

import signal
from types import FrameType, TracebackType
from typing import Any


class StopSwitch:
    """Asks a run to end. While used as a context, SIGINT and SIGTERM throw it."""

    def __init__(self) -> None:
        self._thrown = False
        self._before: dict[int, Any] = {}

    def is_thrown(self) -> bool:
        return self._thrown

    def throw(self) -> None:
        self._thrown = True

    def __enter__(self) -> "StopSwitch":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._thrown = True
