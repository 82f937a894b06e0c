"""Randomness by key, not by order: the same draw on any machine, in any order, with any number of workers.

`rng_for` gives a generator for one (seed, stage, key); `keyed_hash` ranks many 64-bit keys at once, so that "draw 100 of
these documents" means "the 100 with the smallest keyed hash" and does not depend on sharding or file order.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def rng_for(seed: int, stage: str, key: int | str = 0) -> np.random.Generator:
    """Return the generator that belongs to (seed, stage, key) and to nothing else."""
    digest = hashlib.blake2b(f"{seed}\x1f{stage}\x1f{key}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def keyed_hash(keys: NDArray[np.uint64], *, seed: int, stage: str) -> NDArray[np.uint64]:
    """Hash 64-bit keys, shape (n,), under (seed, stage): uniform over uint64, equal keys to equal values.

    SplitMix64's finalizer (Steele, Lea, Flood 2014) over the key xor a salt; a bijection, so distinct keys never tie.
    """
    salt = hashlib.blake2b(f"{seed}\x1f{stage}".encode(), digest_size=8).digest()
    mixed = keys.astype(np.uint64) ^ np.uint64(int.from_bytes(salt, "little"))
    mixed = mixed + np.uint64(0x9E3779B97F4A7C15)  # wraps, as intended
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def threshold_for(share: float) -> np.uint64:
    """Return the bound below which a uniform uint64 lies with probability `share` (clipped to [0, 1])."""
    return np.uint64(min(max(share, 0.0), 1.0) * float(2**64 - 2**11))


def shuffled(content_hashes: NDArray[np.uint64], *, seed: int, stage: str) -> NDArray[np.int64]:
    """Return all positions, shape (n,), in a random order that depends on the contents alone."""
    return np.argsort(keyed_hash(content_hashes, seed=seed, stage=stage), kind="stable")
