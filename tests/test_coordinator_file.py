"""[coordinator]: what goes with which mode, what is refused and in which words, and who is a peer and who is not."""

import itertools
import tomllib
from typing import Any

import pytest

import topology
from peer.errors import ConfigError
from peer.experiment import Experiment, coordinator_problem, from_dict, quorum_problem
from peer.experiment.choices import CHOICES, COORDINATING, DEFAULT_PEERS, USED_BY
from peer.experiment.schema import Coordinator

MODES = CHOICES["coordinator.mode"].built
LINEAR = '[task]\nmodel = "linear"\ndata = "inline"\nshards = [[[[1.0], 3.0]], [[[2.0], 5.0]]]\n'
PURE = '[task]\ndata = "none"\ninit = [[1.0], [2.0]]\n'


def read(text: str) -> Experiment:
    return from_dict(tomllib.loads(text))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    line = str(caught.value)
    assert line.isprintable()
    return line


def mode(name: str, *lines: str) -> str:
    return "\n".join([f'[coordinator]\nmode = "{name}"', *lines, ""])


def easgd(name: str, *lines: str) -> str:
    return '[algorithm]\nname = "easgd"\n' + mode(name, *lines)


def peers(*names: str) -> str:
    return "".join(f'[[peers]]\nname = "{name}"\n' for name in names)


# ---- What goes together

