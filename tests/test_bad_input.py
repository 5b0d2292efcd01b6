"""What is wrong with a command line, a file or a folder ends as exit 2, one line that names the key, and no trace.

In this process where that is possible; a few real processes at the end.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import pytest

from tests.commands import Command, Outcome, Write

SOFTMAX = '[task]\nmodel = "softmax"\n'
PURE = '[task]\ndata = "none"\ninit = [[0.0], [1.0]]\n[topology]\nfamily = "path"\n'
INLINE = '[task]\nmodel = "linear"\ndata = "inline"\nbatch_size = 0\nshards = [[[[1.0], 3.0]], [[[2.0], 5.0]]]\n'


class Case(NamedTuple):
    """A file, where its refusal begins, and the words that it holds: what is wrong, and the mend."""

    text: str
    begins: str
    words: Sequence[str]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() if f.is_file() else b"" for f in folder.rglob("*")}


def refused(command: Command, begins: str, words: Sequence[str], *arguments: object) -> Outcome:
    """Run a command that has to be refused, without and with --json; returns the first outcome."""
    before = files_in(Path())
    plain, as_json = command(*arguments), command(*arguments, "--json")
    for outcome in (plain, as_json):
        line = outcome.err.splitlines()[-1]
        assert outcome.code == 2, outcome
        assert line.startswith(f"earshot: {begins}"), line
        assert line.isprintable()
        assert all(word in line for word in words), line
        assert outcome.err.count("earshot: ") == 1
    assert plain.out == ""
    assert as_json.document == {"error": as_json.err.splitlines()[-1].removeprefix("earshot: ")}
    assert files_in(Path()) == before, "nothing is written"
    return plain


def refused_in_one_line(command: Command, begins: str, words: Sequence[str], *arguments: object) -> None:
    assert len(refused(command, begins, words, *arguments).err.splitlines()) == 1


# ---- The file

FILES = {
    "unknown key": Case("[topology]\ntreshold = 2", "topology.treshold: ", ["unknown key", "topology.threshold"]),
    "unknown table": Case("[topolgy]\npeers = 2", "topolgy: ", ["unknown key", "did you mean topology?"]),
    "wrong type": Case('rounds = "many"', "rounds: ", ['"many" is not a whole number']),
    "threshold below zero": Case("[topology]\nthreshold = -0.5", "topology.threshold: ", ["-0.5 must be 0 or above"]),
    "not built yet": Case(
        '[compression]\nname = "top_k"', "compression.name: ", ["not built yet", "are: none, fp16, bf16"]
    ),
    "overlap": Case("[transport]\noverlap = true", "transport.overlap: ", ["not built yet", "false"]),
    "a fraction above 1": Case(
        '[coordinator]\nmode = "sync"\nfraction = 1.5', "coordinator.fraction: ", ["1.5 must be 1 or below"]
    ),
    "a fraction in a ring": Case(
        '[coordinator]\nmode = "ring"\nfraction = 0.5', "coordinator.fraction: ", ["belongs to sync", "mode is ring"]
    ),
    "a count above the peers": Case(
        '[topology]\npeers = 4\n[coordinator]\nmode = "quorum"\nquorum = 5',
        "coordinator.quorum: ",
        ["a count of 5", "number of peers, 4"],
    ),
    "gossip beside a coordinator": Case(
        '[algorithm]\nname = "dpsgd"\n[coordinator]\nmode = "sync"',
        "algorithm.name: ",
        ["dpsgd is a gossip algorithm", 'coordinator.mode = "sync"', "leave it out"],
    ),
    "a coordinator that is not there": Case(
        '[coordinator]\nmode = "async"\nname = "hub"',
        "coordinator.name: ",
        ['"hub" is a coordinator that is not in the file', "[[peers]]"],
    ),
    "a centre without a coordinator": Case(
        '[algorithm]\nname = "easgd"', "algorithm.name: ", ["easgd", 'coordinator.mode = "sync" or "async"']
    ),
    "bad TOML": Case("rounds = 1\nx = \n", "exp.toml: not valid TOML: ", ["line 2"]),
    "none without init": Case(
        '[task]\ndata = "none"', "task.init: ", ["the vectors that are gossiped", "[[1.0], [2.0]]"]
    ),
    "hypercube of 12": Case(
        SOFTMAX + '[topology]\nfamily = "hypercube"\npeers = 12', "topology.peers: ", ["power of two", "8 or 16"]
    ),
    "torus of a prime": Case(SOFTMAX + '[topology]\nfamily = "torus"\npeers = 7', "topology.", ["7", "shape"]),
    "grid of another count": Case(
        '[topology]\nfamily = "grid"\nshape = [2, 3]\npeers = 5', "topology.peers = 5, ", ["topology.shape makes 6"]
    ),
    "regular, n d odd": Case(
        SOFTMAX + '[topology]\nfamily = "regular"\npeers = 5\ndegree = 3', "topology.degree: ", ["3", "5"]
    ),
    "degree as large as n": Case(
        SOFTMAX + '[topology]\nfamily = "regular"\npeers = 4\ndegree = 4', "topology.degree: ", ["4"]
    ),
    "more peers than rows": Case(SOFTMAX + "[topology]\npeers = 4001", "topology.peers: ", ["4001", "4000"]),
    "sizes beyond the rows": Case(
        SOFTMAX + 'partition = "sizes"\nsizes = [3000, 3000]\n[topology]\npeers = 2', "task.sizes: ", ["6000", "4000"]
    ),
    "more classes than there are": Case(
        SOFTMAX + 'partition = "by_class"\nclasses_per_peer = 11', "task.classes_per_peer: ", ["11", "10"]
    ),
    "no threshold for positions": Case(
        '[topology]\nfamily = "geometric"', "topology.threshold: ", ["needs one", "such as 0.5"]
    ),
    "a key of another algorithm": Case(
        "[algorithm]\ngamma = 0.5", "algorithm.gamma: ", ["belongs to choco", "algorithm.name is dpsgd"]
    ),
    "an algorithm to come": Case(
        '[algorithm]\nname = "choco"', "algorithm.name: ", ["not built yet", "dpsgd, push_sum, gradient_tracking"]
    ),
    "a graph file that is not there": Case(
        SOFTMAX + '[topology]\nfamily = "file:no.edges"', "topology.family: file:no.edges: ", ["no file"]
    ),
    "a graph file of no known kind": Case(
        SOFTMAX + '[topology]\nfamily = "file:exp.toml"', "topology.family: file:exp.toml: ", [".edges", ".graphml"]
    ),
    "no generator of that name": Case(
        SOFTMAX + '[topology]\nfamily = "networkx:petersen_grap"', "topology.family: ", ["petersen_graph"]
    ),
    "a module that is not there": Case(
        '[task]\nmodel = "nowhere.to_be:seen"', "task.model: nowhere.to_be:seen: ", ["no module named 'nowhere'"]
    ),
    "a data file that is not there": Case(SOFTMAX + 'data = "npz:no.npz"', "task.data: ", ["no.npz"]),
    "a start of another length": Case(SOFTMAX + "init = [1.0, 2.0]", "task.init: ", ["2 numbers", "7,850 parameters"]),
    "two counts": Case(INLINE + "[topology]\npeers = 5", "topology.peers = 5, ", ["task.shards has 2"]),
    "a GPU that is not there": Case(SOFTMAX + 'device = "cuda:99"', "task.device: ", ["cuda:99", '"cpu" always works']),
}


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_a_bad_file(command: Command, write: Write, case: Case) -> None:
    write(case.text)
    refused_in_one_line(command, case.begins, case.words, "simulate", "exp.toml")


@pytest.mark.parametrize("way", [["explain"], ["up"], ["start", "--name", "peer-0"]])
@pytest.mark.parametrize("name", ["unknown key", "hypercube of 12"])
def test_every_command_refuses_alike(command: Command, write: Write, way: list[str], name: str) -> None:
    case = FILES[name]
    write(case.text)
    refused_in_one_line(command, case.begins, case.words, *way, "exp.toml")


def test_no_file_and_a_folder_for_a_file(command: Command, here: Path) -> None:
    (here / "folder").mkdir()
    refused_in_one_line(command, "no.toml: no such file", [], "simulate", "no.toml")
    refused_in_one_line(command, "folder: is a folder, not an experiment file", [], "explain", "folder")


def test_an_unreadable_line_of_a_graph_file_is_named(command: Command, write: Write) -> None:
    write(SOFTMAX + '[topology]\nfamily = "file:graphs/my graph.edges"')
    write("0 1\n1 2\n2 0 heavy\n", "graphs/my graph.edges")
    refused_in_one_line(
        command, "topology.family: file:graphs/my graph.edges: line 3: ", ["'heavy'"], "explain", "exp.toml"
    )


def test_a_graph_that_falls_apart_lists_its_components_and_what_would_connect_them(
    command: Command, write: Write
) -> None:
    peers = "".join(
        f'[[peers]]\nname = "{name}"\nposition = [{x}, 0.0]\n' for name, x in zip("abcd", (0, 1, 5, 6), strict=True)
    )
    write(SOFTMAX + '[topology]\nfamily = "geometric"\nthreshold = 2.0\n' + peers)
    words = ["2 components", "{a, b}", "{c, d}", "4 would connect them", "topology.allow_disconnected = true"]
    refused_in_one_line(command, "topology.threshold: at 2 ", words, "simulate", "exp.toml")
    assert command("explain", "exp.toml", "--set", "topology.threshold=4").code == 0
    assert command("explain", "exp.toml", "--set", "topology.allow_disconnected=true").code == 0


def test_names_that_do_not_match_the_graph_are_listed(command: Command, write: Write) -> None:
    nodes = "".join(f'<node id="{name}"/>' for name in "abc")
    graph = f'<graph edgedefault="undirected">{nodes}<edge source="a" target="b"/><edge source="b" target="c"/></graph>'
    write(f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph}</graphml>', "lab.graphml")
    peers = "".join(f'[[peers]]\nname = "{name}"\n' for name in ("a", "b", "x"))
    write(SOFTMAX + '[topology]\nfamily = "file:lab.graphml"\n' + peers)
    refused_in_one_line(command, "peers: ", ["c, x"], "explain", "exp.toml")
    assert command("explain", "exp.toml", "--set", "peers.2.name=c").code == 0


# ---- The data and the user's own code


def test_a_label_that_the_model_has_no_output_for(command: Command, write: Write, here: Path) -> None:
    np.savez(here / "rows.npz", x=np.zeros((6, 3)), y=np.array([0, 1, 2, 0, 1, 7]))
    write("import torch\n\ndef net():\n    return torch.nn.Linear(3, 5)\n", "bad_input_net.py")
    write('[task]\nmodel = "bad_input_net:net"\ndata = "npz:rows.npz"\n[topology]\npeers = 2')
    words = ["rows.npz", "int64", "labels go up to 7", "5 outputs"]
    refused_in_one_line(command, "task.", words, "simulate", "exp.toml", "--out", "out")


def test_more_peers_than_rows_of_a_file(command: Command, write: Write, here: Path) -> None:
    np.savez(here / "rows.npz", x=np.zeros((3, 2)), y=np.array([0, 1, 0]))
    write(SOFTMAX + 'data = "npz:rows.npz"\n[topology]\npeers = 4')
    refused_in_one_line(command, "topology.peers: ", ["4", "3 "], "simulate", "exp.toml")


RAISES = "def net():\n    wanted = 'layers'\n    raise RuntimeError(f'no {wanted}\\nto be found')\n"


@pytest.mark.parametrize("way", [["simulate"], ["explain"], ["up"]])
def test_a_factory_that_raises_shows_its_own_traceback_and_not_ours(
    command: Command, write: Write, way: list[str]
) -> None:
    write(RAISES, "bad_input_raises.py")
    write('[task]\nmodel = "bad_input_raises:net"')
    words = ["bad_input_raises:net raised RuntimeError: no layers"]
    shown = refused(command, "task.model: ", words, *way, "exp.toml").err.splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert any('bad_input_raises.py", line 3, in net' in line for line in shown)
    assert not any(f"{os.sep}peer{os.sep}" in line for line in shown)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def net(depth):\n    pass\n", ["depth", "Give it a default"]),
        ("def nets():\n    pass\n", ["has no 'net'", "did you mean 'nets'?"]),
        ("net = 3\n", ["of type int"]),
        ("def net():\n    return 3\n", ["int"]),
        ("import sys\nsys.exit('no')\n", ["SystemExit"]),
        ("def net(:\n", ["SyntaxError"]),
        ("import not_a_module\n", ["not_a_module"]),
    ],
)
def test_a_factory_that_is_none(command: Command, write: Write, words: list[str], text: str) -> None:
    name = f"bad_input_{abs(hash(text))}"
    write(text, f"{name}.py")
    write(f'[task]\nmodel = "{name}:net"')
    refused(command, "task.model: ", words, "explain", "exp.toml")


def test_data_from_a_network_that_is_not_there(
    command: Command, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is offline is told so at once, and how to bring the data here."""

    def offline(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    monkeypatch.setenv("EARSHOT_DATA", str(tmp_path / "data"))
    write(SOFTMAX + 'data = "torchvision:MNIST"')
    pytest.importorskip("torchvision")
    words = [str(tmp_path / "data"), "the download failed", "EARSHOT_DATA"]
    refused(command, "task.data: torchvision:MNIST: ", words, "simulate", "exp.toml")


# ---- The command line

OPTIONS = {
    "no equals sign": (["simulate", "exp.toml", "--set", "rounds"], '"rounds" sets no key; ', ["task.lr=0.1"]),
    "unknown key": (["simulate", "exp.toml", "--set", "task.lrr=1"], "task.lrr: unknown key; ", ["task.lr?"]),
    "bad value": (["explain", "exp.toml", "--set", "rounds=[1"], "rounds: ", ["not valid TOML"]),
    "bad type": (["explain", "exp.toml", "--set", "rounds=x"], "rounds: ", ["is not a whole number"]),
    "requirement": (["simulate", "exp.toml", "--require", "loss"], "--require: ", ["accuracy.mean >= 0.93"]),
    "unknown number": (["up", "exp.toml", "--require", "los.mean < 1"], "--require: ", ["loss.mean?"]),
    "out is a file": (["simulate", "exp.toml", "--out", "exp.toml"], "--out exp.toml: ", ["cannot be written"]),
    "out below a file": (["simulate", "exp.toml", "--out", "exp.toml/x"], "--out exp.toml/x: ", ["cannot be"]),
    "out is full": (["simulate", "exp.toml", "--out", "full"], "--out full: ", ["not empty", "name a new one"]),
    "out under /proc": (["simulate", "exp.toml", "--out", "/proc/x/y"], "--out /proc/x/y: ", ["cannot be written"]),
    "up, out is full": (["up", "exp.toml", "--out", "full"], "--out full: ", ["not empty"]),
    "start without addresses": (["start", "exp.toml", "--name", "peer-0"], "peers: ", ["peer-1", "an address"]),
    "out and no folder": (["simulate", "exp.toml", "--out", "new", "--no-folder"], "--out and --no-folder", []),
    "unknown command": (["simulat", "exp.toml"], "No such command 'simulat'", ["simulate"]),
    "unknown option": (["simulate", "exp.toml", "--roundz", "3"], "No such option: --roundz", []),
    "no file": (["simulate"], "Missing argument 'EXP'", []),
    "two files": (["simulate", "exp.toml", "other.toml"], "Got unexpected extra argument", ["other.toml"]),
    "unknown engine": (["simulate", "exp.toml", "--engine", "warp"], "", ["--engine", "warp", "rounds", "events"]),
    "no name": (["start", "exp.toml"], "Missing option '--name'", []),
    "unknown name": (["start", "exp.toml", "--name", "lab-9"], "--name: ", ['"lab-9"', "peer-0, peer-1"]),
}


@pytest.mark.parametrize(("arguments", "begins", "words"), OPTIONS.values(), ids=OPTIONS)
def test_a_bad_command_line(
    command: Command, write: Write, arguments: list[str], begins: str, words: list[str]
) -> None:
    write(PURE)
    write("all of it", "full/thesis.txt")
    refused_in_one_line(command, begins, words, *arguments)


@pytest.mark.parametrize("value", ["a\nb", "a\x1b[31m", "a\u2028b"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "exp.toml", "--require"],
        ["simulate", "exp.toml", "--set"],
        ["simulate"],
        ["start", "exp.toml", "--name"],
        ["simulate", "exp.toml", "--engine"],
    ],
)
def test_odd_characters_stay_on_one_printable_line(
    command: Command, write: Write, arguments: list[str], value: str
) -> None:
    write(PURE)
    refused_in_one_line(command, "", [], *arguments, value)


