"""From the [algorithm] table to an algorithm, and to the part of the parameters that it gossips."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from peer.algorithms import adpsgd, d2, diloco, dpsgd, gradient_tracking, push_sum
from peer.algorithms.algorithm import Algorithm
from peer.algorithms.parts import Span, within
from peer.assembly.rehearsal import Guarded, check_settings, rehearse
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.experiment.choices import is_factory
from peer.task.factory import call_factory, load_factory
from peer.task.layout import Layout, Segment

NEEDED = (
    *("stochastic", "absent", "exchanges", "scope", "extrapolates", "init", "at", "learned", "message", "update"),
    *("params", "parameters_in"),
)
"""What the shells ask of an algorithm."""


def algorithm_of(experiment: Experiment) -> Algorithm:
    """Return the algorithm that the experiment names. Raises ConfigError where it is a user's and not one."""
    a = experiment.algorithm
    match a.name, a.order:
        case (("dpsgd" | "local" | "exact"), "cta"):
            return dpsgd.CombineThenAdapt()
        case (("dpsgd" | "local" | "exact"), _):
            return dpsgd.AdaptThenCombine()
        case "adpsgd", _:
            return adpsgd.PairwiseAveraging()
        case "gradient_tracking", "diging":
            return gradient_tracking.Diging()
        case "gradient_tracking", _:
            return gradient_tracking.AdaptThenCombine()
        case "d2", _:
            return d2.D2()
        case "push_sum", _:
            return push_sum.PushSum()
        case "diloco", _:
            return _diloco(experiment)
        case "easgd", _:
            return dpsgd.AdaptThenCombine()  # beside a coordinator nobody mixes: see `coordination`
    return _given(experiment)


def mixes_without_topology(experiment: Experiment) -> bool:
    """Whether nobody gossips, or everybody with everybody, whatever the topology; or there is a coordinator, or a ring
    of its own."""
    a = experiment.algorithm
    if experiment.coordinator.mode != "none":
        return True
    return a.name in ("local", "exact") or (a.name == "diloco" and a.among != "neighbours")


def pushes_gradients(experiment: Experiment) -> bool:
    """Whether workers push the gradient itself, to which the server applies a learning rate and its schedule."""
    return experiment.coordinates and not experiment.is_elastic and experiment.coordinator.aggregate == "gradients"


def fitted(algorithm: Algorithm, experiment: Experiment, layout: Layout) -> Algorithm:
    """Return the algorithm for flat parameters in this layout. Raises ConfigError for patterns that match nothing."""
    return within(algorithm, shared_spans(experiment, layout), layout.trainable, layout.size)


def check_fitted(algorithm: Algorithm, experiment: Experiment, layout: Layout) -> None:
    """Refuse patterns of parameters that match nothing, and a user's algorithm that does not work on such parameters.

    Raises ConfigError.
    """
    shared_spans(experiment, layout)
    if isinstance(algorithm, Guarded):
        looks = experiment.topology.metric == "model"
        rehearse(algorithm, layout.size, layout.dtype, experiment.task.lr, says_parameters=looks)


def shared_spans(experiment: Experiment, layout: Layout) -> tuple[Span, ...] | None:
    """Return the columns of the flat parameters that are gossiped, None for all of them.

    A tensor with several names is gossiped where one of them matches.
    """
    patterns = experiment.algorithm.share
    for pattern in patterns:
        if not any(_matches(segment, pattern) for segment in layout.segments):
            names = [segment.name for segment in layout.segments]
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            raise ConfigError("algorithm.share", f'"{pattern}" matches nothing; the model has {shown}')
    chosen = [s for s in layout.segments if any(_matches(s, pattern) for pattern in patterns)]
    if len(chosen) == len(layout.segments):
        return None
    return _joined([(s.offset, s.offset + s.size) for s in chosen])


def _matches(segment: Segment, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (segment.name, *segment.others))


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for first, end in spans:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple(joined)


def _diloco(experiment: Experiment) -> diloco.DiLoCo:
    a, default = experiment.algorithm, diloco.DiLoCo()
    return diloco.DiLoCo(
        lr=default.lr if a.outer_lr is None else a.outer_lr,
        momentum=default.momentum if a.outer_momentum is None else a.outer_momentum,
        nesterov=default.nesterov if a.nesterov is None else a.nesterov,
    )


def _given(experiment: Experiment) -> Algorithm:
    """What a user's own function makes."""
    spec, key = experiment.algorithm.name, "algorithm.name"
    assert is_factory(spec)
    made = call_factory(load_factory(spec, key, experiment.folder), spec, key, experiment=experiment)
    missing = [name for name in NEEDED if not hasattr(made, name)]
    if missing:
        raise ConfigError(
            key,
            f"{spec} returned a {type(made).__name__} without {', '.join(missing)}; see peer.algorithms.algorithm",
        )
    algorithm: Algorithm = made  # type: ignore[assignment]
    check_settings(algorithm, spec)
    return Guarded(algorithm, spec)
