"""Randomness by key, not by order: the same samples on any machine, in any order, with any number of workers.

`rng_for` returns a generator for one (seed, stage, key). `keyed_hash` ranks many 64-bit keys at once: "sample 100 documents" means
"take the 100 with the smallest keyed hashes", which depends on neither sharding nor file order.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def rng_for(seed: int, stage: str, key: int | str = 0) -> np.random.Generator:
    """Return the random generator of (seed, stage, key)."""
    digest = hashlib.blake2b(
        f"{seed}\x1f{stage}\x1f{key}".encode(), digest_size=16
    ).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def keyed_hash(
    keys: NDArray[np.uint64], *, seed: int, stage: str
) -> NDArray[np.uint64]:
    """Hash 64-bit keys, shape (n,), under (seed, stage): uniform over uint64; equal keys have equal hashes.

    The finalizer of SplitMix64 (Steele, Lea, Flood 2014) of the key xor a salt: a bijection, so distinct keys never collide.
    """
    salt = hashlib.blake2b(f"{seed}\x1f{stage}".encode(), digest_size=8).digest()
    mixed = keys.astype(np.uint64) ^ np.uint64(int.from_bytes(salt, "little"))
    mixed = mixed + np.uint64(0x9E3779B97F4A7C15)  # wraps, as intended
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def threshold_for(share: float) -> np.uint64:
    """Return the bound below which a uniform uint64 lies with probability `share`, clipped to [0, 1]."""
    return np.uint64(min(max(share, 0.0), 1.0) * float(2**64 - 2**11))


def shuffled(
    content_hashes: NDArray[np.uint64], *, seed: int, stage: str
) -> NDArray[np.int64]:
    """Return all positions, shape (n,), in a random order that depends only on the contents."""
    return np.argsort(keyed_hash(content_hashes, seed=seed, stage=stage), kind="stable")