def test_a_starter_never_overwrites(command: Command, write: Write) -> None:
    write("precious", "mine.toml")
    outcome = command("new", "mine.toml")
    assert outcome.code == 2
    assert outcome.err == "earshot: mine.toml exists already; name another file, nothing was overwritten\n"
    assert files_in(Path()) == {"mine.toml": b"precious"}
    assert command("new", "no/such/folder/x.toml").err.startswith("earshot: no/such/folder/x.toml cannot be written: ")


def test_the_starter_runs(command: Command, here: Path) -> None:
    assert command("new").code == 0
    assert [file.name for file in here.iterdir()] == ["experiment.toml"]
    assert command("explain", "experiment.toml", "--json").document["peers"] == 8


def test_a_machine_that_is_not_this_one_needs_keys(command: Command, write: Write) -> None:
    peers = '[[peers]]\nname = "a"\naddress = "lab-3.example:5555"\n[[peers]]\nname = "b"\naddress = "localhost:5556"\n'
    write(SOFTMAX + '[topology]\nfamily = "path"\n' + peers)
    words = ["lab-3.example:5555", "not a loopback address", "keys"]
    for name in ("a", "b"):
        refused_in_one_line(command, "peers.a.address: ", words, "start", "exp.toml", "--name", name)


def test_a_start_whose_folder_is_full(command: Command, write: Write) -> None:
    write(SOFTMAX + '[[peers]]\nname = "a"\n')
    write("all of it", "full/thesis.txt")
    refused_in_one_line(command, "--out full: ", ["not empty"], "start", "exp.toml", "--name", "a", "--out", "full")


