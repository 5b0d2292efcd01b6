"""A model with a table of words, of which a batch touches few rows, as a user's factories make it."""

import torch
from torch import Tensor, nn

WORDS, WIDTH, HEAD = 40, 3, 7
"""Rows and columns of the table, and how many numbers the model has beside it."""


class _Sentences(nn.Module):
    """Scores rows of two words."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.head = nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.table(x.long()).flatten(1)))
        return y


def sparse_words() -> nn.Module:
    """The gradients of the table are sparse."""
    torch.manual_seed(9)
    return _Sentences(sparse=True)


def dense_words() -> nn.Module:
    """The same model, with dense gradients."""
    torch.manual_seed(9)
    return _Sentences(sparse=False)
