"""Arrange: which sequences make one row of a data set, and in what order: mix, split, pack.

In:  where the sequences of finished runs lie (SEQUENCE_INDEX), their lengths and keys.
Out: the same, chosen and ordered; rows of several sequences.

Pure functions over numbers: no token and no text is read. Proportions are exact to a sequence, and an order depends on
the sequences alone: mixing lays each run's sequences evenly over the whole (as Sainte-Laguë's method deals out seats),
splitting asks each key by itself, packing is best-fit decreasing (at most 11/9 of the fewest rows; Johnson 1973).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import CorpusError, RecipeError
from nextlong.rng import keyed_hash, threshold_for

# mix


def mix(
    indexes: Sequence[NDArray[Any]], *, weights: Sequence[float], by: Literal["sequences", "tokens"]
) -> NDArray[Any]:
    """Return the sequences of several runs in the proportions of `weights`, evenly interleaved, none repeated.

    The run that is scarcest for its weight is used whole and sets the scale; of each other run the first sequences serve,
    in their order, as many as its share holds. Raises RecipeError or CorpusError if there are no such proportions.
    """
    _check_weights(indexes, weights)
    ends = [np.cumsum(index["length"] if by == "tokens" else np.ones(len(index), np.int64)) for index in indexes]
    shares = [Fraction(str(weight)) for weight in weights]  # 0.1 as it was written
    scale = min(int(end[-1]) / share for end, share in zip(ends, shares, strict=True))
    chosen, moments = [], []
    for index, end, share in zip(indexes, ends, shares, strict=True):
        count = int(np.searchsorted(end, int(scale * share), side="right"))
        chosen.append(index[:count])
        # A sequence stands where its middle lies on its own run's way from 0 to 1.
        middles = end[:count] - np.diff(end[:count], prepend=0) / 2
        moments.append(middles / end[count - 1] if count else middles)
    order = np.argsort(np.concatenate(moments), kind="stable")
    mixed: NDArray[Any] = np.concatenate(chosen)[order]
    return mixed


def _check_weights(indexes: Sequence[NDArray[Any]], weights: Sequence[float]) -> None:
    if len(indexes) != len(weights):
        raise RecipeError(f"mix has {len(weights)} weights for {len(indexes)} runs; give one weight for each run")
    for place, (index, weight) in enumerate(zip(indexes, weights, strict=True)):
        if not (isfinite(weight) and weight > 0):
            raise RecipeError(f"proportion {place} of the mix is {weight}; give a number above 0")
        if not len(index):
            raise CorpusError(f"run {place} of the mix has no sequence to give; leave it out, or make it again")


# split


def split(index: NDArray[Any], *, validation: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (train, validation) sequences, each in the order of `index`; about the share `validation` is validation.

    Each key is asked by itself, so that a meta-document lies on the same side whatever the run, length or method.
    Raises RecipeError unless 0 < validation < 1.
    """
    held_out = _is_validation(index, validation, seed)
    return index[~held_out], index[held_out]


def split_apart(
    index: NDArray[Any],
    *,
    validation: float,
    seed: int,
    chunk_ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    corpora: Sequence[Hashable],
) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Split as `split` does, and leave out of train, and count, what shares a chunk with validation.

    Sequence i names chunk_ids[offsets[i]:offsets[i+1]]. `corpora[run]` says of which CHUNKS a run's ids speak (their
    fingerprint): ids of two runs are compared where it is equal. Where it is not, only the split by key holds.
    """
    held_out = _is_validation(index, validation, seed)
    owners = np.repeat(np.arange(len(index)), np.diff(offsets))
    corpus_of_run = np.array([list(corpora).index(corpus) for corpus in corpora])
    corpus = corpus_of_run[index["run"]][owners]
    is_shared = np.zeros(len(index), np.bool_)
    for number in np.unique(corpus):
        train, withheld = ((corpus == number) & (held_out[owners] == side) for side in (False, True))
        shared = np.isin(chunk_ids[train], chunk_ids[withheld])
        is_shared[owners[train][shared]] = True
    return index[~held_out & ~is_shared], index[held_out], int(is_shared.sum())


def _is_validation(index: NDArray[Any], validation: float, seed: int) -> NDArray[np.bool_]:
    if not 0 < validation < 1:
        raise RecipeError(f"validation={validation} is not a share; give a number between 0 and 1, such as 0.01")
    held_out: NDArray[np.bool_] = keyed_hash(index["key"], seed=seed, stage="split") < threshold_for(validation)
    return held_out


# pack