ALLOWED = {
    "sync": mode("sync"),
    "sync, all of it": mode("sync", 'weighting = "equal"', "fraction = 0.5", "server_lr = 0.1"),
    "sync, on three": mode("sync", "servers = 3"),
    "sync, models": "[task]\nlocal_steps = 5\nmomentum = 0.9\nproximal_mu = 0.1\n"
    + mode("sync", 'aggregate = "models"'),
    "async": mode("async", 'staleness = "inverse"', "max_staleness = 4", 'aggregate = "models"'),
    "async, in turn": mode("async", 'arrival = "round_robin"', "delay = 3", 'staleness = "inverse_sqrt"'),
    "async, no bound and no delay": mode("async", "max_staleness = 0", "delay = 0", "servers = 2"),
    "quorum": mode("quorum", "quorum = 0.9", "timer_s = 2", 'weighting = "equal"'),
    "quorum, a count": mode("quorum", "quorum = 8", 'late = "stale"', 'staleness = "inverse"'),
    "quorum, all": mode("quorum", "quorum = 1.0"),
    "buffered": mode("buffered", "buffer = 2", 'staleness = "inverse_sqrt"', "servers = 2"),
    "ring": mode("ring", 'weighting = "equal"'),
    "ring, gloo": mode("ring", 'engine = "gloo"'),
    "ring, a deadline": mode("ring") + "[transport]\nround_deadline_s = 2\n",
    "ring of starts": PURE + mode("ring"),
    "ring, many local steps": "[task]\nlocal_steps = 4\nmomentum = 0.5\nproximal_mu = 0.1\n" + mode("ring"),
    "easgd": easgd("sync"),
    "easgd, its own rate": '[algorithm]\nname = "easgd"\nalpha = 0.3\n' + mode("async", 'arrival = "round_robin"'),
    "easgd of starts": PURE + easgd("sync", "servers = 2"),
    "easgd, many local steps": "[task]\nlocal_steps = 4\nmomentum = 0.5\n" + easgd("async"),
    "momentum": mode("sync", 'server_optimizer = "momentum"', "server_momentum = 0.0"),
    "adam": mode("quorum", 'server_optimizer = "adam"', "beta1 = 0.8", "beta2 = 0.9", "server_tau = 0.1"),
    "yogi": mode("async", 'server_optimizer = "yogi"', "beta1 = 0", "beta2 = 0", 'variant = "flower"'),
    "adagrad": mode("buffered", 'server_optimizer = "adagrad"', "beta1 = 0.5", 'variant = "zero_start"'),
    "fp16": '[compression]\nname = "fp16"\n' + mode("buffered"),
    "bf16 and easgd": '[compression]\nname = "bf16"\n' + easgd("async"),
    "checkpoints": mode("sync") + "[checkpoint]\nevery_rounds = 5\nkeep = 1\n",
    "a peer that trains": mode("sync", 'name = "peer-7"'),
    "a topology that is not used": mode("async") + '[topology]\nfamily = "base_k"\n',
    "one start": LINEAR + "init = [1.5]\n" + mode("sync"),
    "buffers that stay": '[algorithm]\nbuffers = "keep"\n' + mode("sync"),
    "keys of gossip that are as they are": '[algorithm]\norder = "atc"\nshare = ["*"]\nmode = "sync"\n' + mode("sync"),
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_it_is_allowed_and_its_toml_loads_back(text: str) -> None:
    experiment = read(text)
    again = read(experiment.to_toml())
    assert again == experiment
    assert again.digest() == experiment.digest()
    assert again.to_toml() == experiment.to_toml()


# A key of [coordinator] -> a value that is not its default, and what has to stand beside it in a mode that takes it.
CHANGED: dict[str, tuple[Any, dict[str, Any]]] = {
    "name": ("peer-1", {}),
    "aggregate": ("models", {}),
    "weighting": ("equal", {}),
    "fraction": (0.5, {}),
    "server_optimizer": ("adam", {}),
    "server_lr": (0.5, {}),
    "server_momentum": (0.5, {"server_optimizer": "momentum"}),
    "beta1": (0.5, {"server_optimizer": "adagrad"}),
    "beta2": (0.5, {"server_optimizer": "yogi"}),
    "server_tau": (0.5, {"server_optimizer": "adagrad"}),
    "variant": ("flower", {"server_optimizer": "yogi"}),
    "staleness": ("inverse", {}),
    "max_staleness": (3, {}),
    "quorum": (4, {}),
    "timer_s": (1.0, {}),
    "late": ("stale", {}),
    "buffer": (3, {}),
    "servers": (2, {}),
    "arrival": ("round_robin", {}),
    "delay": (2, {"arrival": "round_robin"}),
    "engine": ("gloo", {}),
}
SERVER = ("sync", "async", "quorum", "buffered")
# The same keys -> the modes that take it, and then those that take it with easgd.
TAKEN_BY: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "name": (SERVER, ("sync", "async")),
    "aggregate": (SERVER, ()),
    "weighting": (("sync", "quorum", "ring"), ()),
    "fraction": (("sync",), ()),
    **dict.fromkeys(("server_optimizer", "server_lr", "server_momentum"), (SERVER, ())),
    **dict.fromkeys(("beta1", "beta2", "server_tau", "variant"), (SERVER, ())),
    "staleness": (("async", "quorum", "buffered"), ()),
    "max_staleness": (("async",), ()),
    **dict.fromkeys(("quorum", "timer_s", "late"), (("quorum",), ())),
    "buffer": (("buffered",), ()),
    "servers": (("sync", "async", "buffered"), ("sync", "async")),
    "arrival": (("async",), ("async",)),
    "delay": (("async",), ()),
    "engine": (("ring",), ()),
}


def test_the_table_has_every_key() -> None:
    keys = [key for key in Coordinator.model_fields if key != "mode"]
    assert list(CHANGED) == keys
    assert sorted(TAKEN_BY) == sorted(keys)
    assert SERVER == COORDINATING
    assert {key.removeprefix("coordinator.") for key in USED_BY if key.startswith("coordinator.")} == set(keys)


@pytest.mark.parametrize(("key", "chosen", "elastic"), list(itertools.product(CHANGED, MODES, (False, True))))
def test_a_key_is_taken_by_the_modes_that_use_it_and_refused_by_name_in_all_others(
    key: str, chosen: str, elastic: bool
) -> None:
    value, beside = CHANGED[key]
    beside = {**beside, **({"late": "stale"} if key == "staleness" and chosen == "quorum" else {})}
    algorithm = {"algorithm": {"name": "easgd"}} if elastic else {}
    tables = {"coordinator": {key: value, "mode": chosen, **beside}, **algorithm}
    if chosen in TAKEN_BY[key][elastic]:
        experiment = from_dict(tables)
        assert getattr(experiment.coordinator, key) == value
        assert read(experiment.to_toml()) == experiment
        return
    with pytest.raises(ConfigError) as caught:
        from_dict(tables)
    blamed = [f"coordinator.{name}" for name in (key, *beside)]
    if elastic and chosen not in ("sync", "async"):
        blamed.append("algorithm.name")
    assert caught.value.key in blamed, caught.value


