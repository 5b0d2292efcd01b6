"""What an algorithm demands of W, of the local step and of the metric: refused alike whichever way it would run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topology
from peer.assembly import assemble
from peer.errors import ConfigError
from peer.experiment import from_dict
from peer.explanation import explain
from peer.scripting import simulate
from tests.commands import Command, Outcome, Write

WAYS = (["explain"], ["simulate"], ["simulate", "--engine", "events"], ["up"])

# A ring of four that gives 1/5 to itself and 2/5 to either neighbour: its eigenvalues are 1, 1/5, 1/5 and -3/5.
EAGER_RING = [[0.2, 0.4, 0.0, 0.4], [0.4, 0.2, 0.4, 0.0], [0.0, 0.4, 0.2, 0.4], [0.4, 0.0, 0.4, 0.2]]
BY_ROWS = [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]  # who hears is heard, and the columns sum to 3/2, 3/4
ONE_WAY = [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]  # 2 hears 1, and not the other way round


@pytest.fixture
def folder(here: Path) -> Path:
    """Files of graphs and matrices, beside the experiment."""
    (here / "arcs.edges").write_text("0 1\n1 2\n2 0\n0 2\n")
    for name, matrix in (("eager", EAGER_RING), ("rows", BY_ROWS), ("one_way", ONE_WAY)):
        np.save(here / f"{name}.npy", matrix)
    np.save(here / "columns.npy", np.transpose(ONE_WAY))
    return here


class Case(NamedTuple):
    """Tables, where their refusal begins, and the words that it holds: the reason, and what to choose instead."""

    topology: str
    algorithm: str
    begins: str
    words: Sequence[str]
    task: str = 'data = "none"\ninit = [1.0, 2.0]'

    def text(self) -> str:
        return f"rounds = 3\n[task]\n{self.task}\n[topology]\n{self.topology}\n[algorithm]\n{self.algorithm}\n"


def named(name: str, *more: str) -> str:
    return "\n".join([f'name = "{name}"', *more])


SOFTMAX = 'model = "softmax"\n'
STAR = 'family = "star"\npeers = 4\nweights = "uniform"'
ARCS = 'family = "file:arcs.edges"\ndirected = true'
LOCAL = 'family = "epidemic"\nvariant = "local"'
NEEDS_BOTH = {
    "gradient_tracking": named("gradient_tracking"),
    "gradient_tracking, diging": named("gradient_tracking", 'order = "diging"'),
    "d2": named("d2"),
    "d2, allowed to be unstable": named("d2", "allow_unstable = true"),
    "diloco among neighbours": named("diloco", 'among = "neighbours"'),
}
BY_ROWS_ALONE = {
    "uniform weights on a star": (STAR, ['choose topology.weights = "metropolis"']),
    "a file, both ways": ('family = "file:rows.npy"', ['choose topology.weights = "metropolis"']),
    "arcs": (ARCS, ['for directed graphs there is algorithm.name = "push_sum"']),
    "arcs, uniform": (f'{ARCS}\nweights = "uniform"', ['"push_sum" with topology.weights = "push"']),
    "a file, one way": ('family = "file:one_way.npy"', ['"push_sum" with topology.weights = "push"']),
    "epidemic, local": (LOCAL, ['topology.variant = "oracle"', 'algorithm.name = "push_sum"']),
}

CASES = {
    f"{who} on {what}": Case(ground, algorithm, "topology.weights: ", ["rows and columns of W", *mend])
    for who, algorithm in NEEDS_BOTH.items()
    for what, (ground, mend) in BY_ROWS_ALONE.items()
} | {
    "push weights with dpsgd": Case('weights = "push"', "", "topology.weights: push", ['"push_sum"', "leave"]),
    **{
        f"push weights with {name}": Case(
            'weights = "push"', named(name), "topology.weights: push", ['"push_sum"', "leave"]
        )
        for name in ("local", "exact", "diloco")
    },
    "push weights with gradient_tracking": Case(
        'family = "mobile"\nthreshold = 0.4\nweights = "push"',
        named("gradient_tracking"),
        "topology.weights: push makes the columns of W sum to 1, and gradient_tracking mixes by rows",
        ['"push_sum"', "leave topology.weights out"],
    ),
    "push_sum on uniform weights": Case(
        STAR, named("push_sum"), "topology.weights: push_sum needs columns of W", ['"metropolis" or "push"']
    ),
    "push_sum on uniform arcs": Case(
        f'{ARCS}\nweights = "uniform"', named("push_sum"), "topology.weights: ", ['choose topology.weights = "push"']
    ),
    "push_sum on a file of rows": Case(
        'family = "file:one_way.npy"', named("push_sum"), "topology.weights: ", ['choose topology.weights = "push"']
    ),
    "dpsgd on a file of columns": Case(
        'family = "file:columns.npy"',
        "",
        "topology.family: the columns of W sum to 1 and its rows do not",
        ["dpsgd mixes by rows", 'choose algorithm.name = "push_sum"', "transpose W"],
    ),
    "d2 below -1/3": Case(
        'family = "file:eager.npy"',
        named("d2"),
        "topology.weights: d2 diverges",
        ["below -1/3", "here it is -0.6", '"lazy"', "algorithm.allow_unstable = true"],
    ),
    "d2 on a cube": Case(
        'family = "hypercube"',
        named("d2"),
        "topology.weights: d2 diverges",
        ["here it is -0.5", '"lazy"'],
    ),
    "d2 on a schedule": Case(
        'family = "one_peer_exponential"',
        named("d2"),
        "topology.family: d2 looks back one round",
        ["a topology that stays", '"gradient_tracking"', "allow_unstable"],
    ),
    "d2 on moving peers": Case(
        'family = "mobile"\nthreshold = 0.4', named("d2"), "topology.family: d2 looks back", ['"gradient_tracking"']
    ),
    "d2 on arcs": Case(
        'family = "exponential"', named("d2"), "topology.family: d2 needs a symmetric W", ["undirected", "allow_unst"]
    ),
    "d2 by round trips": Case(
        'metric = "rtt"\nthreshold = 5', named("d2"), "topology.weights: d2 diverges", ["measured", '"lazy"']
    ),
    "uniform weights by round trips": Case(
        'metric = "rtt"\nthreshold = 5\nweights = "uniform"',
        named("gradient_tracking"),
        "topology.weights: gradient_tracking needs rows and columns",
        ['"metropolis"'],
    ),
    **{
        f"metric model with {who}": Case(
            'metric = "model"\nthreshold = 1.0',
            algorithm,
            'topology.metric: "model" looks at the parameters that neighbours send',
            ["does not work so; it goes with dpsgd", '"diging"', "diloco among neighbours"],
        )
        for who, algorithm in {
            "gradient_tracking, atc": named("gradient_tracking"),
            "d2": named("d2"),
            "d2, allowed to be unstable": named("d2", "allow_unstable = true"),
            "push_sum": named("push_sum"),
            "diloco over all": named("diloco"),
            "local": named("local"),
            "exact": named("exact"),
        }.items()
    },
    "metric model without a threshold": Case(
        'metric = "model"', "", "topology.threshold: ", ['metric = "model" needs one', "Euclidean distance"]
    ),
    "metric model with push weights": Case(
        'metric = "model"\nthreshold = 1.0\nweights = "push"', named("push_sum"), "topology.weights: push", ["model"]
    ),
    "metric model on arcs": Case(
        f'{ARCS}\nmetric = "model"\nthreshold = 1.0', "", 'topology.metric: "model"', ["directed"]
    ),
    "metric model where peers move": Case(
        'family = "mobile"\nmetric = "model"\nthreshold = 0.4', "", "topology.metric: ", ["mobile", '"position"']
    ),
    "a metric for a schedule": Case(
        'family = "base_k"\nmetric = "weight"', "", "topology.metric: base_k says itself who hears whom", ["leave"]
    ),
    "a threshold for a schedule": Case(
        'family = "epidemic"\nthreshold = 2', "", "topology.threshold: epidemic says itself", ["leave it out"]
    ),
    "mobile without a threshold": Case(
        'family = "mobile"', "", "topology.threshold: family mobile needs one", ["such as 0.5", "hear each other"]
    ),
    "a margin as wide as the threshold": Case(
        'family = "mobile"\nthreshold = 0.3\nmargin = 0.3', "", "topology.margin: margin = 0.3", ["less than", "0.3"]
    ),
    "more listeners than there are peers": Case(
        'family = "epidemic"\nfanout = 8', "", "topology.fanout: fanout = 8 with peers = 8", ["at most 7"]
    ),
    "more pairs than there are": Case(
        'family = "random_matching"\npairs = 5', "", "topology.pairs: pairs = 5 with peers = 8", ["1 to 4"]
    ),
    "among a directed matrix": Case(
        'family = "random_matching"\namong = "file:one_way.npy"',
        "",
        "topology.among: file:one_way.npy is directed",
        ["hear each other"],
    ),
    "among arcs": Case(
        'family = "random_matching"\namong = "file:arcs.edges"\ndirected = true',
        "",
        'topology.directed: belongs to "file:PATH"',
        ["topology.family is random_matching"],
    ),
    "among other peers": Case(
        'family = "random_matching"\npeers = 5\namong = "file:arcs.edges"',
        "",
        "topology.peers = 5, but file:arcs.edges has 3",
        [],
    ),
    "among a file that is not there": Case(
        'family = "random_matching"\namong = "file:no.edges"', "", "topology.among: file:no.edges", ["no file"]
    ),
    "among peers that fall apart": Case(
        'family = "random_matching"\namong = "file:apart.edges"',
        "",
        "topology.among: the peers fall apart into 2 components: {peer-0, peer-1}; {peer-2, peer-3}",
        ["topology.allow_disconnected = true"],
    ),
    "weights of a family that brings its own": Case(
        'family = "one_peer_exponential"\nweights = "metropolis"',
        "",
        "topology.weights: weights = 'metropolis': the family one_peer_exponential brings its own",
        ["leave topology.weights out"],
    ),
    "pairs that average along arcs": Case(
        ARCS, named("adpsgd"), "topology.family: adpsgd averages in pairs", ["undirected", 'algorithm.mode = "async"']
    ),
    "no waiting on pushed weights": Case(
        f'{ARCS}\nweights = "push"', 'mode = "async"', "topology.weights: push", ["dpsgd mixes by rows"]
    ),
    "no waiting on W by columns": Case(
        'family = "file:columns.npy"', 'mode = "async"', "topology.family: the columns of W", ["dpsgd mixes by rows"]
    ),
    "no waiting in rounds of one's own": Case(
        'family = "tests.own_topologies:there_and_back"',
        'mode = "async"',
        "topology.family: who hears whom changes from round to round",
        ["choose a topology that stays"],
    ),
    "an own algorithm of two exchanges that does not wait": Case(
        "",
        'name = "peer.algorithms.gradient_tracking:AdaptThenCombine"\nmode = "async"',
        'algorithm.mode: "async" mixes what has been heard so far, and peer.algorithms.gradient_tracking:Adapt',
        ["needs rounds in step", "one exchange a round"],
    ),
    "an own algorithm of columns that does not wait": Case(
        "", 'name = "peer.algorithms.push_sum:PushSum"\nmode = "async"', "algorithm.mode: ", ["needs rounds in step"]
    ),
    "several local steps under gradient_tracking": Case(
        "", named("gradient_tracking"), "task.local_steps: 2 under", ["bias", "It takes 1"], f"{SOFTMAX}local_steps = 2"
    ),
    "several local steps under d2": Case(
        "", named("d2"), "task.local_steps: 2 under d2", ["It takes 1; dpsgd"], f"{SOFTMAX}local_steps = 2"
    ),
    "momentum under gradient_tracking": Case(
        "", named("gradient_tracking"), "task.momentum: 0.9 under", ["It takes 0"], f"{SOFTMAX}momentum = 0.9"
    ),
    "momentum under d2": Case("", named("d2"), "task.momentum: 0.9", ["It takes 0"], f"{SOFTMAX}momentum = 0.9"),
    "a schedule of the learning rate under d2": Case(
        "", named("d2"), "task.lr_schedule: d2", ["gradient_tracking takes any"], f'{SOFTMAX}lr_schedule = "cosine"'
    ),
    "a warm-up under d2": Case(
        "", named("d2"), "task.warmup_rounds: d2", ["gradient_tracking"], f"{SOFTMAX}warmup_rounds = 2"
    ),
    **{
        f"order {order} with {name}": Case(
            "", named(name, f'order = "{order}"'), f'algorithm.order: "{order}" belongs to {owner}', ["leave it out"]
        )
        for name, order, owner in [
            ("dpsgd", "diging", "gradient_tracking"),
            ("gradient_tracking", "cta", "dpsgd"),
            ("d2", "cta", "dpsgd"),
            ("push_sum", "diging", "gradient_tracking"),
            ("diloco", "cta", "dpsgd"),
            ("exact", "diging", "gradient_tracking"),
        ]
    },
    **{
        f"{key} without effect": Case(ground, algorithm, f"{owner.partition('.')[0]}.{key}: belongs to", [owner])
        for key, ground, algorithm, owner in [
            ("look_again", "look_again = 3", "", "topology.metric is hops"),
            ("fanout", 'family = "base_k"\nfanout = 2', "", "topology.family is base_k"),
            ("variant", 'variant = "local"', "", "topology.family is ring"),
            ("pairs", 'family = "epidemic"\npairs = 1', "", "topology.family is epidemic"),
            ("among", 'among = "ring"', "", "topology.family is ring"),
            ("speed", "speed = 0.1", "", "topology.family is ring"),
            ("margin", 'family = "geometric"\nthreshold = 0.5\nmargin = 0.1', "", "topology.family is geometric"),
            ("nesterov", "", "nesterov = true", "algorithm.name is dpsgd"),
            ("among", "", 'among = "all"', "algorithm.name is dpsgd"),
            ("outer_lr", "", named("push_sum", "outer_lr = 1.0"), "algorithm.name is push_sum"),
            ("allow_unstable", "", named("gradient_tracking", "allow_unstable = true"), "is gradient_tracking"),
        ]
        for owner in [owner if "." in owner else f"algorithm.name {owner}"]
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_refused_in_one_line_whichever_way_it_would_run(
    command: Command, write: Write, folder: Path, case: Case
) -> None:
    (folder / "apart.edges").write_text("0 1\n2 3\n")
    write(case.text())
    for way in WAYS:
        outcome = command(*way, "exp.toml")
        assert outcome.code == 2, (way, outcome)
        assert outcome.out == ""
        (line,) = outcome.err.splitlines()
        assert line.startswith(f"earshot: {case.begins}"), line
        assert all(word in line for word in case.words), line
    assert not (folder / "runs").exists()


# ---- What runs, with or without a warning


def run(command: Command, *arguments: object) -> Outcome:
    outcome = command(*arguments, "exp.toml")
    assert outcome.code == 0, outcome
    return outcome


@pytest.mark.parametrize(("what", "mend"), [(what, mend) for what, (_, mend) in BY_ROWS_ALONE.items()])
def test_dpsgd_is_only_warned_of_rows_alone(
    command: Command, write: Write, folder: Path, what: str, mend: Sequence[str]
) -> None:
    write(Case(BY_ROWS_ALONE[what][0], "", "", []).text())
    for way in WAYS[:3]:
        outcome = run(command, *way, *([] if way == ["explain"] else ["--no-folder"]))
        (warning,) = [line for line in outcome.err.splitlines() if "warning: " in line]
        assert "D-PSGD then tends to a weighted mean of the peers instead of their mean" in warning
        assert all(word in warning for word in mend)


def test_each_mend_that_a_warning_names_leads_to_the_mean(folder: Path) -> None:
    mended: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"family": "star", "peers": 4, "weights": "metropolis"}, {}),
        ({"family": "file:rows.npy", "weights": "metropolis"}, {}),
        ({"family": "file:arcs.edges", "directed": True}, {"name": "push_sum"}),
        ({"family": "file:one_way.npy", "weights": "push"}, {"name": "push_sum"}),
        ({"family": "epidemic", "variant": "oracle", "peers": 4}, {}),
        ({"family": "epidemic", "variant": "local", "peers": 4}, {"name": "push_sum"}),
    ]
    for ground, algorithm in mended:
        n = ground.get("peers", 3)
        start = [[float(i * i)] for i in range(n)]
        tables = {"data": "none", "init": start, "dtype": "float64"}
        e = from_dict(
            {"rounds": 200, "task": tables, "topology": ground, "algorithm": algorithm, "record": {"params": "final"}},
            folder=folder,
        )
        assert explain(e).warnings == []
        np.testing.assert_allclose(simulate(e).params, np.full((n, 1), np.mean(start)), rtol=1e-9, err_msg=str(ground))


def test_d2_on_the_even_ring_is_at_minus_a_third_and_accepted() -> None:
    for peers in (4, 6, 8, 30):
        e = from_dict({"topology": {"peers": peers}, "algorithm": {"name": "d2"}})
        assert topology.lambda_min(assemble(e).mixing(0)) == pytest.approx(-1 / 3, abs=1e-12)
        assert explain(e).warnings == []


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 0.5))
def test_d2_is_refused_by_its_smallest_eigenvalue(tmp_path_factory: pytest.TempPathFactory, neighbour: float) -> None:
    """A ring of four whose eigenvalues are 1, 1 - 2a, 1 - 2a and 1 - 4a for neighbours' weights a."""
    folder = tmp_path_factory.mktemp("ring")
    own = 1 - 2 * neighbour
    np.save(folder / "w.npy", np.array([np.roll([own, neighbour, 0, neighbour], i) for i in range(4)]))
    tables = {"topology": {"family": "file:w.npy", "allow_disconnected": True}, "algorithm": {"name": "d2"}}
    if 1 - 4 * neighbour < -1 / 3 - 2e-9:
        with pytest.raises(ConfigError, match=r"^topology\.weights: d2 diverges"):
            assemble(from_dict(tables, folder=folder))
    else:
        assemble(from_dict(tables, folder=folder))


