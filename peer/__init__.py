"""Training without a master.

    from peer import load, explain, simulate, up

    summary = simulate(load("exp.toml", {"topology.peers": 64}))
    assert summary.accuracy.mean > 0.8

What a function needs is imported when it is first asked for, so that `earshot --help` loads neither torch nor zmq.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = ["explain", "load", "simulate", "up"]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("peer.scripting"), name)
