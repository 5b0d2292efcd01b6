"""A peer's final model as a file."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

NAME = "model.safetensors"


def save_model(tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """Write a model's tensors, by name, into a peer's folder; the file is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / NAME, folder / f"{NAME}.partial"
    save_file(dict(tensors), partial)
    os.replace(partial, path)
    return path


def load_model(path: Path) -> dict[str, Tensor]:
    """Read a model's tensors, by name."""
    tensors: dict[str, Tensor] = load_file(path)
    return tensors
