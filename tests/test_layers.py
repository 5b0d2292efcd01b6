"""The arrows of the house: who may import whom. The table below is its map."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

HOUSE = Path(__file__).parents[1]
STDLIB = frozenset(sys.stdlib_module_names)


class Room(NamedTuple):
    """What a part of the house may import beside the standard library and itself, and what it may not for sure."""

    may: str
    never: str = ""


# What a run is made of, whichever way it runs.
BELOW = (
    "torch numpy scipy networkx topology peer.algorithms peer.assembly peer.centre peer.divergence peer.entries "
    "peer.errors peer.experiment peer.history peer.learner peer.parcels peer.pieces peer.protocol peer.record "
    "peer.seeds peer.task peer.verdict"
)

# The longest name that a module's own name begins with is its room. "peer.protocol" stands for all below it.
MAP: dict[str, Room] = {
    # Who hears whom. Knows nothing of ours.
    "topology": Room("numpy scipy networkx"),
    # State machines: no tensor, no socket, no clock.
    "peer.protocol": Room("", never="time socket random threading asyncio selectors"),
    # The maths, and what is trained: tensors, and neither knows the other.
    "peer.algorithms": Room("torch numpy peer.errors peer.seeds"),
    "peer.task": Room("torch numpy torchvision filelock safetensors peer.errors peer.seeds"),
    # The only place with sockets; knows messages and not what they do.
    "peer.network": Room("zmq msgpack peer.errors peer.protocol.messages"),
    # Small things that anybody may use.
    "peer": Room(""),
    "peer.errors": Room(""),
    "peer.seeds": Room("numpy"),
    "peer.divergence": Room("numpy torch"),
    "peer.stopping": Room(""),
    # The experiment file, its starter, and what a run tells of itself.
    "peer.experiment": Room("pydantic tomli_w peer.errors"),
    "peer.starter": Room(""),
    "peer.record": Room("numpy peer.errors peer.experiment"),
    "peer.require": Room("peer.errors peer.experiment peer.record"),
    # One peer's tensors, and an experiment made ready: where the maths, the task and the messages meet.
    "peer.learner": Room("torch peer.algorithms peer.divergence peer.protocol.messages peer.task"),
    "peer.parcels": Room("torch peer.algorithms peer.errors"),
    "peer.pieces": Room("torch"),
    "peer.centre": Room("torch peer.algorithms peer.divergence peer.protocol.messages"),
    "peer.verdict": Room("torch peer.learner peer.task"),
    "peer.assembly": Room(
        "torch numpy scipy networkx topology peer.algorithms peer.centre peer.errors peer.experiment peer.learner "
        "peer.parcels peer.protocol peer.seeds peer.task"
    ),
    "peer.history": Room("numpy peer.divergence peer.learner peer.protocol.messages peer.record"),
    "peer.entries": Room("peer.history peer.protocol.messages peer.record"),
    "peer.model_file": Room("torch safetensors"),
    "peer.checkpoint": Room("torch safetensors peer.errors"),
    "peer.explanation": Room(
        "torch networkx topology peer.algorithms peer.assembly peer.errors peer.experiment peer.learner peer.record "
        "peer.require peer.task"
    ),
    "peer.prediction": Room(
        "torch topology peer.assembly peer.errors peer.experiment peer.explanation peer.learner peer.record peer.task"
    ),
    # The two that run it: they share all of the above, and nothing of each other.
    "peer.simulator": Room(f"{BELOW} peer.model_file"),
    "peer.daemon": Room(f"{BELOW} peer.checkpoint peer.model_file peer.network peer.require msgpack"),
    # The ways to run it, and the doors: the screen, the command line, Python.
    "peer.ways": Room(
        "torch numpy peer.assembly peer.daemon peer.errors peer.experiment peer.explanation peer.model_file "
        "peer.prediction peer.record peer.require peer.simulator peer.task"
    ),
    "peer.screen": Room(
        "rich peer.assembly peer.daemon peer.experiment peer.record peer.simulator.watching peer.task peer.ways"
    ),
    "peer.tables": Room("rich peer.explanation peer.record peer.screen"),
    "peer.report": Room("matplotlib numpy networkx topology peer.assembly peer.errors peer.experiment peer.record"),
    "peer.scripting": Room("peer.errors peer.experiment peer.explanation peer.ways"),
    "peer.pytest_plugin": Room("pytest peer"),
    "peer.cli": Room("typer peer"),
    "peer.__main__": Room("peer.cli"),
}

# What `earshot --help` pays for: peer.cli imports at module level no more than this and the standard library.
FIRST = ("typer", "peer.errors")

# Files that run other people's bytes: named, and nowhere to be seen.
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load"}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "runpy"}


class Import(NamedTuple):
    """One import: of which module, on which line, and whether it happens when the file is imported."""

    module: str
    line: int
    is_first: bool


def module_of(file: Path) -> str:
    parts = file.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(f for room in ("peer", "topology") for f in (HOUSE / room).rglob("*.py"))
MODULES = {module_of(file): file for file in FILES}


def imports_of(tree: ast.Module) -> Iterator[Import]:
    """Every import of a file, wherever it stands; `from peer import ways` is an import of peer.ways."""
    for node, is_first in _nodes(tree, True):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, is_first) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield Import(inner if inner in MODULES else str(node.module), node.lineno, is_first)


def _nodes(node: ast.AST, is_first: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_for_types(child)
        yield child, is_first
        yield from _nodes(child, is_first and not inside)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def room_of(module: str) -> str:
    rooms = [room for room in MAP if is_within(module, room)]
    assert rooms, f"{module} has no room on the map above: say there what it may import"
    return max(rooms, key=len)


def is_within(module: str, room: str) -> bool:
    return module == room or (module.startswith(f"{room}.") and room != "peer")


def wrong_arrow(importer: str, imported: str) -> bool:
    """Say whether the map lacks the arrow from one module to another."""
    room = room_of(importer)
    allowed = MAP[room].may.split()
    if any(is_within(imported, name) for name in MAP[room].never.split()):
        return True
    if importer == "peer.cli" and imported.startswith("peer."):
        return False  # it imports everything, lazily
    top = imported.partition(".")[0]
    return not (top in STDLIB or is_within(imported, room) or any(is_within(imported, name) for name in allowed))


# ---- The arrows


@pytest.mark.parametrize("module", MODULES)
def test_every_arrow_is_on_the_map(module: str) -> None:
    file = MODULES[module]
    wrong = [
        f"{file.relative_to(HOUSE)}:{found.line}: {module} imports {found.module}"
        for found in imports_of(ast.parse(file.read_text(encoding="utf-8")))
        if wrong_arrow(module, found.module)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_has_a_room_and_every_room_a_module() -> None:
    rooms = {room_of(module) for module in MODULES if module != "peer"} | {"peer"}
    assert rooms == set(MAP)


def test_the_map_holds_what_the_design_promises() -> None:
    """Whoever widens a room above meets these, which are not to be widened."""
    assert set(MAP["topology"].may.split()) == {"numpy", "scipy", "networkx"}
    assert MAP["peer.protocol"].may == ""
    assert [room for room in MAP if "zmq" in MAP[room].may.split()] == ["peer.network"]
    assert {n for n in MAP["peer.network"].may.split() if n.startswith("peer")} == {
        "peer.errors",
        "peer.protocol.messages",
    }
    assert "peer.task" not in MAP["peer.algorithms"].may.split()
    assert "peer.algorithms" not in MAP["peer.task"].may.split()
    for room in ("peer.algorithms", "peer.task"):
        ours = {name for name in MAP[room].may.split() if name.startswith("peer")}
        assert ours == {"peer.errors", "peer.seeds"}
    assert "peer.simulator" not in MAP["peer.daemon"].may.split()
    assert "peer.daemon" not in MAP["peer.simulator"].may.split()
    users = {room for room in MAP if {"peer.daemon", "peer.simulator"} & set(MAP[room].may.split())}
    assert users == {"peer.ways", "peer.screen"}


def test_the_arrows_make_no_circle() -> None:
    """Rooms can be put in an order in which each imports only rooms before it."""
    rooms = {room: {r for r in map(room_of_name, MAP[room].may.split()) if r and r != room} for room in MAP}
    rooms["peer.cli"] = rooms["peer.pytest_plugin"] = set()  # these reach for "peer" when they are used
    while rooms:
        free = {room for room, needed in rooms.items() if not needed & set(rooms)}
        assert free, f"a circle among {', '.join(sorted(rooms))}"
        rooms = {room: needed for room, needed in rooms.items() if room not in free}


def room_of_name(name: str) -> str | None:
    return room_of(name) if name.startswith(("peer.", "topology")) else None


def test_inside_the_experiment_file_each_module_imports_only_those_above_it() -> None:
    folder = HOUSE / "peer" / "experiment"
    order = re.findall(
        r"^    (\w+)\.py ", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "", re.M
    )
    order = order or re.findall(r"^ *(\w+)\.py ", (folder / "__init__.py").read_text(), re.M)
    assert set(order) == {file.stem for file in folder.glob("*.py")} - {"__init__"}
    for name in order:
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        ours = {f.module.rpartition(".")[2] for f in imports_of(tree) if f.module.startswith("peer.experiment.")}
        assert ours <= set(order[: order.index(name)]), name


# ---- What is imported when


def test_the_command_line_imports_next_to_nothing_first() -> None:
    tree = ast.parse(MODULES["peer.cli"].read_text(encoding="utf-8"))
    first = {found.module for found in imports_of(tree) if found.is_first and found.module not in ("peer",)}
    assert {module for module in first if module.partition(".")[0] not in STDLIB} == set(FIRST)


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["new", "new.toml"]])
def test_help_loads_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = {'torch', 'zmq', 'networkx', 'numpy', 'scipy', 'msgpack', 'rich', 'matplotlib'}\n"
        "atexit.register(lambda: print('loaded', sorted(heavy & set(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['earshot', *{arguments!r}]\n"
        "from peer.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "loaded []"


# ---- What is nowhere


@pytest.mark.parametrize("module", MODULES)
def test_nothing_runs_what_it_is_sent(module: str) -> None:
    """No file unpickles or evaluates. An error of pickle's may be caught: other libraries raise it."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert not list(dangers(tree))