@pytest.mark.parametrize(
    ("ground", "why"),
    [
        ('family = "file:eager.npy"', "the smallest eigenvalue of W is below -1/3, and here it is -0.6"),
        ('family = "one_peer_exponential"\npeers = 4', "the same W in every round only"),
        ('family = "exponential"\npeers = 4', "d2 needs a symmetric W"),
    ],
)
def test_d2_runs_where_it_is_unstable_if_that_is_allowed(
    command: Command, write: Write, folder: Path, ground: str, why: str
) -> None:
    task = 'data = "none"\ninit = [[1.0], [2.0], [4.0], [8.0]]\ndtype = "float64"'
    write(Case(ground, named("d2", "allow_unstable = true"), "", [], task).text())
    for way in WAYS[:3]:
        outcome = run(command, *way, *([] if way == ["explain"] else ["--no-folder"]))
        (warning,) = [line for line in outcome.err.splitlines() if "warning: " in line]
        assert why in warning
        assert "it runs since algorithm.allow_unstable = true" in warning
        assert "or set" not in warning, "what is set already is no advice"


def test_d2_in_an_unstable_mode_grows_as_its_root_says(folder: Path) -> None:
    """x_(t+1) = l (2 x_t - x_(t-1)) for l = -3/5: the larger root of z^2 + 6/5 z - 3/5 = 0 is -3/5 - sqrt(24)/5."""
    e = from_dict(
        {
            "rounds": 60,
            "task": {"data": "none", "init": [[1.0], [-1.0], [1.0], [-1.0]], "dtype": "float64"},
            "topology": {"family": "file:eager.npy"},
            "algorithm": {"name": "d2", "allow_unstable": True},
            "record": {"params": "every", "on_divergence": "continue"},
            "eval_every": 1,
        },
        folder=folder,
    )
    sizes = [abs(entry.params[0][0]) for entry in simulate(e).history]
    assert sizes[60] / sizes[59] == pytest.approx(3 / 5 + 24**0.5 / 5, rel=1e-9)


