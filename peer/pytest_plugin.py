"""A pytest fixture for scripted convergence tests.

def test_ring_learns(earshot):
    summary = earshot.simulate(earshot.load("exp.toml", {"rounds": 50}))
    assert summary.accuracy.mean > 0.9
"""

from types import ModuleType

import pytest


@pytest.fixture
def earshot() -> ModuleType:
    """Experiments from Python: `load`, `explain`, `simulate`, `up`."""
    import peer

    return peer
