"""The experiment file: what loads, what is refused and in which words, what the digest covers."""

import io
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import ConfigError
from peer.experiment import Experiment, PeerEntry, Table, differing_keys, disagreement, from_dict, load, reading
from peer.experiment.choices import CHOICES, NEEDS, ONLY_DEFAULT, USED_BY
from peer.starter import starter_text

INLINE = 'task = {model = "linear", data = "inline", shards = [[[[1.0], 3.0]], [[[2.0], 5.0]]]}\n'


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "exp.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refusal(path: Path, overrides: Any = ()) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert len(str(caught.value).splitlines()) == 1, "an error is one line"
    return caught.value


def leaves(table: Table, prefix: str = "") -> dict[str, object]:
    """Dotted key -> value of all keys, those of tables in place of the tables."""
    found: dict[str, object] = {}
    for name in type(table).model_fields:
        value = getattr(table, name)
        found |= leaves(value, f"{prefix}{name}.") if isinstance(value, Table) else {prefix + name: value}
    return found


# Defaults: the contract, to the letter.

CONTRACT = tomllib.loads("""
name = "experiment"
seed = 0
rounds = 200
stop_when = ""
stop_after_s = 0
eval_every = 10
peers = []
[task]
model = "cnn"
data = "mnist5k"
partition = "iid"
alpha = 0.3
batch_size = 32
local_steps = 1
optimizer = "sgd"
lr = 0.05
lr_schedule = "constant"
warmup_rounds = 0
momentum = 0.0
weight_decay = 0.0
proximal_mu = 0.0
dtype = "float32"
device = "auto"
threads = 1
step = "auto"
[topology]
family = "ring"
metric = "hops"
threshold = 1
weights = "auto"
allow_disconnected = false
[algorithm]
name = "dpsgd"
mode = "sync"
order = "atc"
combine = "weighted_sum"
f = 0
share = ["*"]
buffers = "average"
[compression]
name = "none"
[coordinator]
mode = "none"
name = "coordinator"
aggregate = "gradients"
weighting = "samples"
fraction = 1.0
server_optimizer = "sgd"
staleness = "constant"
max_staleness = 0
quorum = 0.8
timer_s = 0
late = "drop"
buffer = 10
servers = 1
arrival = "clock"
delay = 0
engine = "own"
[network]
latency_ms = 0
jitter_ms = 0
bandwidth_mbps = 0
node_mbps = 0
loss = 0.0
duplicate = 0.0
reorder = 0.0
file = ""
[speed]
step_s = 1.0
factors = []
distribution = "constant"
file = ""
[faults]
schedule = []
attackers = []
per_minute = 0.0
[transport]
listen = "auto"
advertise = ""
plane = "auto"
overlap = false
round_deadline_s = 0
heartbeat_s = 0.5
suspect_s = 3
dead_s = 5
join_s = 60
[checkpoint]
every_rounds = 0
keep = 3
[record]
params = "none"
on_divergence = "stop"
""")

# Keys without a default.
OPTIONAL = """
task: classes_per_peer sizes rows_per_peer shards init
topology: peers shape degree k p m fanout variant pairs among speed margin args directed seed look_again
algorithm: gamma outer_lr outer_momentum nesterov among alpha max_staleness allow_unstable tau
compression: k fraction levels rank
coordinator: server_lr server_momentum beta1 beta2 server_tau variant
speed: sigma
"""


def contract() -> dict[str, object]:
    """Dotted key -> default of every key of the contract; None for those that have none."""
    flat: dict[str, object] = {}
    for table, keys in CONTRACT.items():
        flat |= {f"{table}.{key}": value for key, value in keys.items()} if isinstance(keys, dict) else {table: keys}
    for line in OPTIONAL.strip().splitlines():
        table, _, names = line.partition(": ")
        flat |= dict.fromkeys(f"{table}.{name}" for name in names.split(" "))
    return flat


def test_an_empty_file_is_the_contract(write: Any) -> None:
    found = leaves(load(write("")))
    assert {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()} == contract()


def test_the_defaults_are_themselves_accepted() -> None:
    assert from_dict(Experiment().model_dump()) == Experiment()


def test_every_choice_names_a_key_and_builds_its_default() -> None:
    for key, choice in CHOICES.items():
        if key != "peers.data":
            assert contract()[key] in (None, *choice.built), key
    for key in (*USED_BY, *(other for other, _ in USED_BY.values()), *(key for key, _ in NEEDS)):
        assert key in contract() or key == "peers.data", key


# What loads.


