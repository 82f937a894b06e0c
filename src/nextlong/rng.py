"""Randomness by key, not by order: the same samples on any machine.

They are the same in any order and with any number of workers. `rng_for` returns a
generator for one (seed, stage, key). `keyed_hash` ranks many 64-bit keys at once:
"sample 100 documents" means "take the 100 with the smallest keyed hashes", which
depends on neither sharding nor file order.
"""

from __future__ import annotations

import hashlib

import numpy as np

from nextlong.arrays import Hashes, Ints


def rng_for(seed: int, stage: str, key: int | str = 0) -> np.random.Generator:
    """Return the random generator of (seed, stage, key)."""
    # A separator that no stage contains, so that different triples never look alike.
    name = f"{seed}\x1f{stage}\x1f{key}".encode()
    digest = hashlib.blake2b(name, digest_size=16).digest()
    entropy = int.from_bytes(digest, "little")
    return np.random.Generator(np.random.PCG64(entropy))


def keyed_hash(keys: Hashes, *, seed: int, stage: str) -> Hashes:
    """Hash 64-bit keys, shape (n,), under (seed, stage): uniform over uint64.

    Equal keys have equal hashes. The finalizer of SplitMix64 (Steele, Lea, Flood 2014)
    of the key xor a salt: a bijection, so distinct keys never collide.
    """
    digest = hashlib.blake2b(f"{seed}\x1f{stage}".encode(), digest_size=8).digest()
    salt = np.uint64(int.from_bytes(digest, "little"))
    mixed = keys.astype(np.uint64) ^ salt
    # The sum and the products wrap, as SplitMix64 does.
    mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def threshold_for(share: float) -> np.uint64:
    """Return the bound below which a uniform uint64 lies with probability `share`.

    The share is clipped to [0, 1].
    """
    clipped = min(max(share, 0.0), 1.0)
    # The largest double below 2**64, which a uint64 can hold.
    return np.uint64(clipped * float(2**64 - 2**11))


def shuffled(content_hashes: Hashes, *, seed: int, stage: str) -> Ints:
    """Return all positions, shape (n,), in random order, by the contents only."""
    hashes = keyed_hash(content_hashes, seed=seed, stage=stage)
    return np.argsort(hashes, kind="stable")
