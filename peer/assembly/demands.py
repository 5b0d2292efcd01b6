"""What an algorithm demands of W: refused where its proof breaks, warned of where only its limit moves."""

import topology
from peer.algorithms.algorithm import Algorithm
from peer.algorithms.d2 import LAMBDA_MIN
from peer.assembly.ground import Ground
from peer.errors import ConfigError
from peer.experiment import Experiment

ROUNDS_CHECKED = 16
"""Of a schedule without a period."""

_ROUNDING = 1e-9


def check_demands(experiment: Experiment, algorithm: Algorithm, ground: Ground) -> None:
    """Refuse a mixing matrix with which the algorithm does not do what it is for. Raises ConfigError with the mend."""
    name, t = experiment.algorithm.name, experiment.topology
    if t.metric == "model":
        _check_sends_parameters(name, algorithm)
    if mixes_without_topology(experiment):
        return
    if t.weights == "push" and algorithm.stochastic != "column":
        raise ConfigError(
            "topology.weights",
            f"push makes the columns of W sum to 1, which {name} cannot mix by; it belongs to push_sum. "
            'Choose algorithm.name = "push_sum", or leave topology.weights out',
        )
    kinds = stochasticities(ground)
    if algorithm.stochastic == "column":
        _check_columns(name, kinds)
    elif kinds & {"column", "none"}:
        raise ConfigError(
            "topology.family",
            "the columns of W sum to 1 and its rows do not, and "
            f"{'D-PSGD' if name == 'dpsgd' else name} mixes by rows: W[i, j] is the weight that i gives to what it "
            "hears from j; transpose the file if it was meant the other way round",
        )
    elif algorithm.stochastic == "doubly" and "row" in kinds and name != "dpsgd":
        raise ConfigError(
            "topology.weights",
            f"{name} needs rows and columns of W that sum to 1, and here the columns do not: it would go astray. "
            f"{_mend(ground)}",
        )
    if name == "d2" and not experiment.algorithm.allow_unstable:
        _check_d2(ground)


def mixes_without_topology(experiment: Experiment) -> bool:
    """Whether nobody gossips, or everybody with everybody, whatever the topology."""
    a = experiment.algorithm
    return a.name in ("local", "exact") or (a.name == "diloco" and a.among != "neighbours")


def stochasticities(ground: Ground) -> set[topology.Stochasticity]:
    """Return which sums of W are 1 in the rounds of a period, or in the first ones."""
    rounds = ground.rounds_seen if ground.period is not None else range(ROUNDS_CHECKED)
    return {topology.stochasticity(ground.matrix(round)) for round in rounds}


def limit_warnings(experiment: Experiment, ground: Ground) -> list[str]:
    """Return what works, but not as one might think."""
    warnings = []
    if experiment.algorithm.name == "dpsgd" and "row" in stochasticities(ground):
        warnings.append(
            "the rows of the mixing matrix sum to 1 and its columns do not: D-PSGD then tends to a weighted mean of "
            f"the peers instead of their mean; {_mend(ground)[0].lower()}{_mend(ground)[1:]}"
        )
    if experiment.algorithm.allow_unstable and experiment.algorithm.name == "d2":
        try:
            _check_d2(ground)
        except ConfigError as error:
            warnings.append(f"allowed as unstable: {error.problem}")
    return warnings


def _mend(ground: Ground) -> str:
    if ground.graph.is_directed():
        return 'On a directed graph algorithm.name = "push_sum" gives the mean'
    return 'On an undirected graph topology.weights = "metropolis" gives the mean'


def _check_columns(name: str, kinds: set[topology.Stochasticity]) -> None:
    if kinds <= {"column", "doubly"}:
        return
    raise ConfigError(
        "topology.weights",
        f"{name} needs columns of W that sum to 1, and here they do not: mass would be lost; choose "
        'topology.weights = "push"',
    )


def _check_d2(ground: Ground) -> None:
    allow = "or set algorithm.allow_unstable = true"
    if ground.period != 1:
        raise ConfigError(
            "topology.family",
            "d2 looks back one round, and its proof holds for the same W in every round only; choose a topology that "
            f'stays, algorithm.name = "gradient_tracking", which W may change under, {allow}',
        )
    smallest = topology.lambda_min(ground.matrix(0))
    if smallest is None:
        raise ConfigError(
            "topology.family",
            f'd2 needs a symmetric W, and on a directed graph it is not; choose "gradient_tracking", {allow}',
        )
    if smallest < LAMBDA_MIN - _ROUNDING:
        raise ConfigError(
            "topology.weights",
            f"d2 diverges where the smallest eigenvalue of W is below -1/3, and here it is {smallest:.6g}; choose "
            f'topology.weights = "lazy", which has none below 0, {allow}',
        )


def _check_sends_parameters(name: str, algorithm: Algorithm) -> None:
    if algorithm.exchanges == 1 and algorithm.absent == "keep_own" and name not in ("d2", "local", "exact"):
        return
    raise ConfigError(
        "topology.metric",
        f'"model" looks at the parameters that neighbours send, round by round, and {name} does not work so; '
        'it goes with dpsgd, with gradient_tracking in the order "diging", and with diloco among neighbours',
    )