@pytest.mark.parametrize(
    "text",
    [
        "[topology]\npeers = 4",
        "rounds = 0",
        "seed = 9223372036854775807",
        'name = "two words, é"',
        "[task]\nlr = 1",
        "[task]\nlr = 0",
        "[task]\nbatch_size = 0",
        '[task]\nmodel = "my_models.small:make"',
        '[task]\ndata = "torchvision:FashionMNIST"',
        '[task]\ndata = "npz:some folder/data.npz"',
        '[task]\ndata = "my.data:make"',
        '[task]\npartition = "dirichlet"\nalpha = 0.1',
        '[task]\npartition = "by_class"\nclasses_per_peer = 2',
        '[task]\npartition = "sizes"\nsizes = [5, 6]\n[topology]\npeers = 2',
        '[task]\npartition = "sample"\nrows_per_peer = 10',
        '[task]\npartition = "own"\n[[peers]]\nname = "a"\ndata = "npz:a.npz"',
        '[task]\nlr_schedule = "cosine"\nwarmup_rounds = 3\nmomentum = 0.9\nproximal_mu = 0.1',
        '[task]\ndevice = "cuda:1"\nthreads = 2\nstep = "vmap"\ndtype = "float64"',
        '[task]\ndata = "none"\ninit = [1, 2]',
        '[task]\ndata = "none"\ninit = [[1.0], [2]]\n[topology]\npeers = 2',
        INLINE,
        '[topology]\nfamily = "torus"\nshape = [4, 8]',
        '[topology]\nfamily = "torus"\nshape = [4, 8]\npeers = 32',
        '[topology]\nfamily = "regular"\ndegree = 4\nseed = 3',
        '[topology]\nfamily = "smallworld"\nk = 4\np = 0.1',
        '[topology]\nfamily = "geometric"\nthreshold = 0.5',
        '[topology]\nfamily = "file:graphs/my graph.edges"\ndirected = true',
        '[topology]\nfamily = "networkx:circulant_graph"\nargs = {n = 6, offsets = [1, 2]}',
        "[topology]\nthreshold = inf",
        "[topology]\nthreshold = 0",
        '[topology]\nfamily = "one_peer_exponential"\nmetric = "hops"\nthreshold = 1',
        '[topology]\nfamily = "base_k"\nk = 3',
        '[topology]\nfamily = "random_matching"\npairs = 0\namong = "file:a graph.edges"',
        '[topology]\nfamily = "epidemic"\nfanout = 3\nvariant = "local"\nweights = "push"',
        '[topology]\nfamily = "mobile"\nthreshold = 0.4\nspeed = 0\nmargin = 0',
        '[topology]\nfamily = "my.streets:one_way"\nargs = {lanes = 2, names = ["a", "b"]}',
        '[topology]\nmetric = "model"\nthreshold = inf\nlook_again = 3',
        '[topology]\nmetric = "rtt"\nthreshold = 20',
        '[topology]\nweights = "push"\n[algorithm]\nname = "push_sum"',
        '[algorithm]\nname = "exact"\nbuffers = "keep"\norder = "atc"\nshare = ["*"]\nf = 0',
        '[algorithm]\nname = "gradient_tracking"\norder = "diging"\nshare = ["encoder.*", "*.bias"]',
        '[algorithm]\nname = "d2"\nallow_unstable = true\n[task]\nproximal_mu = 0.1\nweight_decay = 0.1',
        '[algorithm]\nname = "diloco"\namong = "neighbours"\nouter_lr = 0.5\nouter_momentum = 0\nnesterov = false',
        '[algorithm]\nname = "my.module:rule"',
        '[coordinator]\nmode = "none"\nquorum = 0.8',
        '[transport]\nlisten = "tcp://[::1]:0"\nplane = "tcp"\nround_deadline_s = 0',
        '[transport]\nlisten = "tcp://*:5555"',
        '[transport]\nlisten = "none"',
        '[record]\nparams = "every"\non_divergence = "continue"',
        'rounds = 0\nstop_when = "accuracy.mean >= 0.9"\nstop_after_s = 5',
        "[network]\njitter_ms = 5\nbandwidth_mbps = 20\nloss = 0.99\nduplicate = 0.5\nreorder = 0.1",
        '[speed]\nfactors = [1, 4]\ndistribution = "lognormal"\nsigma = 0\n[topology]\npeers = 2',
        '[speed]\nfactors = [1, 4]\nfile = "steps.csv"\n[topology]\npeers = 2',
        "[faults]\nper_minute = 2.5\nschedule = ["
        '{round = 0, kill = "peer-3"}, {at_s = 2, restart = ["peer-3"]}, {at_s = 1, cut = ["a", "b"], for_s = 0.5}, '
        '{at_s = 4, heal = true}, {round = 9, partition = [["a"], ["b", "c"]], for_s = 8}]',
        '[algorithm]\nmode = "async"\norder = "cta"\nmax_staleness = 0',
        '[algorithm]\nname = "adpsgd"',
        '[algorithm]\nname = "adpsgd"\nmode = "async"',
        '[algorithm]\nname = "my.module:rule"\nmode = "async"\nmax_staleness = 3',
        "[transport]\nround_deadline_s = 2",
        '[[peers]]\nname = "lab 3"\naddress = "[fe80::1]:5555"\n[[peers]]\nname = "b"\naddress = "tcp://h-1.x:1"',
        '[[peers]]\nname = "a"\nposition = [0, 1.5]\nlisten = "none"\nadvertise = "h:1"\ndevice = "cpu"',
    ],
)
def test_it_loads_and_its_toml_loads_back(write: Any, text: str) -> None:
    experiment = load(write(text))
    again = load(write(experiment.to_toml()))
    assert again == experiment
    assert again.digest() == experiment.digest()
    assert hash(again) == hash(experiment)


def test_mobile_measures_positions(write: Any) -> None:
    experiment = load(write('[topology]\nfamily = "mobile"\nthreshold = 0.4'))
    assert experiment.topology.metric == "position"
    assert load(write(experiment.to_toml())).topology.metric == "position"


def test_geometric_measures_positions_unless_told_otherwise(write: Any) -> None:
    path = write('[topology]\nfamily = "geometric"\nthreshold = 2')
    assert load(path).topology.metric == "position"
    assert load(path, ["topology.metric=hops"]).topology.metric == "hops"
    assert 'metric = "position"' in load(path).to_toml()


def test_bytes_are_utf8_in_any_locale_and_a_bom_is_passed_over(write: Any) -> None:
    path = write('\ufeff# a comment with é\r\nname = "é"\r\n')
    code = f"from peer.experiment import load; print(ascii(load({str(path)!r}).name))"
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii("é")


def test_it_loads_neither_torch_nor_numpy_nor_networkx() -> None:
    code = "import sys, peer.experiment, peer.starter; print({'torch', 'numpy', 'networkx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_path_and_folder(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("")
    monkeypatch.chdir(path.parent)
    experiment = load("exp.toml", ["rounds=3"])
    assert (experiment.path, experiment.folder) == (Path("exp.toml"), path.parent)
    assert experiment.source_overrides == {"rounds": 3}
    assert from_dict({}).path is None


def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("# é\nrounds = 3".encode())))
    experiment = load("-")
    assert (experiment.rounds, experiment.folder) == (3, tmp_path)


def test_numbers_of_other_libraries() -> None:
    experiment = from_dict({"rounds": np.int64(3), "task": {"lr": np.float64(0.5), "momentum": np.float32(0.5)}})
    assert (experiment.rounds, experiment.task.lr, experiment.task.momentum) == (3, 0.5, 0.5)


