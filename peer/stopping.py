"""Ctrl-C and SIGTERM: a run ends in good order, and says so."""

import signal
from types import FrameType, TracebackType
from typing import Any


def raise_interrupt(*_: object) -> None:
    """Signal handler for the time before a run has begun: SIGTERM counts as an interruption."""
    raise KeyboardInterrupt


class StopSwitch:
    """Asks a run to end.

    Armed, it takes SIGINT and SIGTERM: the first asks the run to end after the local step at hand, a second one
    raises KeyboardInterrupt. With `grace_s`, so does the clock that many seconds after the first.
    """

    def __init__(self, grace_s: float | None = None) -> None:
        self._grace_s = grace_s
        self._thrown = False
        self._before: dict[int, Any] = {}

    def is_thrown(self) -> bool:
        return self._thrown

    def arm(self) -> None:
        """Take the signals from here on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def __enter__(self) -> "StopSwitch":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._thrown and self._grace_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._thrown:
            raise KeyboardInterrupt
        self._thrown = True
        if self._grace_s is not None:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, raise_interrupt)
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
