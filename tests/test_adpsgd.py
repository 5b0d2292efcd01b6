"""AD-PSGD's two lines: a pair takes its mean, and what was learned lands on what has become of x."""

import torch

from peer.algorithms.adpsgd import PairwiseAveraging
from peer.algorithms.combine import HeardMessages
from peer.assembly.choice import algorithm_of
from peer.experiment import from_dict


def test_both_of_a_pair_take_the_mean_and_what_was_learned_is_added_to_it() -> None:
    """x_0 = 1 and x_1 = 3 average while 0 trains from 1; it learns +0.5, and comes to 2.5."""
    rule = PairwiseAveraging()
    states = [rule.init(torch.tensor([x], dtype=torch.float64)) for x in (1.0, 3.0)]
    messages = [rule.message(state, 0, None)[1] for state in states]
    for me in (0, 1):
        terms = tuple((0.5, message, sender == me) for sender, message in enumerate(messages))
        states[me] = rule.update(states[me], 0, HeardMessages(terms))
    assert [rule.params(state).item() for state in states] == [2.0, 2.0]
    assert rule.params(rule.learned(states[0], torch.tensor([0.5], dtype=torch.float64), 0.1)).item() == 2.5


def test_it_is_what_the_name_stands_for() -> None:
    assert algorithm_of(from_dict({"algorithm": {"name": "adpsgd"}})) == PairwiseAveraging()