# Overrides.


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("rounds=5", "rounds", 5),
        (" task.lr = 0.1 ", "task.lr", 0.1),
        ("topology.family=complete", "topology.family", "complete"),
        ('topology.family="complete"', "topology.family", "complete"),
        ("topology.family=file:graph.edges", "topology.family", "file:graph.edges"),
        ("task.model=my.models:make", "task.model", "my.models:make"),
        ("name=a b", "name", "a b"),
        ("topology.allow_disconnected=true", "topology.allow_disconnected", True),
        ("topology.threshold=inf", "topology.threshold", float("inf")),
        ("task={lr = 0.2, batch_size = 1}", "task.batch_size", 1),
    ],
)
def test_overrides_as_text(write: Any, override: str, key: str, value: object) -> None:
    experiment = load(write("[task]\nlocal_steps = 7\n[topology]\npeers = 4"), [override])
    assert leaves(experiment)[key] == value
    assert experiment.task.local_steps == 7
    assert experiment.topology.peers == 4


def test_overrides_as_a_mapping(write: Any) -> None:
    path = write('[topology]\nfamily = "regular"\ndegree = 4\n[[peers]]\nname = "a"\n[[peers]]\nname = "b"')
    experiment = load(path, {"topology": {"family": "ring", "degree": None}, "peers.1.device": "cpu"})
    assert (experiment.topology.family, experiment.topology.degree) == ("ring", None)
    assert [peer.device for peer in experiment.peers] == [None, "cpu"]


def test_overrides_reach_nested_tables_and_the_last_one_wins(write: Any) -> None:
    path = write('[topology]\nfamily = "networkx:cycle_graph"\nargs = {n = 3}')
    assert load(path, ["topology.args.n=4", "topology.args.n=5"]).topology.args == {"n": 5}
    assert load(path, ["rounds=1", "seed=1", "rounds=2"]).rounds == 2
    assert load(path, ["task.lr=1", "task={lr = 3}", "task.lr=2"]).task.lr == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rounds", "write section.key=value"),
        ("=5", "write section.key=value"),
        ("rounds=", "write section.key=value"),
        ("task..lr=1", '"task..lr" is not a key'),
        ("task.lrr=1", "task.lrr: unknown key; did you mean task.lr?"),
        ("rounds=many", 'rounds: "many" is not a whole number'),
        ("task.shards=[1, 2", 'task.shards: "[1, 2" is not valid TOML'),
        ("rounds.x=1", "rounds: is not a table"),
        ("peers.1.device=cpu", "peers.1: is not there: the array has 1 entries"),
        ("rounds=1\nseed=2", r'rounds: "1\nseed=2" is not a whole number'),
        ("name=\udcff", "name"),
    ],
)
def test_overrides_refused(write: Any, override: str, words: str) -> None:
    assert words in str(refusal(write('rounds = 3\n[[peers]]\nname = "a"'), [override]))


