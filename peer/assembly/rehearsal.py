"""A user's own algorithm: guarded, so that what it raises ends in one line, and tried out before the run.

The rehearsal plays two rounds between two peers, once one by one, as daemons do, and once as rows, as the rounds engine
does. What it finds are mistakes that would otherwise train nonsense: tensors of another shape or dtype, functions that
are not row-wise, tensors changed in place while others still hold them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from peer.algorithms.algorithm import Algorithm, Edges, Heard, Message, State
from peer.algorithms.combine import HeardMessages
from peer.algorithms.wrapper import Wrapper
from peer.errors import ConfigError, EarshotError, TrainingError
from peer.task.factory import own_traceback

KEY = "algorithm.name"

REHEARSED_NUMBERS = 1 << 20
"""Vectors longer than this are not rehearsed with: it would take as much memory as two more peers."""

ROUNDS = 2

_Tables = dict[str, Tensor]
_Hear = Callable[[Sequence[Message], int], Heard]
"""From what all say to what one of them hears."""


@dataclass(frozen=True)
class Guarded(Wrapper):
    """A user's algorithm, `spec` in the file; what it raises becomes a TrainingError with their own traceback.

    `looks_on`: states are looked at all through the run, too.
    """

    spec: str
    looks_on: bool = True

    def init(self, x: Tensor) -> State:
        with self._blamed("init"):
            return self.inner.init(x)

    def at(self, state: State) -> Tensor:
        with self._blamed("at"):
            return self.inner.at(state)

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        with self._blamed("learned"):
            return self._like(state, self.inner.learned(state, delta, lr), "learned")

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        with self._blamed("message"):
            return self.inner.message(state, k, noise)

    def update(self, state: State, k: int, heard: Heard) -> State:
        with self._blamed("update"):
            return self._like(state, self.inner.update(state, k, heard), "update")

    def params(self, state: State) -> Tensor:
        with self._blamed("params"):
            return self.inner.params(state)

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        with self._blamed("parameters_in"):
            return self.inner.parameters_in(message, k)

    def _like(self, before: State, after: object, method: str) -> State:
        """Return the state after a function, if its tensors are what they were before it; also late in a run."""
        if not self.looks_on:
            return cast(State, after)
        if not isinstance(after, dict):
            raise TrainingError(f"{self.spec}: {method} returned {_kind(after)}; a state is a dict of tensors")
        for name in before.keys() & after.keys():
            old, new = before[name], after[name]
            if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
                text = f"{self.spec}: {method} returned {name} as {_form(new)}, and it was {_form(old)}"
                raise TrainingError(text)
        return after

    @contextmanager
    def _blamed(self, method: str) -> Iterator[None]:
        try:
            yield
        except EarshotError:
            raise
        except (Exception, SystemExit) as error:
            first, *_ = str(error).splitlines() or [""]
            cause = f"{type(error).__name__}: {first}" if first else type(error).__name__
            raise TrainingError(f"{self.spec}: {method} raised {cause}", own_traceback(error)) from error


def _form(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _kind(value)


def check_settings(algorithm: Algorithm, spec: str) -> None:
    """Refuse what an algorithm says of itself where it cannot be, or cannot be yet. Raises ConfigError."""
    allowed = {
        "stochastic": ("doubly", "row", "column"),
        "absent": ("keep_own", "count"),
        "scope": ("peer",),
        "extrapolates": (True, False),
    }
    for name, values in allowed.items():
        found = getattr(algorithm, name)
        if found not in values:
            raise ConfigError(KEY, f"{spec}: {name} is {found!r}; it can be {' or '.join(map(repr, values))}")
    if not isinstance(algorithm.exchanges, int) or algorithm.exchanges < 1:
        text = f"exchanges is {algorithm.exchanges!r}; it is how many messages a round has, 1 or more"
        raise ConfigError(KEY, f"{spec}: {text}")


def rehearse(algorithm: Guarded, size: int, dtype: torch.dtype, lr: float, *, says_parameters: bool = False) -> None:
    """Play two rounds with vectors of `size` numbers; longer ones than REHEARSED_NUMBERS are left to the run.

    `says_parameters`: its messages must say what parameters their senders stand for. Raises ConfigError for what is
    wrong, with the user's own traceback where there is one.
    """
    if size > REHEARSED_NUMBERS:
        return

    def play(starts: Sequence[Tensor], hear: _Hear) -> list[Tensor]:
        return _Stage(_fresh(algorithm), lr or 0.1, says_parameters).play(starts, hear)

    pair = torch.linspace(-1.0, 1.0, 2 * size, dtype=dtype).view(2, size)
    try:
        with torch.random.fork_rng(devices=[]):
            first, again = (torch.stack(play(list(pair), _one_by_one)) for _ in range(2))
            (rows,) = play([pair], _as_rows)
    except TrainingError as error:
        raise ConfigError(KEY, str(error), error.details) from error
    is_random = not _alike(first, again)  # what draws numbers of its own cannot come out the same
    if not is_random and not _alike(first, rows):
        text = "it comes to other parameters for two peers at once, (n, d), than for one after the other, (d,)"
        mend = "sums and norms go over the last axis alone, with keepdim = True, and what changes belongs in the state"
        raise ConfigError(KEY, f"{algorithm.spec}: {text}; {mend}")


def _fresh(algorithm: Guarded) -> Guarded:
    """Return a copy, so that what a play leaves in an instance, which holds settings only, shows in the next one."""
    watched = replace(algorithm, looks_on=False)  # the rehearsal looks closer
    try:
        return deepcopy(watched)
    except Exception:  # noqa: BLE001 - some things of a user's cannot be copied
        return watched


def _alike(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-9 if a.dtype == torch.float64 else 1e-4
    scale = float(a.abs().nan_to_num().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


# ---- The two ways in which peers hear each other


def _one_by_one(said: Sequence[Message], me: int) -> Heard:
    return HeardMessages(tuple((1 / len(said), message, i == me) for i, message in enumerate(said)))


def _as_rows(said: Sequence[Message], me: int) -> Heard:
    return _Rows(said[me])


@dataclass(frozen=True)
class _Rows:
    """What two peers have heard of each other, their messages as rows, (2, m)."""

    message: Message

    def sum(self) -> Message:
        return {name: t.mean(dim=0, keepdim=True).expand_as(t).clone() for name, t in self.message.items()}

    def edges(self) -> Edges:
        like = next(iter(self.message.values()))
        theirs = {name: t.flip(0) for name, t in self.message.items()}
        return Edges(torch.tensor([0, 1]), torch.full((2, 1), 0.5, dtype=like.dtype), dict(self.message), theirs)


# ---- The play


@dataclass(frozen=True)
class _Stage:
    """Calls each function as a run does, and looks at what it returns and at what it was given."""

    algorithm: Guarded
    lr: float
    says_parameters: bool

    def play(self, starts: Sequence[Tensor], hear: _Hear) -> list[Tensor]:
        """Return the parameters of each, like `starts`, after two rounds."""
        a = self.algorithm
        states = [self._began(x) for x in starts]
        forms: dict[int, object] = {}
        for round in range(ROUNDS):
            for i, x in enumerate(starts):
                states[i] = self._trained(states[i], x, round)
            for k in range(a.exchanges):
                said = []
                for i, x in enumerate(starts):
                    states[i], message = self._said(states[i], x, k)
                    said.append(message)
                form = [(name, t.shape, t.dtype) for name, t in sorted(said[0].items())]
                if forms.setdefault(k, form) != form:
                    raise self._wrong("message", "a message of other names, shapes or dtypes than the round before")
                for i, x in enumerate(starts):
                    heard = hear(said, i)
                    with self._kept("update", states[i], *said):
                        state = a.update(states[i], k, heard)
                    states[i] = self._table("update", x, state)
            params = [self._params(x, state) for x, state in zip(starts, states, strict=True)]
        return params

    def _began(self, x: Tensor) -> State:
        with self._kept("init", {"x": x}):
            state = self.algorithm.init(x)
        return self._table("init", x, state)

    def _trained(self, state: State, x: Tensor, round: int) -> State:
        with self._kept("at", state):
            at = self._vector("at", x, self.algorithm.at(state))
        delta = -self.lr * (0.3 * at + 0.1 * (round + 1))
        with self._kept("learned", state, {"delta": delta}):
            learned = self.algorithm.learned(state, delta, self.lr)
        return self._table("learned", x, learned)

    def _said(self, state: State, x: Tensor, k: int) -> tuple[State, Message]:
        with self._kept("message", state):
            said = self.algorithm.message(state, k, None)
        if not isinstance(said, tuple) or len(said) != 2:
            raise self._wrong("message", f"{_kind(said)}; it is (state, message)")
        state, message = self._table("message", x, said[0]), self._table("message", x, said[1])
        if not message or any(not t.is_floating_point() for t in message.values()):
            raise self._wrong("message", "no floating-point tensors to send")
        parameters = self.algorithm.parameters_in(message, k)
        if parameters is not None:
            self._vector("parameters_in", x, parameters)
        elif self.says_parameters:
            text = f'"model" asks what parameters a message stands for, and {self.algorithm.spec} does not say'
            raise ConfigError("topology.metric", f"{text}: its parameters_in returned None")
        return state, message

    def _params(self, x: Tensor, state: State) -> Tensor:
        with self._kept("params", state):
            params = self.algorithm.params(state)
        return self._vector("update and then params", x, params)

    def _table(self, method: str, x: Tensor, found: object) -> _Tables:
        if not isinstance(found, dict):
            raise self._wrong(method, f"{_kind(found)}; states and messages are tables of tensors, such as {{'x': x}}")
        for name, tensor in found.items():
            if not isinstance(tensor, Tensor):
                raise self._wrong(method, f"{_kind(tensor)} as {name!r}; states and messages hold tensors")
            if tensor.dim() != x.dim() or tensor.shape[:-1] != x.shape[:-1]:
                lead = "(m,)" if x.dim() == 1 else f"({len(x)}, m)"
                text = f"{name!r} of shape {tuple(tensor.shape)} where the parameters are {tuple(x.shape)}"
                raise self._wrong(method, f"{text}; it is to be {lead}, with m = 1 for one number per peer")
        return found

    def _vector(self, method: str, x: Tensor, found: object) -> Tensor:
        if not isinstance(found, Tensor):
            raise self._wrong(method, f"{_kind(found)}; it is a tensor like the parameters")
        if found.shape != x.shape:
            raise self._wrong(method, f"shape {tuple(found.shape)} where the parameters are {tuple(x.shape)}")
        if found.dtype != x.dtype:
            raise self._wrong(method, f"{found.dtype} where the parameters are {x.dtype}")
        return found

    @contextmanager
    def _kept(self, method: str, *given: _Tables) -> Iterator[None]:
        """See to it that none of the given tensors is changed in place."""
        versions = [(name, t, t._version) for table in given for name, t in table.items()]
        yield
        for name, tensor, version in versions:
            if tensor._version != version:
                text = f"{method} changed {name!r} in place, which others may still hold; return new tensors"
                raise TrainingError(f"{self.algorithm.spec}: {text}")

    def _wrong(self, method: str, found: str) -> TrainingError:
        return TrainingError(f"{self.algorithm.spec}: {method} returned {found}")


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