# ---- What is refused, and in which words

ROBIN = 'arrival = "round_robin"'
REFUSED = [
    # Where there is no such thing.
    (mode("none", "servers = 2"), "coordinator.servers: has no effect without coordinator.mode"),
    (mode("none", "beta1 = 0.5"), "coordinator.beta1: has no effect without coordinator.mode"),
    (
        '[algorithm]\nname = "easgd"\n',
        "algorithm.name: easgd ties peers to a centre that a coordinator holds; write coordinator.mode = "
        '"sync" or "async"',
    ),
    # One mode's key in another.
    (mode("ring", "fraction = 0.5"), "coordinator.fraction: belongs to sync, and coordinator.mode is ring"),
    (mode("quorum", "fraction = 0.5"), "coordinator.fraction: belongs to sync, and coordinator.mode is quorum"),
    (mode("sync", "fraction = 1.5"), "coordinator.fraction: 1.5 must be 1 or below"),
    (mode("sync", "fraction = 0.0"), "coordinator.fraction: 0.0 must be above 0"),
    (
        mode("buffered", 'weighting = "equal"'),
        "coordinator.weighting: belongs to sync, quorum or ring, and coordinator.mode is buffered",
    ),
    (
        mode("ring", 'name = "peer-1"'),
        "coordinator.name: belongs to sync, async, quorum or buffered, and coordinator.mode is ring",
    ),
    (mode("sync", 'engine = "gloo"'), "coordinator.engine: belongs to ring, and coordinator.mode is sync"),
    (
        mode("sync", "beta2 = 0.5"),
        "coordinator.beta2: belongs to adam or yogi, and coordinator.server_optimizer is sgd",
    ),
    (
        mode("sync", 'server_optimizer = "adagrad"', "beta2 = 0.5"),
        "coordinator.beta2: belongs to adam or yogi, and coordinator.server_optimizer is adagrad",
    ),
    (
        mode("sync", 'server_optimizer = "adam"', "server_momentum = 0.5"),
        "coordinator.server_momentum: belongs to momentum, and coordinator.server_optimizer is adam",
    ),
    (mode("sync", 'server_optimizer = "momentum"', "server_momentum = 1.0"), "server_momentum: 1.0 must be below 1"),
    (mode("sync", 'server_optimizer = "adam"', "server_tau = 0"), "coordinator.server_tau: 0 must be above 0"),
    (mode("sync", 'server_optimizer = "adam"', 'variant = "tf"'), 'variant: "tf" is not known; choose paper, zero_'),
    (mode("sync", "servers = 0"), "coordinator.servers: 0 must be 1 or above"),
    (mode("sync", "servers = 1001"), "coordinator.servers: 1001 must be 1000 or below"),
    # The quorum.
    (mode("quorum", "quorum = 1.1"), "coordinator.quorum: 1.1 must be a fraction up to 1.0, or a count of 2 and more"),
    (mode("quorum", "quorum = 1"), "coordinator.quorum: 1 must be a fraction up to 1.0, or a count of 2 and more"),
    (
        mode("quorum", "quorum = 9"),
        "coordinator.quorum: a count of 9 is above the number of peers, 8, and no round would close on it",
    ),
    (LINEAR + mode("quorum", "quorum = 3"), "coordinator.quorum: a count of 3 is above the number of peers, 2, and"),
    # Staleness.
    (
        mode("quorum", 'staleness = "inverse"'),
        'coordinator.staleness: "inverse" belongs to coordinator.late = "stale"; what comes late is dropped here',
    ),
    (mode("async", "max_staleness = 2", "servers = 2"), "coordinator.max_staleness: goes with one server, whose"),
    (mode("async", "max_staleness = 2", ROBIN), "coordinator.max_staleness: bounds what the clock brings about, and"),
    (
        mode("async", "delay = 2"),
        'coordinator.delay: 2 needs an order that is fixed; write coordinator.arrival = "round_robin"',
    ),
    # Several servers.
    (mode("sync", "fraction = 0.5", "servers = 2"), "coordinator.fraction: 0.5 goes with one server: after a loss,"),
    (mode("async", ROBIN, "servers = 2"), "coordinator.arrival: goes with one server: after a loss, several could"),
    # A gossip algorithm beside a coordinator.
    (
        '[algorithm]\nname = "dpsgd"\n' + mode("sync"),
        'algorithm.name: dpsgd is a gossip algorithm, whose place coordinator.mode = "sync" takes; leave it out',
    ),
    ('[algorithm]\nname = "gradient_tracking"\n[task]\nlocal_steps = 3\n' + mode("ring"), "algorithm.name: gradient_t"),
    ('[algorithm]\nname = "adpsgd"\n' + mode("async"), "algorithm.name: adpsgd is a gossip algorithm"),
    ('[algorithm]\nname = "my.module:rule"\n' + mode("sync"), "algorithm.name: my.module:rule is a gossip algorithm"),
    (easgd("quorum"), "algorithm.name: easgd goes with coordinator.mode sync or async, and it is quorum"),
    (easgd("ring"), "algorithm.name: easgd goes with coordinator.mode sync or async, and it is ring"),
    (
        '[algorithm]\nmode = "async"\n' + mode("sync"),
        'algorithm.mode: has no effect beside coordinator.mode = "sync", which takes the place of gossip; leave '
        'it out. A server that nobody waits at is coordinator.mode = "async"',
    ),
    ('[algorithm]\norder = "cta"\n' + mode("ring"), "algorithm.order: has no effect beside coordinator.mode"),
    ('[algorithm]\nshare = ["a.*"]\n' + mode("sync"), "algorithm.share: has no effect beside coordinator.mode"),
    ("[algorithm]\nouter_lr = 0.5\n" + mode("sync"), "algorithm.outer_lr: has no effect beside coordinator.mode"),
    ("[algorithm]\nf = 1\n" + mode("sync"), "algorithm.f: has no effect beside coordinator.mode"),
    (
        "[algorithm]\nmax_staleness = 2\n" + mode("async"),
        "leave it out. The bound of a server is coordinator.max_staleness",
    ),
    (
        "[algorithm]\nalpha = 0.2\n" + mode("sync"),
        'algorithm.alpha: belongs to easgd; write algorithm.name = "easgd", or leave it out',
    ),
    ("[algorithm]\nalpha = 0.2\n", "algorithm.alpha: belongs to easgd, and algorithm.name is dpsgd"),
    # EASGD.
    (
        easgd("sync", 'aggregate = "models"'),
        "coordinator.aggregate: has no effect under easgd, whose centre goes a part alpha of the way to each peer; "
        "leave it out",
    ),
    (easgd("sync", "fraction = 0.5"), "coordinator.fraction: has no effect under easgd"),
    (easgd("async", "max_staleness = 3"), "coordinator.max_staleness: has no effect under easgd"),
    (easgd("async", ROBIN, "delay = 3"), "coordinator.delay: has no effect under easgd"),
    (easgd("async", 'server_optimizer = "adam"', "beta1 = 0.5"), "coordinator.server_optimizer: has no effect under"),
    # What is trained.
    (
        "[task]\nlocal_steps = 2\n" + mode("sync"),
        "task.local_steps: 2 does not go with gradients, of which a coordinator takes that of one step; write "
        'coordinator.aggregate = "models"',
    ),
    (
        "[task]\nmomentum = 0.5\n" + mode("async"),
        "task.momentum: 0.5 has no effect on the gradient of one step, which is what the coordinator is given; write "
        'coordinator.server_optimizer = "momentum" or coordinator.aggregate = "models"',
    ),
    (
        "[task]\nproximal_mu = 0.5\n" + mode("quorum"),
        "task.proximal_mu: 0.5 has no effect in one step, which begins where the coordinator is; write "
        'coordinator.aggregate = "models" with task.local_steps above 1, or leave it out',
    ),
    (
        LINEAR + "init = [[1.0], [2.0]]\n" + mode("buffered"),
        "task.init: gives each peer a start of its own, and all begin from the coordinator's; write one, such as [1.0",
    ),
    (
        PURE + mode("sync"),
        'task.data: none gives nothing to learn, so under coordinator.mode = "sync" nothing would ever change; "ring" '
        "and easgd take it",
    ),
    # Other tables.
    (
        '[compression]\nname = "fp16"\n',
        'compression.name: "fp16" is not built yet between peers that gossip; it goes with coordinator.mode '
        "sync, async, quorum or buffered",
    ),
    ('[compression]\nname = "bf16"\n' + mode("ring"), 'compression.name: "bf16" is not built yet in a ring; it goes'),
    ("[checkpoint]\nkeep = 1\n", "checkpoint.keep: 1 is not built yet between peers that gossip; it goes with"),
    ("[checkpoint]\nevery_rounds = 1\n" + mode("ring"), "checkpoint.every_rounds: 1 is not built yet in a ring; it"),
    (mode("sync") + "[checkpoint]\nkeep = 0\n", "checkpoint.keep: 0 must be 1 or above"),
    (
        "[transport]\nround_deadline_s = 2\n" + mode("sync"),
        'transport.round_deadline_s: has no effect under coordinator.mode = "sync"; what closes a round early is '
        'coordinator.timer_s with coordinator.mode = "quorum"',
    ),
    ("[transport]\nround_deadline_s = 2\n" + easgd("sync"), "transport.round_deadline_s: has no effect under"),
    ("[network]\nnode_mbps = -1\n", "network.node_mbps: -1 must be 0 or above"),
    # Names.
    (
        mode("sync", 'name = "hub"'),
        'coordinator.name: "hub" is a coordinator that is not in the file: it is no peer\'s name, and not in [[peers]]',
    ),
    (mode("sync", 'name = "peer-8"'), 'coordinator.name: "peer-8" is a coordinator that is not in the file'),
    (mode("sync", 'name = "peer-01"'), 'coordinator.name: "peer-01" is a coordinator that is not in the file'),
    (mode("sync", 'name = "peer-0"') + peers("a", "b"), 'coordinator.name: "peer-0" is a coordinator that is not in'),
    (
        mode("sync", 'name = "hub"', "servers = 2") + peers("a", "hub-0"),
        'coordinator.name: "hub" is a coordinator that is not in the file: of its 2 servers [[peers]] lacks hub-1; add',
    ),
    (
        mode("sync", 'name = "peer-3"', "servers = 2"),
        'coordinator.name: "peer-3" is a peer\'s name, and one process holds one of 2 servers; leave the name out',
    ),
    (mode("sync", 'name = "a"', "servers = 2") + peers("a", "b"), 'coordinator.name: "a" is a peer\'s name, and one'),
    (mode("sync", 'name = "peer"', "servers = 2"), 'coordinator.name: "peer-0" is the name of a peer too, and a'),
    # Entries of coordinators.
    (
        mode("sync") + peers("a", "coordinator") + "position = [0, 1]\n",
        "peers.1.position: has no effect: this is a coordinator's entry, which neither trains nor stands in the",
    ),
    (
        '[task]\npartition = "own"\n' + mode("sync") + peers("coordinator") + 'data = "npz:a"\n' + peers("a")
        + 'data = "npz:a"\n',
        "peers.0.data: has no effect: this is a coordinator's entry",
    ),
    ('[task]\npartition = "own"\n' + mode("sync") + peers("coordinator"), "task.partition: own needs [[peers]]"),
    (mode("sync") + "[topology]\npeers = 4\n" + peers("a", "coordinator"), "topology.peers = 4, but [[peers]] has 1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), REFUSED)
def test_refused(text: str, line: str) -> None:
    found = refusal(text)
    assert line in found
    assert not found.endswith("more)"), "one mistake is counted as one"


def test_a_file_that_was_written_without_a_coordinator_names_its_algorithm_and_says_what_to_do() -> None:
    tables = tomllib.loads(Experiment().to_toml())
    tables["coordinator"]["mode"] = "sync"
    with pytest.raises(ConfigError, match=r"algorithm\.name: dpsgd is a gossip algorithm, .* leave it out"):
        from_dict(tables)
    del tables["algorithm"]["name"]
    assert from_dict(tables) == read(mode("sync"))


# ---- What an experiment says of itself


@pytest.mark.parametrize("chosen", MODES)
def test_what_kind_of_run_it_is(chosen: str) -> None:
    experiment = read(mode(chosen))
    assert experiment.coordinates == (chosen in ("sync", "async", "quorum", "buffered"))
    assert experiment.is_ring == (chosen == "ring")
    assert not experiment.is_asynchronous, "a coordinator's mode says nothing of gossip"
    assert not experiment.is_elastic


def test_easgd_is_elastic_and_no_gossip() -> None:
    experiment = read(easgd("async"))
    assert experiment.is_elastic
    assert experiment.coordinates
    assert not experiment.is_asynchronous
    assert experiment.algorithm.alpha is None


def test_the_digest_covers_the_coordinator() -> None:
    digests = {read(text).digest() for text in (mode("none"), *map(mode, MODES[1:]), mode("sync", "servers = 2"))}
    assert len(digests) == len(MODES) + 1


def test_the_default_number_of_peers_is_that_of_the_topology() -> None:
    assert DEFAULT_PEERS == topology.DEFAULT_PEERS


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 8),
        ("[topology]\npeers = 5", 5),
        ('[topology]\nfamily = "grid"\nshape = [2, 3]', 6),
        (LINEAR, 2),
        (peers("a", "b", "c"), 3),
        (mode("sync") + peers("a", "b", "coordinator"), 2),
        (mode("sync") + peers("coordinator"), 8),
        ('[task]\npartition = "sizes"\nsizes = [5, 6, 7]', 3),
        ('[topology]\nfamily = "file:graph.edges"', None),
        ('[topology]\nfamily = "networkx:petersen_graph"', None),
        ('[topology]\nfamily = "own:make"', None),
        ('[topology]\nfamily = "random_matching"\namong = "file:graph.edges"', None),
        ('[topology]\nfamily = "random_matching"\namong = "star"', 8),
        ('[topology]\nfamily = "file:graph.edges"\npeers = 3', 3),
    ],
)
def test_how_many_peers_the_file_itself_tells(text: str, count: int | None) -> None:
    assert read(text).known_peers() == count


