"""Which keys of an experiment have an effect in a run: only these can tell it from another."""

from collections.abc import Iterator, Mapping

from peer.experiment import Experiment
from peer.experiment.choices import ORDERS, USED_BY, is_of
from peer.experiment.fingerprint import flat

HEARS_AS_IT_IS = ("local", "exact")
"""Algorithms in which who hears whom does not hang on the topology: nobody, or everybody."""

VIRTUAL = ("network.", "speed.", "faults.")
"""The tables of the events engine's world."""

WITHOUT_CENTRE = (
    *("aggregate", "weighting", "fraction", "server_optimizer", "server_lr"),
    *("staleness", "max_staleness", "delay"),
)
"""Keys of [coordinator] that say how pushes change its parameters; under easgd alpha says that."""


def effective(e: Experiment, engine: str) -> dict[str, object]:
    """Return dotted key -> value, for the keys that have an effect in a run of this engine; None: not set.

    The experiment's name is left out. The number of peers is what the whole file says.
    """
    idle = list(_idle(e, engine))
    keys = dict(flat(e.model_dump(exclude={"name"}))) | {"topology.peers": e.known_peers()}
    kept = {key: value for key, value in keys.items() if key in ALWAYS or not _is_among(key, idle)}
    return {key: value for key, value in kept.items() if _is_used(key, kept)}


ALWAYS = ("topology.peers", "coordinator.mode")


def _is_among(key: str, idle: list[str]) -> bool:
    return any(key.startswith(one) if one.endswith(".") else key == one for one in idle)


def _is_used(key: str, kept: Mapping[str, object]) -> bool:
    """Say whether the value of another key, which has an effect itself, makes use of this one."""
    if key not in USED_BY:
        return True
    other, users = USED_BY[key]
    return other in kept and any(is_of(str(kept[other]), user) for user in users) and _is_used(other, kept)


def _idle(e: Experiment, engine: str) -> Iterator[str]:
    """Yield keys, and tables with a dot behind them, that have no effect."""
    if e.coordinator.mode == "none":
        yield "coordinator."
        yield from _idle_in_gossip(e)
    else:
        yield "topology."
        yield "transport.round_deadline_s"
        yield from (f"algorithm.{name}" for name in type(e.algorithm).model_fields if name not in _beside(e))
        yield from _idle_in_coordination(e)
    if not e.coordinates:
        yield "checkpoint."
    if engine == "rounds":
        yield "transport."
    if engine != "events":
        yield from VIRTUAL


def _beside(e: Experiment) -> tuple[str, ...]:
    """Return the keys of [algorithm] that go with a coordinator."""
    return ("buffers", "name", "alpha") if e.is_elastic else ("buffers",)


def _idle_in_gossip(e: Experiment) -> Iterator[str]:
    if e.algorithm.name in HEARS_AS_IT_IS:
        yield "topology."
    if e.algorithm.name not in ORDERS:
        yield "algorithm.order"
    if e.algorithm.name == "adpsgd":
        yield "algorithm.mode"
    if e.is_asynchronous:
        yield "transport.round_deadline_s"


def _idle_in_coordination(e: Experiment) -> Iterator[str]:
    c = e.coordinator
    if e.is_elastic:
        yield from (f"coordinator.{name}" for name in WITHOUT_CENTRE)
    if c.mode == "quorum" and c.late == "drop":
        yield "coordinator.staleness"
    if c.mode == "async":
        yield "coordinator.delay" if c.arrival == "clock" else "coordinator.max_staleness"