# What is refused, and in which words.


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[topology]\ntreshold = 2", "topology.treshold: unknown key; did you mean topology.threshold?"),
        ("[topolgy]\npeers = 2", "topolgy: unknown key; did you mean topology?"),
        ("lr = 1", "lr: unknown key; belongs in [task]: task.lr"),
        ("k = 1", "belongs in [topology]: topology.k or [compression]: compression.k"),
        ("[task]\nrounds = 1", "task.rounds: unknown key; belongs at the top level: rounds"),
        ("[task]\ntreshold = 1", "task.treshold: unknown key; did you mean topology.threshold?"),
        ("[record]\nzzz = 1", "record.zzz: unknown key; [record] knows params, on_divergence"),
        ("zzz = 1", "zzz: unknown key; the top level knows name, seed, rounds"),
        ('[task]\n"a\\nb" = 1', r"task.a\nb: unknown key"),
        (
            '[[peers]]\nname = "a"\nadress = "b:1"',
            "peers.0.adress: unknown key; did you mean peers.0.address?",
        ),
        ('rounds = "many"', 'rounds: "many" is not a whole number'),
        ('rounds = "5"', 'rounds: "5" is not a whole number'),
        ("rounds = true", "rounds: true is not a whole number"),
        ("rounds = 5.0", "rounds: 5.0 is not a whole number"),
        ("rounds = -1", "rounds: -1 must be 0 or above"),
        ("eval_every = 0", "eval_every: 0 must be 1 or above"),
        ("seed = -1", "seed: -1 must be 0 or above"),
        ("seed = 9223372036854775808", "seed: 9223372036854775808 must be 9223372036854775807 or below"),
        ("name = 5", "name: 5 is not text"),
        ('name = ""', 'name: "" is not a name'),
        ('name = ".."', 'name: ".." is not a name'),
        ('name = "a/b"', 'name: "a/b" must not contain / or \\'),
        ('name = "a\\nb"', r'name: "a\nb" must not contain control characters'),
        ("task = 3", "task: 3 is not a table"),
        ("[[task]]\nlr = 1", "task: [{lr = 1}] is not a table"),
        ("peers = 4", "peers: 4 is not an array; [[peers]] lists machines"),
        ('[peers]\nname = "a"', 'peers: {name = "a"} is not an array; [[peers]] lists machines'),
        ("[task]\nlr = -1.0", "task.lr: -1.0 must be 0 or above"),
        ("[task]\nlr = true", "task.lr: true is not a number"),
        ("[task]\nlr = nan", "task.lr: nan is not finite"),
        ("[task]\nlr = inf", "task.lr: inf is not finite"),
        ("[task]\nlr = 2026-01-01", "task.lr: 2026-01-01 is not a number"),
        ("[task]\nalpha = 0", "task.alpha: 0 must be above 0"),
        ("[task]\nmomentum = 1.0", "task.momentum: 1.0 must be below 1"),
        ("[task]\nbatch_size = -1", "task.batch_size: -1 must be 0 or above"),
        ("[task]\nlocal_steps = 0", "task.local_steps: 0 must be 1 or above"),
        ("[task]\nthreads = 0", "task.threads: 0 must be 1 or above"),
        (
            '[task]\nmodel = "cnnn"',
            'task.model: "cnnn" is not known; choose cnn, mlp, softmax, linear or "package.module:factory"'
            " (did you mean cnn?)",
        ),
        ('[task]\nmodel = "a b:c"', 'task.model: "a b:c" is not known'),
        ('[task]\nmodel = "mod:"', 'task.model: "mod:" is not known'),
        ('[task]\nmodel = "m:f\\n"', r'task.model: "m:f\n" is not known'),
        ('[task]\ndata = "npz:"', 'task.data: "npz:" is not known'),
        ('[task]\ndevice = "cuda:"', 'task.device: "cuda:" is not known; choose auto, cpu, cuda or "cuda:N"'),
        ('[task]\noptimizer = "adam"', 'task.optimizer: "adam" is not known; choose sgd'),
        ('[task]\nstep = "fused"', 'task.step: "fused" is not built yet; built are: auto, vmap, plain'),
        ('[topology]\nfamily = "rng"', "(did you mean ring?)"),
        ('[topology]\nfamily = "base-k"', "(did you mean base_k?)"),
        ('[topology]\nweights = "pull"', "choose auto, metropolis, uniform, lazy or push"),
        (
            '[algorithm]\nname = "choco"',
            'algorithm.name: "choco" is not built yet; built are: dpsgd, adpsgd, push_sum, gradient_tracking, d2, '
            'diloco, easgd, local, exact, "package.module:factory"',
        ),
        ('[algorithm]\ncombine = "median"', "is not built yet; built are: weighted_sum"),
        ("[algorithm]\nshare = []", "algorithm.share: [] must not be empty"),
        (
            '[compression]\nname = "top_k"\nk = 5',
            'compression.name: "top_k" is not built yet; built are: none, fp16, bf16',
        ),
        ('[coordinator]\nmode = "rng"', 'coordinator.mode: "rng" is not known; choose none, sync, async, quorum, '),
        (
            '[faults]\nattackers = [{peer = "peer-2", kind = "nan"}]',
            'faults.attackers: [{peer = "peer-2", kind = "nan"}] is not built yet; built are: []',
        ),
        ("stop_after_s = -1", "stop_after_s: -1 must be 0 or above"),
        ("[network]\nloss = 1.0", "network.loss: 1.0 must be below 1"),
        ("[network]\nduplicate = 1", "network.duplicate: 1 must be below 1"),
        ("[network]\nreorder = 1", "network.reorder: 1 must be below 1"),
        ("[speed]\nfactors = [1, 0]", "speed.factors.1: 0 must be above 0"),
        ("[speed]\nsigma = 1", "speed.sigma: belongs to lognormal, and speed.distribution is constant"),
        (
            '[speed]\ndistribution = "lognormal"\nfile = "steps.csv"',
            'speed.distribution: "lognormal" draws what a trace, speed.file, says; leave one of them out',
        ),
        ("[transport]\noverlap = true", "transport.overlap: true is not built yet; built are: false"),
        ('[transport]\nplane = "shm"', "is not built yet; built are: auto, tcp"),
        ("[checkpoint]\nevery_rounds = 5", "checkpoint.every_rounds: 5 is not built yet between peers that gossip"),
        ('[[peers]]\nname = "a"\nkey = "k"', "peers.0.key: is not built yet; leave it out"),
        ("[algorithm]\ngamma = 0.5", "algorithm.gamma: belongs to choco, and algorithm.name is dpsgd"),
        (
            "[algorithm]\ntau = 0.5",
            "algorithm.tau: belongs to self_clip, and algorithm.combine is weighted_sum",
        ),
        ("[algorithm]\nf = 1", "algorithm.f: belongs to trimmed_mean, "),
        ("[compression]\nlevels = 4", "compression.levels: belongs to qsgd, and compression.name is none"),
        ("[topology]\ndegree = 4", "topology.degree: belongs to regular, and topology.family is ring"),
        (
            "[topology]\nargs = {n = 4}",
            'topology.args: belongs to "networkx:NAME" or "package.module:factory", and topology.family is ring',
        ),
        (
            '[topology]\nfamily = "my.streets:one_way"\ndirected = true',
            'topology.directed: belongs to "file:PATH", and topology.family is my.streets:one_way',
        ),
        ("[task]\nsizes = [1, 2]", "task.sizes: belongs to sizes, and task.partition is iid"),
        ("[task]\nshards = [[[[1.0], 3.0]]]", "task.shards: belongs to inline, and task.data is mnist5k"),
        ('[[peers]]\nname = "a"\ndata = "npz:a"', "peers.0.data: belongs to own, and task.partition is iid"),
        ("[coordinator]\nquorum = 3", "coordinator.quorum: has no effect without coordinator.mode"),
        (
            "[coordinator]\nquorum = 1",
            "coordinator.quorum: 1 must be a fraction up to 1.0, or a count of 2 and more",
        ),
        (
            '[topology]\nfamily = "geometric"',
            "topology.threshold: family geometric needs one, such as 0.5,"
            " the distance within which peers hear each other",
        ),
        ("[topology]\nthreshold = -1", "topology.threshold: -1 must be 0 or above"),
        ("[topology]\nthreshold = nan", "topology.threshold: nan must be 0 or above"),
        ("[topology]\npeers = 0", "topology.peers: 0 must be 1 or above"),
        ('[topology]\nfamily = "grid"\nshape = []', "topology.shape: [] must not be empty"),
        (
            '[topology]\nfamily = "networkx:x"\nargs = {n = nan}',
            "topology.args: {n = nan} must be text, finite",
        ),
        ('[task]\npartition = "by_class"', 'task.classes_per_peer: task.partition = "by_class" needs it'),
        ('[task]\npartition = "sizes"', 'task.sizes: task.partition = "sizes" needs it'),
        ('[task]\npartition = "sizes"\nsizes = [3, 0]', "task.sizes.1: 0 must be 1 or above"),
        ('[task]\npartition = "sample"', 'task.rows_per_peer: task.partition = "sample" needs it'),
        ('[task]\npartition = "own"', "task.partition: own needs [[peers]], each with its data"),
        ('[task]\npartition = "own"\n[[peers]]\nname = "a"', "peers.0.data: is missing"),
        ('[task]\ndata = "inline"\nmodel = "linear"', 'task.shards: task.data = "inline" needs it'),
        ('[task]\ndata = "inline"\nshards = [[[[1.0], 3.0]]]', 'task.model: "cnn" cannot learn inline data'),
        ('[task]\ndata = "none"', 'task.init: task.data = "none" needs it'),
        (
            '[task]\ndata = "none"\ninit = [1.0]\npartition = "dirichlet"',
            "task.partition: has no effect with",
        ),
        ('rounds = 0\n[task]\nlr_schedule = "cosine"', "task.lr_schedule: cosine ends with the rounds"),
        ('[task]\ndata = "none"\ninit = []', "task.init: [] is not an array of numbers"),
        ('[task]\ndata = "none"\ninit = [[]]', "task.init: [] is not an array of numbers"),
        ('[task]\ndata = "none"\ninit = [1.0, "x"]', 'task.init: "x" is not a number'),
        ('[task]\ndata = "none"\ninit = [1.0, [2.0]]', "task.init: 1.0 is not an array of numbers"),
        ('[task]\ndata = "none"\ninit = [nan]', "task.init: [nan] is not finite"),
        (
            '[task]\ndata = "none"\ninit = [[1, 2], [3]]',
            "task.init: row 1 has length 1, and row 0 has length 2",
        ),
        (
            "[transport]\nheartbeat_s = 3",
            "transport.heartbeat_s: 3.0 must be below transport.suspect_s = 3.0",
        ),
        ("[transport]\nsuspect_s = 6", "transport.suspect_s: 6.0 must be below transport.dead_s = 5.0"),
        (
            '[transport]\nlisten = "host:5"',
            'transport.listen: "host:5" is not known; choose auto, none or "tcp://',
        ),
        (
            '[transport]\nlisten = "tcp://h:65536"',
            'transport.listen: "tcp://h:65536": a port is from 0 to 65535',
        ),
        (
            '[transport]\nadvertise = "host"',
            'transport.advertise: "host" is not an address such as host:5555',
        ),
    ],
)
def test_refused(write: Any, text: str, line: str) -> None:
    error = refusal(write(text))
    assert line in str(error)
    assert not re.search(r"\d more\)$", str(error)), "one mistake is counted as one"


