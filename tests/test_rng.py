"""Keyed randomness: pinned values, and independence of order."""

import hashlib

import numpy as np
import pytest

from nextlong.rng import keyed_hash, rng_for, threshold_for


def test_the_generator_of_a_key_is_pinned():
    assert rng_for(7, "position", "nextlong-1").integers(0, 1000, 4).tolist() == [
        389,
        856,
        640,
        818,
    ]


def test_seed_stage_and_key_each_make_another_generator():
    drawn = [
        rng_for(*key).integers(2**60)
        for key in ((0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a", "x"))
    ]
    assert len(set(drawn)) == 5


def test_parts_of_the_key_do_not_run_together():
    assert rng_for(1, "1", 1).integers(2**60) != rng_for(11, "", 1).integers(2**60)


MASK = 2**64 - 1


def finalize(value):
    """SplitMix64's next output from a state, in plain integers."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_keyed_hash_is_splitmix64_over_the_key_xor_a_salt():
    assert finalize(0) == 0xE220A8397B1DCDAF  # published first output for seed 0
    salt = int.from_bytes(
        hashlib.blake2b(b"3\x1fmeta", digest_size=8).digest(), "little"
    )
    keys = [0, 1, 2**63, 2**64 - 1]
    hashed = keyed_hash(np.array(keys, np.uint64), seed=3, stage="meta")
    assert hashed.tolist() == [finalize(key ^ salt) for key in keys]


def test_keyed_hash_depends_on_the_key_alone():
    keys = np.arange(1000, dtype=np.uint64)
    hashed = keyed_hash(keys, seed=0, stage="meta")
    assert np.array_equal(keyed_hash(keys[::-1], seed=0, stage="meta"), hashed[::-1])
    assert np.array_equal(keyed_hash(keys[500:], seed=0, stage="meta"), hashed[500:])
    assert not np.array_equal(keyed_hash(keys, seed=1, stage="meta"), hashed)
    assert not np.array_equal(keyed_hash(keys, seed=0, stage="select"), hashed)
    assert len(np.unique(hashed)) == 1000


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_threshold_lets_its_share_through(share):
    hashed = keyed_hash(np.arange(40_000, dtype=np.uint64), seed=0, stage="x")
    assert (hashed < threshold_for(share)).mean() == pytest.approx(share, abs=0.01)


def test_shares_outside_zero_and_one_are_clipped():
    assert threshold_for(-1) == 0
    assert threshold_for(7) == threshold_for(1)