# ---- A quorum where only the graph tells how many there are


def test_a_count_above_the_peers_of_a_graph_file_is_found_once_they_are_counted() -> None:
    experiment = read('[topology]\nfamily = "file:graph.edges"\n' + mode("quorum", "quorum = 6"))
    assert quorum_problem(experiment, 6) == ""
    assert quorum_problem(experiment, 5) == (
        "a count of 6 is above the number of peers, 5, and no round would close on it"
    )


def test_a_fraction_is_never_above_the_peers_and_other_modes_have_no_quorum() -> None:
    assert quorum_problem(read(mode("quorum", "quorum = 1.0")), 1) == ""
    assert quorum_problem(Experiment(), 1) == ""


# ---- Who is a peer, and who is not

FOUR = "[topology]\npeers = 4\n"


@pytest.mark.parametrize(
    ("text", "coordinators", "host", "entries"),
    [
        (peers("a", "coordinator"), [], None, ["a", "coordinator"]),
        (mode("ring") + peers("a", "coordinator"), [], None, ["a", "coordinator"]),
        (mode("sync"), ["coordinator"], None, []),
        (mode("sync") + peers("a", "b"), ["coordinator"], None, ["a", "b"]),
        (mode("sync") + peers("coordinator", "a", "b"), ["coordinator"], None, ["a", "b"]),
        (mode("sync") + peers("coordinator"), ["coordinator"], None, []),
        (mode("async", 'name = "hub"') + peers("a", "hub", "b"), ["hub"], None, ["a", "b"]),
        (mode("async", "servers = 2"), ["coordinator-0", "coordinator-1"], None, []),
        (mode("sync", "servers = 2") + peers("a", "coordinator-1"), ["coordinator-0", "coordinator-1"], None, ["a"]),
        (mode("sync", 'name = "hub"', "servers = 2") + peers("hub-1", "a", "hub-0"), ["hub-0", "hub-1"], None, ["a"]),
        (mode("sync", 'name = "peer-3"'), [], "peer-3", []),
        (mode("sync", 'name = "b"') + "[topology]\npeers = 3\n" + peers("a", "b", "c"), [], "b", ["a", "b", "c"]),
        (mode("sync", 'name = "b"') + "[topology]\npeers = 2\n" + peers("a", "b", "c"), ["b"], None, ["a", "c"]),
        (mode("sync", 'name = "b"') + LINEAR + peers("a", "b"), [], "b", ["a", "b"]),
        (mode("sync", 'name = "b"') + LINEAR + peers("a", "b", "c"), ["b"], None, ["a", "c"]),
        (
            mode("sync", 'name = "b"') + '[topology]\nfamily = "grid"\nshape = [1, 2]\n' + peers("a", "b"),
            [],
            "b",
            ["a", "b"],
        ),
        (easgd("sync", 'name = "b"') + PURE + peers("a", "b"), [], "b", ["a", "b"]),
        (
            mode("sync", 'name = "b"') + '[task]\npartition = "sizes"\nsizes = [5, 6]\n' + peers("a", "b"),
            [],
            "b",
            ["a", "b"],
        ),
    ],
)
def test_who_is_a_coordinator_and_who_is_a_peer(
    text: str, coordinators: list[str], host: str | None, entries: list[str]
) -> None:
    experiment = read(text)
    assert list(experiment.coordinator_entries()) == coordinators
    assert experiment.coordinator_host() == host
    assert [entry.name for entry in experiment.peer_entries()] == entries
    assert read(experiment.to_toml()) == experiment


