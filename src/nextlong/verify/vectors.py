"""Vectors: one a chunk, of unit length, and on a sample the encoder's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.embed.base import Encoder, kind_of, load_encoder
from nextlong.errors import NextlongError
from nextlong.schemas import SHARD_BITS
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import Ids
from nextlong.verify.marks import chunk_name
from nextlong.verify.outcome import Outcome

_LEAST_COSINE = 0.999  # half precision moves a cosine by less than 0.001
_LENGTH_TOLERANCE = 0.01
_BLOCK_ROWS = 32_768
_AT_ONCE = 4096


def check_vectors(run: Artefacts, *, sample: int, seed: int) -> list[Outcome]:
    """Check the shape and length of all vectors, and encode `sample` random chunks again."""
    if "embed" not in run.steps:
        return [Outcome("vectors", "vectors", not_needed="this run has none")]
    lengths, again = Outcome("vectors have unit length", "vectors"), Outcome("vectors encoded again", "vectors")
    sizes: list[int] = []
    for shard, path in enumerate(run.files("embed", ".vectors.npy")):
        rows = len(run.chunks(shard)["start"])
        sizes.append(rows)
        _check_lengths(path, shard, rows, lengths)
    drawn = np.sort(np.random.default_rng(seed).permutation(sum(sizes))[:sample])
    stops = np.cumsum(sizes)
    shards = np.searchsorted(stops, drawn, side="right")
    ids = (shards << SHARD_BITS) + drawn - (stops - np.array(sizes, np.int64))[shards]
    if len(ids):
        _encode_again(run, ids, again)
    return [lengths, again]


def _check_lengths(path: Path, shard: int, rows: int, outcome: Outcome) -> None:
    stored = np.load(path, mmap_mode="r")
    outcome.checked += len(stored)
    if len(stored) != rows:
        outcome.breach(f"shard {shard} has {len(stored)} vectors for {rows} chunks")
    for first in range(0, len(stored), _BLOCK_ROWS):
        lengths = np.linalg.norm(stored[first : first + _BLOCK_ROWS].astype(np.float32), axis=1)
        for row in np.flatnonzero(~(np.abs(lengths - 1) < _LENGTH_TOLERANCE)).tolist():
            outcome.breach(
                f"the vector of {chunk_name(shard << SHARD_BITS | first + row)} has the length {lengths[row]:.4f}"
            )


def _encode_again(run: Artefacts, ids: Ids, outcome: Outcome) -> None:
    encoder = recipe.Encoder.model_validate(run.recipe["encoder"])
    kind = kind_of(encoder)
    if kind.not_repeatable:
        outcome.skipped = f"{encoder.model} {kind.not_repeatable}"
        return
    try:
        fitted = run.steps["encoder"].folder / "part-00000" if kind.needs_fit else None
        model = load_encoder(encoder, fitted=fitted)
        cosines = np.concatenate(
            [_cosines(run, model, ids[first : first + _AT_ONCE]) for first in range(0, len(ids), _AT_ONCE)]
        )
    except NextlongError as error:
        outcome.skipped = str(error)
        return
    outcome.checked = len(ids)
    outcome.note = f"least cosine {cosines.min():.6f}"
    for place in np.flatnonzero(~(cosines >= _LEAST_COSINE)).tolist():
        outcome.breach(
            f"the vector of {chunk_name(ids[place])} has the cosine {cosines[place]:.4f} to the one encoded now"
        )


def _cosines(run: Artefacts, model: Encoder, ids: Ids) -> NDArray[np.float32]:
    """Return the cosine of each chunk's stored vector to the one that the encoder makes of its text now."""
    texts = run.texts_of(ids)
    true = model.encode([texts[name] for name in ids.tolist()])
    stored = run.vectors_of(ids)
    lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(true, axis=1)
    cosines: NDArray[np.float32] = np.einsum("nd,nd->n", stored, true) / np.maximum(lengths, 1e-12)
    return cosines