def dangers(tree: ast.Module) -> Iterator[str]:
    return (ast.unparse(node) for node in ast.walk(tree) if is_danger(node))


def is_danger(node: ast.AST) -> bool:
    match node:
        case ast.Call():
            unsafe = any(k.arg == "allow_pickle" and not _is_false(k.value) for k in node.keywords)
            return unsafe or ast.unparse(node.func) in FORBIDDEN_CALLS
        case ast.ImportFrom():
            return node.module in FORBIDDEN_MODULES
        case ast.Import():
            return bool({alias.name for alias in node.names} & (FORBIDDEN_MODULES - {"pickle"}))
        case ast.Attribute():
            return ast.unparse(node.value) == "pickle" and node.attr != "UnpicklingError"
    return False


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


# ---- The test itself


@pytest.mark.parametrize(
    ("importer", "imported", "is_wrong"),
    [
        ("topology.graphs", "peer.errors", True),
        ("topology.graphs", "topology.net", False),
        ("peer.protocol.gossip", "torch", True),
        ("peer.protocol.gossip", "time", True),
        ("peer.protocol.gossip", "peer.protocol.messages", False),
        ("peer.network.links", "peer.protocol.gossip", True),
        ("peer.task.local", "peer.algorithms.algorithm", True),
        ("peer.algorithms.combine", "peer.task.local", True),
        ("peer.daemon.node", "peer.simulator.events", True),
        ("peer.simulator.events", "peer.daemon.node", True),
        ("peer.explanation", "peer.daemon.node", True),
        ("peer.daemon.node", "zmq", True),
        ("peer.daemon.node", "peer.network.links", False),
        ("peer.errors", "peer.experiment", True),
        ("peer.cli", "peer.ways", False),
    ],
)
def test_a_wrong_arrow_is_seen(importer: str, imported: str, is_wrong: bool) -> None:
    assert wrong_arrow(importer, imported) is is_wrong


def test_late_imports_are_told_from_first_ones() -> None:
    text = (
        "import a\ndef f():\n    import b\nif TYPE_CHECKING:\n    import c\ntry:\n    import d\nexcept E:\n    pass\n"
    )
    found = {i.module: i.is_first for i in imports_of(ast.parse(text))}
    assert found == {"a": True, "b": False, "c": False, "d": True}


@pytest.mark.parametrize(
    "text",
    [
        "import marshal",
        "from pickle import loads",
        "import pickle; pickle.loads(b)",
        "torch.load(f)",
        "eval(text)",
        "np.load(f, allow_pickle=flag)",
    ],
)
def test_a_danger_is_seen(text: str) -> None:
    assert list(dangers(ast.parse(text)))
