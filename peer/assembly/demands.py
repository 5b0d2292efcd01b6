"""What an algorithm demands of W: refused where its proof breaks, warned of where only its limit moves."""

from typing import NamedTuple

from scipy.sparse import csr_array

import topology
from peer.algorithms.algorithm import Algorithm
from peer.algorithms.d2 import LAMBDA_MIN
from peer.algorithms.easgd import alpha_limit
from peer.assembly.choice import mixes_without_topology
from peer.assembly.ground import Ground
from peer.errors import ConfigError, TrainingError
from peer.experiment import Experiment

ROUNDS_CHECKED = 16
"""Of a schedule without a period."""

_ROUNDING = 1e-9


class _Misfit(NamedTuple):
    """Why a W does not do for an algorithm, and what to choose instead."""

    key: str
    why: str
    mend: str


def check_demands(experiment: Experiment, algorithm: Algorithm, ground: Ground) -> None:
    """Refuse a mixing matrix with which the algorithm does not do what it is for. Raises ConfigError with the mend."""
    misfit = _misfit(experiment, algorithm, ground)
    if misfit is not None:
        raise ConfigError(misfit.key, f"{misfit.why}; {misfit.mend}")


def check_round(experiment: Experiment, algorithm: Algorithm, matrix: csr_array, round: int) -> None:
    """Refuse one round's W of a schedule whose rounds were not all looked at before. Raises TrainingError."""
    if algorithm.stochastic == "column":
        allowed = {"column", "doubly"}
    else:
        allowed = {"doubly"} | (
            {"row"} if experiment.algorithm.name == "dpsgd" or algorithm.stochastic == "row" else set()
        )
    kind = topology.stochasticity(matrix)
    if kind not in allowed:
        needed = " or ".join(sorted(allowed))
        name = experiment.algorithm.name
        raise TrainingError(f"topology.family: W of round {round} is {kind} stochastic, and {name} needs {needed}")


def limit_warnings(experiment: Experiment, ground: Ground) -> list[str]:
    """Return what works, but not as one might think."""
    if experiment.coordinator.mode != "none":
        return _elastic_warnings(experiment, len(ground.names))
    warnings = []
    if experiment.algorithm.name == "dpsgd" and "row" in _kinds(experiment, ground):
        warnings.append(
            "the rows of the mixing matrix sum to 1 and its columns do not: D-PSGD then tends to a weighted mean of "
            f"the peers instead of their mean; {_mend_of_rows(experiment, ground)}"
        )
    unstable = _d2_misfit(experiment, ground) if experiment.algorithm.allow_unstable else None
    if unstable is not None:
        warnings.append(f"{unstable.why}; it runs since algorithm.allow_unstable = true")
    return warnings


def _elastic_warnings(experiment: Experiment, peers: int) -> list[str]:
    """Warn of a pull that is too strong at any learning rate; one that is small enough may be, too, at a large one."""
    alpha, at_once = experiment.algorithm.alpha, peers if experiment.coordinator.mode == "sync" else 1
    limit = alpha_limit(0.0, workers=at_once)
    if not experiment.is_elastic or alpha is None or alpha < limit:
        return []
    return [f"algorithm.alpha = {alpha:g} is not below {limit:.4g}: centre and peers will swing, at any learning rate"]


def stochasticities(ground: Ground) -> set[topology.Stochasticity]:
    """Return which sums of W are 1 in the rounds of a period, or in the first ones. Raises ConfigError."""
    rounds = ground.rounds_seen if ground.period is not None else range(ROUNDS_CHECKED)
    try:
        return {topology.stochasticity(ground.matrix(round)) for round in rounds}
    except TrainingError as error:  # a round of the user's own; nothing runs yet
        raise ConfigError("", str(error), error.details) from error


# ---- What does not do


def _misfit(experiment: Experiment, algorithm: Algorithm, ground: Ground) -> _Misfit | None:
    t, name = experiment.topology, experiment.algorithm.name
    if experiment.coordinator.mode != "none":  # nobody mixes
        return None
    if t.metric == "model" and not _says_parameters(experiment, algorithm):
        return _Misfit(
            "topology.metric",
            f'"model" looks at the parameters that neighbours send, round by round, and {name} does not work so',
            'it goes with dpsgd, with gradient_tracking in the order "diging", and with diloco among neighbours',
        )
    if t.weights == "push" and algorithm.stochastic != "column":
        return _Misfit(
            "topology.weights",
            f"push makes the columns of W sum to 1, and {name} mixes by rows",
            'choose algorithm.name = "push_sum", or leave topology.weights out',
        )
    if mixes_without_topology(experiment):
        return None
    if experiment.is_asynchronous and (misfit := _asynchronous_misfit(experiment, algorithm, ground)):
        return misfit
    if name == "adpsgd":  # which has a W of its own
        return None
    kinds = _kinds(experiment, ground)
    if algorithm.stochastic == "column":
        return None if kinds <= {"column", "doubly"} else _without_columns(experiment, ground)
    if kinds & {"column", "none"}:
        return _Misfit(
            "topology.family",
            f"the columns of W sum to 1 and its rows do not, and {name} mixes by rows: W[i, j] is the weight that i "
            "gives to what it hears from j",
            'choose algorithm.name = "push_sum", or transpose W if it was meant the other way round',
        )
    if algorithm.stochastic == "doubly" and "row" in kinds and name != "dpsgd":
        return _Misfit(
            "topology.weights",
            f"{name} needs rows and columns of W that sum to 1, and here the columns do not: it would not come to the "
            "optimum of all shards together",
            _mend_of_rows(experiment, ground),
        )
    return None if experiment.algorithm.allow_unstable else _d2_misfit(experiment, ground)