@pytest.mark.parametrize(
    "address", ["h", "h:", ":5", "h:0", "h:65536", "http://h:5", "::1:5", "[::g]:5", "a b:5", "h:5 "]
)
def test_addresses_refused(write: Any, address: str) -> None:
    assert refusal(write(f'[[peers]]\nname = "a"\naddress = "{address}"')).key == "peers.0.address"


@pytest.mark.parametrize("name", ["", " ", ".", "a/b", "a\\\\b", "a\\tb", "a\\u2028b", "x" * 65])
def test_names_of_peers_refused(write: Any, name: str) -> None:
    assert refusal(write(f'[[peers]]\nname = "{name}"')).key == "peers.0.name"


def test_peers_have_names_of_their_own_and_all_or_no_positions(write: Any) -> None:
    twice = '[[peers]]\nname = "a"\n[[peers]]\nname = "a"'
    assert str(refusal(write(twice))) == 'peers.1.name: "a" is the name of peers.0 too'
    some = '[[peers]]\nname = "a"\nposition = [0, 1]\n[[peers]]\nname = "b"'
    assert "peers.1.position: is missing" in str(refusal(write(some)))
    assert "peers.0.name: is missing" in str(refusal(write('[[peers]]\naddress = "h:1"')))
    three = '[[peers]]\nname = "a"\nposition = [0, 1, 2]'
    assert "peers.0.position" in str(refusal(write(three)))


@pytest.mark.parametrize(
    ("shards", "line"),
    [
        ("[]", "task.shards: [] must not be empty"),
        ("[[[[1.0], 3.0]], []]", "task.shards: peer-1 has no rows"),
        ("[[[[1.0], 3.0]], [[[1.0, 2.0], 3.0]]]", "task.shards: row 0 of peer-1 has 2 features"),
        ("[[[[], 3.0]]]", "task.shards: row 0 of peer-0 has no features"),
        ("[[[[1.0]]]]", "a row is [features, target]"),
        ("[[[1.0, 3.0]]]", "a row is [features, target]"),
        ("[[[[1.0], true]]]", "true is not a number"),
        ("[[[[nan], 1.0]]]", "nan is not finite"),
    ],
)
def test_shards_refused(write: Any, shards: str, line: str) -> None:
    assert line in str(refusal(write(f'[task]\nmodel = "linear"\ndata = "inline"\nshards = {shards}')))


def test_an_empty_shard_names_the_peer_of_the_file(write: Any) -> None:
    text = INLINE.replace("[[[2.0], 5.0]]", "[]") + '[[peers]]\nname = "a"\n[[peers]]\nname = "b"'
    assert str(refusal(write(text))) == "task.shards: b has no rows"


def test_a_start_is_as_long_as_a_row_for_the_linear_model(write: Any) -> None:
    assert "task.init: a start has length 2" in str(refusal(write(INLINE), ["task.init=[1.0, 2.0]"]))


def test_the_first_in_the_file_is_reported_and_the_others_counted(write: Any) -> None:
    path = write('eval_every = 0\nfoo = 3\nrounds = -1\n[topology]\npeers = "x"\n')
    assert str(refusal(path)) == "eval_every: 0 must be 1 or above (and 3 more)"
    path = write("[topology]\ndegree = 3\n[task]\nsizes = [3]\n[algorithm]\ngamma = 1.0")
    assert str(refusal(path)) == "topology.degree: belongs to regular, and topology.family is ring (and 2 more)"


def test_long_and_odd_values_stay_short_and_printable(write: Any) -> None:
    error = refusal(write(f'rounds = "{"x" * 500}\\u2028\\u001b"'))
    assert len(str(error)) < 120
    assert str(error).isprintable()


def test_deep_and_many_mistakes_stay_quick(write: Any) -> None:
    assert len(str(refusal(write("rounds = " + "[" * 400 + "]" * 400)))) < 120
    rows = ", ".join(["[[1.0], true]"] * 20_000)
    error = refusal(write(f'[task]\nmodel = "linear"\ndata = "inline"\nshards = [[{rows}]]'))
    assert str(error).startswith("task.shards.0.0.1: true is not a number")
    assert str(error).endswith("(and 19999 more)")


