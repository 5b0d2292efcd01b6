"""A coordinator's tensors: what becomes of pushes, of their age, and of what is not finite."""

from math import inf, nan, sqrt

import pytest
import torch
from torch import Tensor

from peer.algorithms.easgd import Elastic
from peer.algorithms.server import Adam, Momentum, Sgd
from peer.centre import Centre, Pushed


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def centre(*start: float, trainable: int | None = None, **settings: object) -> Centre:
    count = len(start) if trainable is None else trainable
    return Centre(Sgd(0.5), vector(*start), count, **settings)  # type: ignore[arg-type]


def test_a_version_is_one_step_down_the_weighted_sum() -> None:
    server = centre(1.0, 2.0)
    outcome = server.apply(0, [Pushed(0.25, 0, vector(4.0, 0.0)), Pushed(0.75, 1, vector(0.0, 4.0))])
    assert server.params().tolist() == [1.0 - 0.5 * 1.0, 2.0 - 0.5 * 3.0]
    assert outcome.rejected == ()
    assert [(update.sender, update.staleness, update.distance) for update in outcome.updates] == [
        (0, 0, 0.0),
        (1, 0, 0.0),
    ]


@pytest.mark.parametrize(("rule", "scale"), [("constant", 1.0), ("inverse", 1 / 4), ("inverse_sqrt", 1 / sqrt(4))])
def test_what_is_three_versions_old_counts_as_much_as_the_rule_says(rule: str, scale: float) -> None:
    server = centre(0.0, staleness=rule)
    for version in range(3):
        server.apply(version, [Pushed(1.0, 0, vector(-2.0))])
    outcome = server.apply(3, [Pushed(1.0, 1, vector(-2.0), staleness=3)])
    assert server.params().tolist() == pytest.approx([3.0 + scale], abs=1e-15)
    assert outcome.updates[0].distance == 3.0  # from 0 to 3


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_what_is_not_finite_is_left_out_and_its_weight_goes_to_the_others(bad: float) -> None:
    server = centre(1.0)
    pushes = [Pushed(0.5, 0, vector(2.0)), Pushed(0.5, 0, vector(bad)), Pushed(0.0, 2, vector(8.0))]
    outcome = server.apply(0, pushes)
    assert outcome.rejected == (0,)
    assert [update.sender for update in outcome.updates] == [0, 2]
    assert server.params().tolist() == [1.0 - 0.5 * 2.0]


def test_where_nothing_is_finite_the_version_is_the_one_before() -> None:
    server = Centre(Momentum(0.5), vector(1.0), 1)
    before = server.tensors()
    outcome = server.apply(0, [Pushed(1.0, 3, vector(nan))])
    assert (outcome.rejected, outcome.updates) == ((3,), ())
    assert all(torch.equal(before[name], tensor) for name, tensor in server.tensors().items())


def test_pushes_that_are_finite_one_by_one_may_still_sum_to_something_else() -> None:
    server = centre(0.0)
    largest = torch.finfo(torch.float64).max
    outcome = server.apply(0, [Pushed(1.0, 0, vector(-largest)), Pushed(1.0, 1, vector(-largest))])
    assert outcome.rejected == ()
    assert server.has_diverged()


def test_statistics_are_averaged_plainly_whatever_the_optimiser() -> None:
    server = Centre(Adam(0.1), vector(1.0, 10.0), trainable=1, staleness="constant")
    server.apply(0, [Pushed(0.5, 0, vector(1.0, 4.0)), Pushed(0.5, 1, vector(1.0, 2.0))])
    assert server.params()[1] == 10.0 - 3.0
    server.apply(1, [Pushed(1.0, 0, vector(1.0, 4.0), staleness=1)])
    assert server.params()[1] == 7.0 - 4.0 / 2


def test_variances_stay_positive_however_stale_the_pushes_are() -> None:
    """Each of eight workers pushes a tenth of the way from what it was given to 0.01; all are seven versions old."""
    server, versions = centre(0.0, 10.0, trainable=1), [10.0]
    for version in range(200):
        given = versions[max(0, version - 7)]
        server.apply(version, [Pushed(1.0, version % 8, vector(0.0, 0.1 * (given - 0.01)), min(version, 7))])
        versions.append(float(server.params()[1]))
    assert min(versions) > 0
    assert versions[-1] < 5


def test_the_schedule_of_the_learning_rate_counts_versions() -> None:
    server = Centre(Sgd(1.0), vector(0.0), 1, factor=lambda version: 1 / (version + 1))
    for version in range(3):
        server.apply(version, [Pushed(1.0, 0, vector(-6.0))])
    assert server.params().tolist() == [6.0 + 3.0 + 2.0]


def test_an_elastic_centre_answers_with_what_it_was() -> None:
    server = Centre(Elastic(0.1), vector(1.0), 1, is_elastic=True)
    server.apply(0, [Pushed(0.5, 0, vector(3.0)), Pushed(0.5, 1, vector(2.0))])
    assert server.params().tolist() == pytest.approx([1.0 + 0.1 * (2.0 + 1.0)], abs=1e-15)
    assert server.given().tolist() == [1.0]


def test_one_that_is_restored_goes_on_as_the_first_would_have() -> None:
    first, second = (Centre(Adam(0.1), vector(1.0, 2.0, 5.0), trainable=2) for _ in range(2))
    push = [Pushed(1.0, 0, vector(0.3, -0.2, 0.5))]
    first.apply(0, push)
    second.restore(first.tensors())
    for server in (first, second):
        server.apply(1, push)
    assert torch.equal(first.params(), second.params())


def test_the_state_of_another_optimiser_is_not_taken() -> None:
    with pytest.raises(ValueError, match="not one of this model"):
        Centre(Adam(0.1), vector(1.0), 1).restore(Centre(Sgd(0.1), vector(1.0), 1).tensors())


def test_it_has_diverged_beyond_all_bounds_and_not_before() -> None:
    server = centre(1.0)
    server.apply(0, [Pushed(1.0, 0, vector(-1.9e8))])
    assert not server.has_diverged()
    server.apply(1, [Pushed(1.0, 0, vector(-1.0e7))])
    assert server.has_diverged()


def test_where_nobody_makes_anything_finite_of_it_it_has_diverged() -> None:
    server = centre(1.0, workers=2)
    server.apply(0, [Pushed(1.0, 0, vector(nan))])
    server.apply(1, [Pushed(1.0, 0, vector(nan))])
    assert not server.has_diverged(), "one of two may be broken"
    server.apply(2, [Pushed(1.0, 1, vector(2.0))])
    server.apply(3, [Pushed(1.0, 0, vector(nan))])
    assert not server.has_diverged(), "the other is not"
    server.apply(4, [Pushed(1.0, 1, vector(inf))])
    assert server.has_diverged()


def test_of_what_nobody_asks_no_earlier_versions_are_kept() -> None:
    server = centre(0.0, measures=False)
    for version in range(5):
        server.apply(version, [Pushed(1.0, 0, vector(-2.0))])
    assert server.apply(5, [Pushed(1.0, 0, vector(-2.0), staleness=2)]).updates[0].distance is None
