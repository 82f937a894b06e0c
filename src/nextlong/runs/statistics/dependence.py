"""Dependence: how much a model needs the earlier meta-chunks, over a whole run.

In:  DEPENDENCE of a run that was filtered by it, or any finished run and a model.
Out: `DependenceStats`; `sequences/dependence.py` has the measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from nextlong.artifacts.blocks import resolve
from nextlong.recipe.keys import Scorer
from nextlong.retrieval.surprisal import SurprisalModel
from nextlong.runs.public_recipe import hub_name
from nextlong.runs.run import Run
from nextlong.runs.statistics.stats import DependenceStats, GapGain
from nextlong.runs.statistics.tally import Tally
from nextlong.sequences.dependence import Dependence, mean_gain
from nextlong.sequences.verify_dependence import DependenceFiles, dependence_of_block

# Gains are counted as multiples of this.
_GAIN_UNIT: Final = 0.01
# Bins of a quarter of a nat.
_GAIN_EDGES: Final = np.arange(-1000, 2001, 25)


def measure_dependence(run: Run, scorer: Scorer) -> DependenceStats:
    """Return the dependence of all sequences of a finished run, by a model."""
    model = SurprisalModel(scorer)
    found: list[list[Dependence]] = []
    for part, take in enumerate(run.sequences_per_part):
        for block in resolve(run.files, part, take=take):
            found += dependence_of_block(model, block, run.files)
    return summarize(found, model=model.name)


def stored_dependence(run: Run) -> DependenceStats | None:
    """Return the dependence of the sequences that a run composed, kept or not.

    None if the run does not verify it.
    """
    min_gain = run.recipe.compose.verify_dependence
    if min_gain is None:
        return None
    found: list[list[Dependence]] = []
    for path in DependenceFiles.of(run.steps).dependence:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for row in reader.read_all().to_pylist():
                columns = (row[name] for name in Dependence._fields)
                found.append([*map(Dependence, *columns)])
    return summarize(found, model=str(run.recipe.scorer.model), min_gain=min_gain)


def summarize(
    found: Iterable[list[Dependence]], *, model: str, min_gain: float | None = None
) -> DependenceStats:
    """Return the statistics of measured sequences, given their later meta-chunks."""
    gains: list[float] = []
    counted = Tally()
    tokens = Tally()
    by_gap: dict[int, list[Dependence]] = {}
    sequences = 0
    kept = 0
    for chunks in found:
        sequences += 1
        gain = mean_gain(chunks)
        if not np.isnan(gain):
            gains.append(gain)
            counted.add(np.array([round(gain / _GAIN_UNIT)]))
        kept += min_gain is None or gain > min_gain
        tokens.add(np.array([chunk.tokens for chunk in chunks], np.int64))
        for chunk in chunks:
            by_gap.setdefault(chunk.gap.bit_length(), []).append(chunk)
    of_gaps = []
    for power, chunks in sorted(by_gap.items()):
        of_gaps.append(
            GapGain(
                low=(1 << power) >> 1,
                high=(1 << power) - 1,
                meta_chunks=len(chunks),
                tokens=sum(chunk.tokens for chunk in chunks),
                gain=_or_none(mean_gain(chunks)),
            )
        )
    return DependenceStats(
        model=hub_name(model) if Path(model).suffix != ".gguf" else Path(model).name,
        min_gain=min_gain,
        sequences=sequences,
        kept=kept,
        tokens=tokens.spread(),
        gain=counted.distribution(edges=_GAIN_EDGES, unit=_GAIN_UNIT),
        standard_error=_standard_error(gains),
        by_gap=tuple(of_gaps),
    )


def _standard_error(gains: Sequence[float]) -> float | None:
    if len(gains) < 2:
        return None
    return float(np.std(gains, ddof=1)) / math.sqrt(len(gains))


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