@pytest.mark.parametrize("data", [{1: 2}, {"task": {3: 4}}, {"task": None}, {"name": "\udcff"}, {"rounds": {1}}])
def test_odd_python_values(data: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(data)
    assert str(caught.value).isprintable()


# Files that cannot be read.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name = 1\nx = \n", "exp.toml: not valid TOML: Invalid value (at line 2, column 5)"),
        (b"[task]\nlr = 1\nlr = 2\n", "Cannot overwrite a value (at line 3"),
        (b"# one\n# caf\xe9\n", "exp.toml: not UTF-8 at line 2 (byte 0xe9)"),
        ("rounds = 1".encode("utf-16"), "exp.toml: not UTF-8 at line 1 (byte 0xff)"),
        (b"x = " + b"[" * 100_000, "exp.toml: not valid TOML"),
        (b"x = " + b"1" * 10_000, "exp.toml: not valid TOML"),
        (b"a\x00b = 1", "exp.toml: not valid TOML"),
    ],
)
def test_not_toml(write: Any, content: bytes, words: str) -> None:
    assert words in str(refusal(write(content)))


def test_no_file(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(refusal(tmp_path / "no.toml")).endswith("no.toml: no such file")
    assert "is a folder" in str(refusal(tmp_path))
    assert "cannot be read" in str(refusal(tmp_path / "a\0b"))
    assert "cannot be read (Not a directory)" in str(refusal(write("") / "x.toml"))
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 4)
    assert "larger than" in str(refusal(write("rounds = 5")))


# The number of peers.


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("[topology]\npeers = 4", {}),
        ('[topology]\nfamily = "torus"\nshape = [4, 8]', {"topology.shape": 32}),
        (INLINE, {"task.shards": 2}),
        ('[task]\ndata = "none"\ninit = [[1.0], [2.0], [3.0]]', {"task.init": 3}),
        ('[task]\ndata = "none"\ninit = [1.0, 2.0, 3.0]', {}),
        ('[[peers]]\nname = "a"\n[[peers]]\nname = "coordinator"', {"peers": 2}),
    ],
)
def test_stated_counts(write: Any, text: str, counts: dict[str, int]) -> None:
    assert load(write(text)).stated_counts() == counts


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (INLINE + "[topology]\npeers = 5", "topology.peers = 5, but task.shards has 2"),
        (INLINE + '[[peers]]\nname = "a"', "task.shards has 2, but [[peers]] has 1"),
        (
            '[topology]\nfamily = "grid"\nshape = [2, 3]\npeers = 5',
            "topology.peers = 5, but topology.shape makes 6",
        ),
        (
            '[task]\npartition = "sizes"\nsizes = [1, 2]\n[topology]\npeers = 3',
            "topology.peers = 3, but task.sizes has 2",
        ),
    ],
)
def test_counts_that_disagree(write: Any, text: str, line: str) -> None:
    assert str(refusal(write(text))) == line


def test_disagreement_takes_a_graph_files_count_too() -> None:
    assert disagreement({"topology.peers": 5, "graph.edges": 6}) == "topology.peers = 5, but graph.edges has 6"
    assert disagreement({"topology.peers": 5, "graph.edges": 5}) == ""
    assert disagreement({}) == ""


def test_starts(write: Any) -> None:
    flat = load(write('[task]\ndata = "none"\ninit = [1, 2]'))
    nested = load(write('[task]\ndata = "none"\ninit = [[1], [2]]'))
    assert (flat.starts(), flat.init_is_nested()) == (((1.0, 2.0),), False)
    assert (nested.starts(), nested.init_is_nested()) == (((1.0,), (2.0,)), True)
    assert (Experiment().starts(), Experiment().init_is_nested()) == ((), False)


# Digest and fingerprint.


def test_the_digest_ignores_the_order_of_keys(write: Any) -> None:
    one = load(write("seed = 1\nrounds = 2\n[task]\nlr = 1\nmomentum = 0.5\n[topology]\npeers = 3"))
    other = load(write("rounds = 2\nseed = 1\n[topology]\npeers = 3\n[task]\nmomentum = 0.5\nlr = 1.0"))
    assert one.digest() == other.digest()
    assert re.fullmatch("[0-9a-f]{64}", one.digest())


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("task.device=cpu", False),
        ("task.threads=2", False),
        ("task.step=plain", False),
        ("name=other", False),
        ("eval_every=3", False),
        ("transport.join_s=3", False),
        ("record.params=final", False),
        ("task.lr=0.1", True),
        ("seed=1", True),
        ("rounds=1", True),
        ("topology.peers=5", True),
        ("algorithm.order=cta", True),
    ],
)
def test_what_the_digest_covers(write: Any, override: str, changes: bool) -> None:
    ours, theirs = load(write("")), load(write(""), [override])
    assert (ours.digest() != theirs.digest()) == changes
    assert bool(differing_keys(ours.fingerprint(), theirs.fingerprint())) == changes


def test_fingerprint() -> None:
    fingerprint = Experiment().fingerprint()
    assert fingerprint["task.lr"] == "0.05"
    assert fingerprint["task.model"] == '"cnn"'
    assert fingerprint["rounds"] == "200"
    assert not {"task.device", "task.threads", "task.step", "name", "topology.peers"} & set(fingerprint)
    assert {key.partition(".")[0] for key in fingerprint} == {
        *("seed", "rounds", "task", "topology", "algorithm", "compression", "coordinator")
    }
    long = from_dict({"task": {"data": "none", "init": [0.125] * 100}}).fingerprint()["task.init"]
    assert re.fullmatch("sha256:[0-9a-f]{16}", long)


def test_differing_keys() -> None:
    ours = from_dict({"topology": {"family": "networkx:cycle_graph", "args": {"n": 5}}}).fingerprint()
    theirs = from_dict({"task": {"lr": 0.1}}).fingerprint()
    assert differing_keys(ours, theirs) == [
        "task.lr: 0.05 here, 0.1 there",
        'topology.family: "networkx:cycle_graph" here, "ring" there',
        "topology.args.n: 5 here, not set there",
    ]
    assert differing_keys({}, {"a\nb": "\x1b" + "x" * 999})[0].isprintable()


# Round trips.

