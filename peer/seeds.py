"""Counter-based randomness: a stream is a function of (seed, purpose, counters) and of nothing else.

A daemon and the simulator that ask for the same stream get the same numbers, in whatever order they ask.
"""

from collections.abc import Iterator
from zlib import crc32

import numpy as np


def stream(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return the generator of this seed, purpose ("batch", "partition", ...) and counters (peer, epoch, ...)."""
    # Lengths are part of the entropy: SeedSequence pads with zeros, so (1,) and (1, 0) would be one stream.
    words = [len(counters), *_words(seed), crc32(purpose.encode()), *(w for c in counters for w in _words(c))]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def torch_seed(seed: int, purpose: str, *counters: int) -> int:
    """Return a 63-bit seed for a torch generator, from the same family of streams."""
    return int(stream(seed, purpose, *counters).integers(2**63))


def _words(number: int) -> Iterator[int]:
    """Yield the low and the high 32 bits of a number below 2^64."""
    yield number & 0xFFFFFFFF
    yield number >> 32