def _asynchronous_misfit(experiment: Experiment, algorithm: Algorithm, ground: Ground) -> _Misfit | None:
    """What does not do where peers do not wait for each other."""
    name = experiment.algorithm.name
    if algorithm.exchanges != 1 or algorithm.absent != "keep_own" or algorithm.stochastic == "column":
        return _Misfit(
            "algorithm.mode",
            f'"async" mixes what has been heard so far, and {name} needs rounds in step',
            "it goes with one exchange a round, rows of W that sum to 1, and absent = keep_own",
        )
    if ground.period != 1:
        return _Misfit(
            "topology.family",
            "who hears whom changes from round to round, and peers that do not wait for each other share no rounds",
            'choose a topology that stays, or algorithm.mode = "sync" of dpsgd',
        )
    if name == "adpsgd" and ground.schedule.directed:
        return _Misfit(
            "topology.family",
            "adpsgd averages in pairs, both of whom take the mean, and here the graph is directed",
            'choose an undirected graph, or algorithm.name = "dpsgd" with algorithm.mode = "async"',
        )
    return None


def _kinds(experiment: Experiment, ground: Ground) -> set[topology.Stochasticity]:
    """Return which sums of W are 1. By round trips nobody knows yet who will hear how many."""
    t = experiment.topology
    irregular: set[topology.Stochasticity] = {"row"} if t.metric == "rtt" and t.weights == "uniform" else set()
    return stochasticities(ground) | irregular


def _says_parameters(experiment: Experiment, algorithm: Algorithm) -> bool:
    if mixes_without_topology(experiment) or experiment.algorithm.name == "d2":  # d2 sends where x would go next
        return False
    return algorithm.exchanges == 1 and algorithm.absent == "keep_own"


def _without_columns(experiment: Experiment, ground: Ground) -> _Misfit:
    pushes = experiment.topology.metric not in ("rtt", "model")
    rules = [*([] if ground.schedule.directed else ['"metropolis"']), *(['"push"'] if pushes else [])]
    return _Misfit(
        "topology.weights",
        f"{experiment.algorithm.name} needs columns of W that sum to 1, and here they do not: a share of what is sent "
        "would be lost, or counted twice",
        f"choose topology.weights = {' or '.join(rules)}",
    )


def _mend_of_rows(experiment: Experiment, ground: Ground) -> str:
    """Say what to choose where rows sum to 1 and columns do not."""
    t = experiment.topology
    if not ground.schedule.directed:
        return 'choose topology.weights = "metropolis"'
    if t.variant == "local":
        return 'choose topology.variant = "oracle", or algorithm.name = "push_sum"'
    pushing = "" if ground.rule == "uniform" and t.weights == "auto" else ' with topology.weights = "push"'
    return f'for directed graphs there is algorithm.name = "push_sum"{pushing}'


def _d2_misfit(experiment: Experiment, ground: Ground) -> _Misfit | None:
    if experiment.algorithm.name != "d2":
        return None
    t, allow = experiment.topology, "or set algorithm.allow_unstable = true"
    if ground.period != 1:
        return _Misfit(
            "topology.family",
            "d2 looks back one round, and its proof holds for the same W in every round only",
            f'choose a topology that stays, algorithm.name = "gradient_tracking", {allow}',
        )
    smallest = topology.lambda_min(ground.matrix(0))
    if smallest is None:
        return _Misfit(
            "topology.family",
            "d2 needs a symmetric W, and this one is not",
            f'choose an undirected graph, algorithm.name = "gradient_tracking", {allow}',
        )
    if t.metric == "rtt" and t.weights != "lazy":
        return _Misfit(
            "topology.weights",
            "d2 diverges where the smallest eigenvalue of W is below -1/3, and W is known only when round trips have "
            "been measured",
            f'choose topology.weights = "lazy", which has none below 0, {allow}',
        )
    if smallest < LAMBDA_MIN - _ROUNDING:
        return _Misfit(
            "topology.weights",
            f"d2 diverges where the smallest eigenvalue of W is below -1/3, and here it is {smallest:.6g}",
            f'choose topology.weights = "lazy", which has none below 0, {allow}',
        )
    return None