finite = st.floats(allow_nan=False, allow_infinity=False)
not_negative = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
names = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
plain = st.recursive(
    st.booleans() | finite | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


def built(key: str) -> st.SearchStrategy[str]:
    return st.sampled_from(CHOICES[key].built)


SCHEDULES: list[dict[str, Any]] = [
    {"family": "one_peer_exponential"},
    {"family": "base_k", "k": 3},
    {"family": "random_matching", "pairs": 0, "among": "star"},
    {"family": "epidemic", "fanout": 2, "variant": "local"},
    {"family": "mobile", "threshold": 0.5, "speed": 0.1, "margin": 0.0},
    {"family": "own.streets:one_way", "args": {"lanes": [1, 2]}},
    {"metric": "model", "threshold": 0.25, "look_again": 4},
]
ALGORITHMS: list[dict[str, Any]] = [
    {},
    {"order": "cta", "share": ["a*", "b"]},
    {"name": "push_sum"},
    {"name": "gradient_tracking", "order": "diging"},
    {"name": "diloco", "among": "neighbours", "outer_lr": 1.0, "outer_momentum": 0.0, "nesterov": False},
    {"name": "own.rules:make"},
]
RINGS: list[dict[str, Any]] = [
    {"coordinator": {"mode": "ring"}},
    {"coordinator": {"mode": "ring", "weighting": "equal", "engine": "gloo"}, "algorithm": {"buffers": "average"}},
]
FAULTS: list[dict[str, Any]] = [
    {"round": 3, "kill": "a"},
    {"at_s": 2.5, "stop": ["a", "b"], "for_s": 1},
    {"at_s": 1, "partition": [["a"], ["b", "c"]]},
    {"round": 4, "heal": True},
]


@st.composite
def experiments(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 4))
    vector = st.lists(finite, min_size=2, max_size=2)
    place = st.lists(st.floats(0, 1), min_size=2, max_size=2)
    row = st.tuples(vector, finite)
    inline = {
        "model": "linear",
        "data": "inline",
        "shards": draw(st.lists(st.lists(row, min_size=1), min_size=n, max_size=n)),
    }
    none = {"data": "none", "init": draw(vector | st.lists(vector, min_size=n, max_size=n))}
    family = draw(st.sampled_from(["ring", "geometric", "networkx:some_graph"]))
    args = {"args": draw(st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), plain))}
    peers = draw(st.lists(names, min_size=n, max_size=n, unique=True))
    drawn_graph = {
        "family": family,
        "threshold": draw(not_negative | st.just(float("inf"))),
        "weights": draw(built("topology.weights")),
        **(args if family.startswith("networkx") else {}),
    }
    return {
        "name": draw(names),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "rounds": draw(st.integers(1, 2**63 - 1)),
        "task": {
            **draw(st.sampled_from([inline, none, {"model": draw(built("task.model"))}])),
            "lr": draw(not_negative),
            "lr_schedule": draw(built("task.lr_schedule")),
            "dtype": draw(built("task.dtype")),
        },
        "topology": {
            **draw(st.sampled_from([drawn_graph, *SCHEDULES])),
            "allow_disconnected": draw(st.booleans()),
            **draw(st.sampled_from([{}, {"peers": n}])),
        },
        **draw(st.sampled_from([{"algorithm": a} for a in ALGORITHMS] + RINGS)),
        "faults": {
            "schedule": draw(st.lists(st.sampled_from(FAULTS), max_size=3)),
            "per_minute": draw(st.floats(0, 600)),
        },
        "record": {"params": draw(built("record.params"))},
        **draw(st.sampled_from([{}, {"peers": [{"name": name, "position": draw(place)} for name in peers]}])),
    }


