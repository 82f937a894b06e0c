"""Components: to which component of a mixture each sequence belongs, and its weight.

In:  SEQUENCE_INDEX of one or more runs, and a `Mixture`.
Out: numbers of components, (sequences,), and a weight for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from nextlong.arrays import AnyArray, Ints
from nextlong.artifacts.blocks import labels_of
from nextlong.artifacts.sequence_files import SequenceFiles
from nextlong.errors import RecipeError
from nextlong.export.mixture import Mixture

# Of a sequence whose document has no value in the column.
_UNLABELLED: Final = "none"
_KILO_BITS: Final = 10  # 2¹⁰ tokens are "1k"
_MEGA_BITS: Final = 20


def bucket_name(tokens: int) -> str:
    """Return the length bucket of a sequence, a power of two and the next.

    "8k-16k" holds 8,192 to 16,383 tokens.
    """
    bits = max(tokens, 1).bit_length() - 1
    return f"{_power_of_two(bits)}-{_power_of_two(bits + 1)}"


def _power_of_two(bits: int) -> str:
    if bits >= _MEGA_BITS:
        return f"{1 << (bits - _MEGA_BITS)}M"
    if bits >= _KILO_BITS:
        return f"{1 << (bits - _KILO_BITS)}k"
    return str(1 << bits)


def buckets_of(lengths: AnyArray) -> Ints:
    """Return the power of two at or below each length, as its exponent, (n,)."""
    # frexp is exact where a logarithm rounds: n = m · 2^e with 1/2 <= m < 1.
    _, exponents = np.frexp(np.maximum(lengths, 1).astype(np.float64))
    buckets: Ints = exponents.astype(np.int64) - 1
    return buckets


def component_of(
    index: AnyArray, runs: Sequence[SequenceFiles], components: str
) -> tuple[list[str], Ints]:
    """Return the names of the components, and the number of each sequence's, (n,).

    Runs and length buckets ascend, others are sorted by name. Raises RecipeError for a
    metadata column that no document has.
    """
    if components == "runs":
        names = [f"run {number}" for number in range(len(runs))]
        return names, index["run"].astype(np.int64)
    if components == "lengths":
        exponents, numbers = np.unique(buckets_of(index["length"]), return_inverse=True)
        return [bucket_name(1 << bits) for bits in exponents.tolist()], numbers
    column = "source" if components == "sources" else components
    labels = labels_of(index, runs, column=column)
    is_missing = np.array([label is None for label in labels], np.bool_)
    if len(labels) and is_missing.all():
        raise RecipeError(
            where="--components",
            value=components,
            problem="is not a metadata column of the documents",
            fix="name it in the `metadata` of the sources, or choose runs, lengths or "
            "sources",
        )
    labels[is_missing] = _UNLABELLED
    distinct, numbers = np.unique(labels.astype(str), return_inverse=True)
    return distinct.tolist(), numbers


def weights_of(
    mixture: Mixture, names: Sequence[str], sizes: Sequence[int]
) -> dict[str, float]:
    """Return the weight of each component of the mixture, by its name.

    `sizes` are those of the components `names`, in the mixture's unit. A component that
    the user names may be none of these.
    """
    if mixture.temperature is not None:
        tempered = {}
        for name, size in zip(names, sizes, strict=True):
            # A split may have no sequence of a component.
            if size:
                tempered[name] = float(size**mixture.temperature)
        return tempered
    if not mixture.names:
        return dict(zip(names, mixture.weights, strict=True))
    return dict(zip(mixture.names, mixture.weights, strict=True))