def test_neighbours_that_cannot_reach_each_other(command: Command, write: Write) -> None:
    peers = '[[peers]]\nname = "a"\nlisten = "none"\n[[peers]]\nname = "b"\nlisten = "none"\n'
    write(SOFTMAX + '[topology]\nfamily = "path"\n' + peers)
    words = ["a", "b", "earshot up"]
    refused_in_one_line(command, "peers: ", words, "start", "exp.toml", "--name", "b")


# ---- What is odd and works all the same


def test_paths_with_spaces(command: Command, write: Write, here: Path) -> None:
    np.savez(here / "my rows.npz", x=np.arange(12.0).reshape(6, 2), y=np.array([0, 1, 0, 1, 0, 1]))
    write("0 1\n1 2\n", "a folder/my graph.edges")
    text = '\n[topology]\nfamily = "file:my graph.edges"'
    exp = write("rounds = 2\n" + SOFTMAX + 'data = "npz:../my rows.npz"' + text, "a folder/my exp.toml")
    outcome = command("simulate", exp.relative_to(here), "--out", "the results", "--quiet", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["run_folder"] == str(here / "the results")
    assert (here / "the results" / "summary.json").is_file()


def test_a_path_relative_to_the_file_and_not_to_the_caller(command: Command, write: Write) -> None:
    write("0 1\n", "there/pair.edges")
    write(SOFTMAX + '[topology]\nfamily = "file:pair.edges"', "there/exp.toml")
    assert command("explain", "there/exp.toml", "--json").document["peers"] == 2


# ---- Real processes


def earshot(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peer", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_a_comment_with_an_accent_where_the_locale_is_c_and_home_cannot_be_written(here: Path, write: Write) -> None:
    write('# après\nname = "é"\nrounds = 2\n' + PURE)
    done = earshot(here, "simulate", "exp.toml", "--quiet", LC_ALL="C", HOME="/proc/none", XDG_CACHE_HOME="/proc/none")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [folder.name.startswith("é-") for folder in (here / "runs").iterdir()] == [True]


def test_a_refusal_of_a_real_process(here: Path, write: Write) -> None:
    write(RAISES, "bad_input_raises.py")
    write('[task]\nmodel = "bad_input_raises:net"')
    done = earshot(here, "up", "exp.toml", "--json")
    assert done.returncode == 2
    line = "task.model: bad_input_raises:net raised RuntimeError: no layers"
    assert done.stdout == f'{{"error": "{line}"}}\n'
    assert done.stderr.splitlines()[-1] == f"earshot: {line}"
    assert {file.name for file in here.iterdir()} - {"__pycache__"} == {"bad_input_raises.py", "exp.toml"}