@settings(max_examples=100, deadline=None)
@given(experiments())
def test_to_toml_loads_back_to_an_equal_experiment(data: dict[str, Any]) -> None:
    experiment = from_dict(data)
    again = from_dict(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    assert again.digest() == experiment.digest()
    assert again.to_toml() == experiment.to_toml()


# The starter file.


def built_keys() -> set[str]:
    """The keys that an experiment can use now."""
    keys = set(contract()) | {f"peers.{name}" for name in PeerEntry.model_fields}
    keys -= {key for key in keys for only in ONLY_DEFAULT if key == only or key.startswith(only + ".")}
    for key, (other, users) in USED_BY.items():
        choice = CHOICES[other]
        if not {*choice.built, *choice.forms} & set(users):
            keys.discard(key)
    return keys - {"peers"}


def test_the_starter_is_the_default_for_eight_peers(write: Any) -> None:
    assert load(write(starter_text())) == from_dict({"topology": {"peers": 8}})


def test_the_starter_explains_every_key_that_is_built() -> None:
    found, table = set(), ""
    for line in starter_text().splitlines():
        header = re.match(r"(?:# )?\[+(\w+)\]+", line)
        table = header[1] + "." if header else table
        key = re.match(r"(?:# )?(\w+) = ", line)
        if key:
            found.add(table + key[1])
    assert found == built_keys()


# Keys that several others use: with which they are tried.
BESIDE: dict[str, dict[str, object]] = {
    "algorithm.max_staleness": {"algorithm.mode": "async"},
    "algorithm.alpha": {"coordinator.mode": "sync"},
    **{
        f"coordinator.{name}": {"coordinator.mode": "sync", "algorithm.name": None}
        for name in ("server_lr", "server_momentum", "beta1", "beta2", "server_tau", "variant")
    },
}
EXAMPLE_OF = {"networkx": "networkx:path_graph", "file": "file:graph.edges", "package.module": "own:make"}


def keys_commented_out() -> list[tuple[str, str]]:
    """(dotted key, value as written) of the keys that the starter comments out, without [[peers]]."""
    found, table = [], ""
    for line in starter_text().partition("# [[peers]]")[0].splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            table = header[1]
        if key := re.match(r"# (\w+) = (.*?)(  +#.*)?$", line):
            found.append((f"{table}.{key[1]}", key[2]))
    return found


@pytest.mark.parametrize(("key", "value"), keys_commented_out())
def test_a_key_that_the_starter_comments_out_loads_beside_what_it_belongs_to(write: Any, key: str, value: str) -> None:
    other, (user, *_) = USED_BY.get(key, ("seed", (0,)))
    chosen = user if isinstance(user, str | int) else EXAMPLE_OF[user.text.strip('"').partition(":")[0]]
    left_out = dict.fromkeys(("topology.peers", *(["topology.metric"] if chosen == "mobile" else [])))
    beside = {"task.model": "linear", **left_out, other: chosen, **BESIDE.get(key, {})}
    experiment = load(write(starter_text()), {**beside, key: tomllib.loads(f"value = {value}")["value"]})
    assert leaves(experiment)[key] is not None


def test_what_the_starter_comments_out_loads_too(write: Any) -> None:
    lines = [
        re.sub(r"^# (?=\[\[|(name|address|listen|advertise|position|device) = )", "", line)
        for line in starter_text().splitlines()
    ]
    experiment = load(write("\n".join(lines)), {"topology.peers": None})
    assert [peer.name for peer in experiment.peers] == ["lab-3"]


# Peers that do not wait for each other.


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[algorithm]\nname = "gradient_tracking"\nmode = "async"',
            'algorithm.mode: "async" does not go with gradient_tracking, which needs rounds in step; it goes with '
            "dpsgd, adpsgd and an algorithm of your own",
        ),
        ('[algorithm]\nname = "push_sum"\nmode = "async"', "algorithm.mode: "),
        ('[algorithm]\nname = "diloco"\nmode = "async"', "algorithm.mode: "),
        ('[algorithm]\nname = "d2"\nmode = "async"', "algorithm.mode: "),
        ('[algorithm]\nname = "local"\nmode = "async"', '"async" does not go with local, in which nobody is heard'),
        ('[algorithm]\nname = "exact"\nmode = "async"', "the mean of all in the same round"),
        (
            '[topology]\nfamily = "base_k"\n[algorithm]\nmode = "async"',
            "topology.family: async has no common rounds, and base_k says who hears whom in which round; choose one",
        ),
        (
            '[topology]\nfamily = "mobile"\nthreshold = 1\n[algorithm]\nname = "adpsgd"',
            "topology.family: adpsgd has no",
        ),
        (
            '[topology]\nmetric = "rtt"\nthreshold = 20\n[algorithm]\nname = "adpsgd"',
            'algorithm.name: adpsgd does not go with topology.metric = "rtt"',
        ),
        (
            '[topology]\nmetric = "model"\nthreshold = 2\n[algorithm]\nmode = "async"',
            'algorithm.mode: async does not go with topology.metric = "model"',
        ),
        (
            '[algorithm]\nmode = "async"\n[transport]\nround_deadline_s = 2',
            'transport.round_deadline_s: has no effect under algorithm.mode = "async", in which nobody is waited for',
        ),
        ("[algorithm]\nmax_staleness = 3", "algorithm.max_staleness: belongs to mode"),
        ('[algorithm]\nname = "adpsgd"\nmax_staleness = 3', "adpsgd mixes what it has just been told"),
        ('[algorithm]\nname = "adpsgd"\norder = "cta"', "algorithm.order: "),
    ],
)
def test_what_goes_with_rounds_in_step_alone_is_refused_where_nobody_waits(write: Any, text: str, line: str) -> None:
    refused = refusal(write(text))
    assert line in str(refused)
    assert "more)" not in str(refused)


# What goes wrong.


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ('{round = 2, kil = "a"}', "faults.schedule.1.kil: unknown key; did you mean kill?"),
        ('{round = 2, explode = "a"}', "faults.schedule.1.explode: unknown key; an entry knows round, at_s, kill, "),
        ("{round = 2}", "faults.schedule.1: {round = 2} does nothing; it needs an action"),
        ('{round = 2, kill = "a", stop = "b"}', "faults.schedule.1: has kill and stop; an entry has one action"),
        ('{kill = "a"}', "faults.schedule.1: has no time; it needs one of them"),
        ('{kill = "a", round = 2, at_s = 1}', "faults.schedule.1: has both round and at_s"),
        ('{kill = "a", round = 2.0}', "faults.schedule.1.round: 2.0 is not a whole number of 0 or more"),
        ('{kill = "a", round = -1}', "faults.schedule.1.round: -1 is not a whole number"),
        ('{kill = "a", round = true}', "faults.schedule.1.round: true is not a whole number"),
        ('{kill = "a", at_s = -0.5}', "faults.schedule.1.at_s: -0.5 is not a number of seconds of 0 or more"),
        ('{kill = "a", at_s = nan}', "faults.schedule.1.at_s: nan is not"),
        ('{kill = "a", at_s = "soon"}', 'faults.schedule.1.at_s: "soon" is not'),
        ('{at_s = 1, stop = "a", for_s = 0}', "faults.schedule.1.for_s: 0 must be above 0"),
        ('{at_s = 1, leave = "a", for_s = 1}', "faults.schedule.1.for_s: belongs to kill, stop, cut or partition, and"),
        ("{at_s = 1, kill = 3}", "faults.schedule.1.kill: 3 is not a peer's name, or a list of them"),
        ("{at_s = 1, kill = []}", "faults.schedule.1.kill: [] is not a peer's name"),
        ('{at_s = 1, kill = ["a", "a"]}', 'faults.schedule.1.kill: names "a" twice'),
        ('{at_s = 1, cut = "a"}', 'faults.schedule.1.cut: "a" is not a list of two names'),
        ('{at_s = 1, cut = ["a", "b", "c"]}', "is not a list of two names"),
        ('{at_s = 1, cut = ["a", "a"]}', 'faults.schedule.1.cut: names "a" twice'),
        ("{at_s = 1, cut = true}", "faults.schedule.1.cut: true is not a list of two names"),
        (
            "{at_s = 1, heal = false}",
            "faults.schedule.1.heal: false is not a list of two names, or true for everything",
        ),
        ('{at_s = 1, partition = ["a", "b"]}', "faults.schedule.1.partition: "),
        ('{at_s = 1, partition = [["a"]]}', "is not a list of two or more lists of names"),
        ('{at_s = 1, partition = [["a"], []]}', "is not a list of two or more lists of names"),
        ('{at_s = 1, partition = [["a", "b"], ["a"]]}', 'faults.schedule.1.partition: names "a" twice'),
    ],
)
def test_an_entry_of_the_schedule_of_faults_that_is_wrong_is_named(write: Any, entry: str, line: str) -> None:
    path = write(f'[faults]\nschedule = [{{at_s = 1, kill = "a"}}, {entry}]')
    assert line in str(refusal(path))
