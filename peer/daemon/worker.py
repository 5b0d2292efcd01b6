"""A thread that trains, mixes and evaluates, so that the one that owns the sockets never waits for it."""

import os
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import Generic, TypeVar

from peer.errors import EarshotError, TrainingError
from peer.task.local import Interrupted

Result = TypeVar("Result")


class Worker(Generic[Result]):
    """Does one job after the other. `descriptor` becomes readable when there are results."""

    def __init__(self) -> None:
        self.descriptor, self._signal = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._signal, False)
        self._jobs: SimpleQueue[Callable[[], Result] | None] = SimpleQueue()
        self._results: SimpleQueue[Result | EarshotError] = SimpleQueue()
        self._stop = Flag()
        self._thread = Thread(target=self._work, name="worker", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Result]) -> None:
        """Queue a job; its result, or the error it raised, comes out of `results`."""
        self._jobs.put(job)

    def results(self) -> list[Result | EarshotError]:
        """Return what has been done since the last call."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
        return self.left()

    def left(self) -> list[Result | EarshotError]:
        """Return what has been done since the last call, also after `close`."""
        done = []
        while True:
            try:
                done.append(self._results.get_nowait())
            except Empty:
                return done

    def is_stopping(self) -> bool:
        """Say whether the job at hand should end at the next local step."""
        return self._stop.is_set()

    def close(self, patience_s: float) -> bool:
        """Stop after the local step at hand; returns whether that happened in time."""
        self._stop.set()
        self._jobs.put(None)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            return False
        os.close(self.descriptor)
        os.close(self._signal)
        return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stop.is_set():
            try:
                self._put(job())
            except Interrupted:
                return
            except EarshotError as error:
                self._put(error)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the peer must end and say so
                self._put(TrainingError(f"{type(error).__name__}: {error}"))

    def _put(self, result: Result | EarshotError) -> None:
        self._results.put(result)
        with suppress(BlockingIOError):  # the pipe is full of reasons to wake up already
            os.write(self._signal, b"!")