ACCEPTED = {
    "gradient_tracking on a schedule": ({"family": "one_peer_exponential"}, {"name": "gradient_tracking"}),
    "gradient_tracking among the walking": ({"family": "mobile", "threshold": 0.4}, {"name": "gradient_tracking"}),
    "gradient_tracking on regular arcs": ({"family": "exponential"}, {"name": "gradient_tracking"}),
    "diging by models": ({"metric": "model", "threshold": 1.0}, {"name": "gradient_tracking", "order": "diging"}),
    "diloco by models": ({"metric": "model", "threshold": 1.0}, {"name": "diloco", "among": "neighbours"}),
    "d2 on lazy weights": ({"family": "complete", "weights": "lazy"}, {"name": "d2"}),
    "d2 by round trips, lazily": ({"metric": "rtt", "threshold": 5, "weights": "lazy"}, {"name": "d2"}),
    "d2 alone": ({"peers": 1}, {"name": "d2"}),
    "push_sum on W both ways": ({"family": "path", "weights": "metropolis"}, {"name": "push_sum"}),
    "push_sum on regular uniform weights": ({"weights": "uniform"}, {"name": "push_sum"}),
    "push_sum on columns of a file": ({"family": "file:columns.npy"}, {"name": "push_sum"}),
    "diloco over all on anything": ({"family": "file:rows.npy"}, {"name": "diloco"}),
    "diloco over all on columns": ({"family": "file:columns.npy"}, {"name": "diloco", "among": "all"}),
    "base_k with k beyond all": ({"family": "base_k", "k": 100}, {}),
    "adpsgd, whose W is its own": ({"family": "star", "weights": "uniform"}, {"name": "adpsgd"}),
    "no waiting along arcs": ({"family": "exponential"}, {"mode": "async", "order": "cta"}),
    "an own algorithm without waiting": ({}, {"name": "tests.own_topologies:half_way", "mode": "async"}),
    "a matrix of one's own that stays": ({"family": "file:eager.npy"}, {"mode": "async"}),
    "epidemic with everybody": ({"family": "epidemic", "fanout": 7}, {"name": "gradient_tracking"}),
}


@pytest.mark.parametrize(("ground", "algorithm"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_without_a_word(folder: Path, ground: dict[str, Any], algorithm: dict[str, Any]) -> None:
    task = {"data": "none", "init": [1.0]}
    e = from_dict({"task": task, "topology": ground, "algorithm": algorithm}, folder=folder)
    assert explain(e).warnings == []


def test_a_learning_rate_may_change_under_gradient_tracking() -> None:
    task = {"model": "softmax", "lr_schedule": "cosine", "warmup_rounds": 2}
    assert assemble(from_dict({"task": task, "algorithm": {"name": "gradient_tracking"}})).algorithm.exchanges == 2


def test_who_is_alone_is_refused_nothing() -> None:
    for name in ("dpsgd", "push_sum", "gradient_tracking", "d2", "diloco", "local", "exact", "adpsgd"):
        tables = {"topology": {"peers": 1}, "algorithm": {"name": name}, "task": {"model": "softmax"}}
        found = explain(from_dict(tables))
        assert found.warnings == []
        assert (found.document["bytes_per_round"], found.document["stochastic"]) == (0, "doubly")
