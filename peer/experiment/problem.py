"""One thing that is wrong, and the keys to look at: their values beside their defaults."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from peer.experiment.experiment import Experiment
from peer.experiment.schema import Table


class Problem(NamedTuple):
    """One thing that is wrong: `text` follows the key, or stands alone where no single key is to blame.

    `at` is the key whose place in the file ranks the problem, where that is not `key`.
    """

    key: str
    text: str
    at: str = ""


_DEFAULT = Experiment()


def value_of(experiment: Experiment, key: str) -> Any:
    """The value of "rounds" or "task.lr"."""
    value: Any = experiment
    for name in key.split("."):
        value = getattr(value, name)
    return value


def changed(experiment: Experiment, key: str) -> Iterator[tuple[str, Any, Any]]:
    """The key, its value and its default, where the two differ; of a table each such key, of peers.NAME each peer's."""
    table, _, name = key.partition(".")
    if table == "peers":
        for i, peer in enumerate(experiment.peers):
            if getattr(peer, name) is not None:
                yield f"peers.{i}.{name}", getattr(peer, name), None
        return
    value, default = value_of(experiment, key), value_of(_DEFAULT, key)
    if isinstance(default, Table):
        for field in type(default).model_fields:
            yield from changed(experiment, f"{key}.{field}")
    elif value != default:
        yield key, value, default