def test_a_coordinators_entry_needs_neither_data_nor_a_place_and_does_not_count() -> None:
    machines = peers("coordinator") + "".join(
        f'[[peers]]\nname = "{name}"\ndata = "npz:{name}.npz"\nposition = [{x}, 0]\n' for x, name in enumerate("ab")
    )
    experiment = read('[task]\npartition = "own"\n' + mode("sync") + machines)
    assert experiment.stated_counts() == {"peers": 2}
    lacking = machines + peers("c") + "position = [3, 0]\n"
    found = refusal('[task]\npartition = "own"\n' + mode("sync") + lacking)
    assert found.startswith("peers.3.data: is missing"), "the place in the file, coordinators counted in"


def test_an_empty_shard_is_that_of_the_peer_and_not_of_the_coordinator_before_it() -> None:
    text = LINEAR.replace("[[[2.0], 5.0]]", "[]") + mode("sync") + peers("coordinator", "a", "b")
    assert refusal(text) == "task.shards: b has no rows"


# ---- Names that only the graph knows


def test_a_coordinator_that_is_a_node_of_a_graph_file_is_checked_once_the_names_are_known() -> None:
    experiment = read('[topology]\nfamily = "file:graph.graphml"\n' + mode("sync", 'name = "oslo"'))
    assert experiment.coordinator_host() == "oslo"
    assert coordinator_problem(experiment, ["bern", "oslo"]) == ""
    assert coordinator_problem(experiment, ["bern", "rome"]).startswith('"oslo" is a coordinator that is not in the')


def test_a_node_called_coordinator_is_the_peer_that_it_runs_in() -> None:
    experiment = read('[topology]\nfamily = "file:graph.graphml"\n' + mode("sync"))
    assert coordinator_problem(experiment, ["bern", "oslo"]) == ""
    assert coordinator_problem(experiment, ["bern", "coordinator"]) == ""


def test_servers_named_like_nodes_are_found_once_the_names_are_known() -> None:
    experiment = read('[topology]\nfamily = "file:graph.graphml"\n' + mode("sync", "servers = 2"))
    assert '"coordinator-1" is the name of a peer too' in coordinator_problem(experiment, ["coordinator-1", "x"])
