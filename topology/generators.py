"""The family networkx:NAME: any graph that a public generator of networkx makes.

Only what `networkx.generators` exports can be named, so that a file never calls anything else.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import networkx as nx

from topology.net import TopologyError

_NOT_FROM_A_FILE = {"create_using", "backend", "backend_kwargs"}


def generated(reference: str, peers: int | None, args: Mapping[str, Any], seed: int) -> nx.Graph | nx.DiGraph:
    """Return what the generator of a family `networkx:NAME` makes, labels and all.

    A first parameter n that `args` leaves out is `peers` (8 if None); a parameter seed that it leaves out
    is `seed`.
    """
    generator = _generator(reference)
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(generator).parameters.items()
        if name not in _NOT_FROM_A_FILE and parameter.kind is not parameter.VAR_KEYWORD
    }
    given = dict(args)
    if next(iter(parameters), None) == "n":
        given.setdefault("n", 8 if peers is None else peers)
    if "seed" in parameters:
        given.setdefault("seed", seed)
    _check_names(reference, given, parameters)
    return _called(reference, generator, given)


def _generator(reference: str) -> Callable[..., Any]:
    name = reference.removeprefix("networkx:")
    known = [
        key
        for key, value in vars(nx.generators).items()
        if not key.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "").startswith("networkx.generators.")
    ]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise TopologyError("family", f"networkx has no graph generator {name!r}{hint}")
    return getattr(nx.generators, name)  # type: ignore[no-any-return]


def _check_names(reference: str, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    takes = ", ".join(parameters) or "nothing"
    for name in given:
        if name not in parameters:
            raise TopologyError("args", f"{reference} has no parameter {name!r}; it takes {takes}")
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if name not in given
    ]
    if missing:
        example = ", ".join(f"{name} = ..." for name in missing)
        raise TopologyError("args", f"{reference} needs args = {{ {example} }}; it takes {takes}")


def _called(reference: str, generator: Callable[..., Any], given: Mapping[str, Any]) -> nx.Graph | nx.DiGraph:
    try:
        graph = generator(**given)
    except (
        nx.NetworkXException,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise TopologyError("args", f"{reference} with {_shown(given)}: {' '.join(str(error).split())}") from None
    if not isinstance(graph, nx.Graph):  # the base of all four kinds
        raise TopologyError("family", f"{reference} does not make one graph but a {type(graph).__name__}")
    if len(graph) == 0:
        raise TopologyError("args", f"{reference} with {_shown(given)} makes a graph without nodes")
    return graph


def _shown(given: Mapping[str, Any]) -> str:
    return "args = { " + ", ".join(f"{name} = {value!r}" for name, value in given.items()) + " }"
