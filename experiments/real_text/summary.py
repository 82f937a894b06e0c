"""Summary: means and intervals over documents, and the tests that were planned.

In:  the documents that `measure.py` scored.
Out: `summary`, plain data for JSON, and `page`, its part of the page of results.

A mean is over tokens: the sum over all documents by their number of tokens. Intervals
come from a bootstrap over documents, the unit of sampling, with the same resamples for
all arms, so that differences between arms are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.real_text.measure import ALL, ARMS, COMMON, GROUPS
from nextlong.rng import rng_for
from nextlong.text import Json

_RESAMPLES: Final = 10_000
_LEVEL: Final = 0.95

_Floats = NDArray[np.float64]


class Measure(NamedTuple):
    """A quantity per token: the difference of two sums of losses, or one sum."""

    name: str
    plus: str
    minus: str | None = None


LOSS: Final = Measure("loss", "loss")
GAIN: Final = Measure("gain", "replaced", "loss")
ADDED: Final = Measure("loss − document alone", "loss", "alone")
MEASURES: Final = (LOSS, GAIN, ADDED)


class Planned(NamedTuple):
    """A comparison that was planned before the first document was scored.

    `left` and `right` are (arm, group) pairs.
    """

    question: str
    measure: Measure
    left: tuple[str, str]
    right: tuple[str, str]


_TOP: Final = "top"
_RANDOM: Final = "random-corpus"
_MIXED: Final = "mixed"
PLANNED: Final = (
    Planned(
        "Do hard negatives lower the mean loss?",
        LOSS,
        (_TOP, ALL),
        (_RANDOM, ALL),
    ),
    Planned(
        "Do they lower the mean gain of the own chunks?",
        GAIN,
        (_TOP, ALL),
        (_RANDOM, ALL),
    ),
    Planned(
        "Among hard negatives, is the gain higher on words that only the own chunks "
        "have?",
        GAIN,
        (_TOP, COMMON),
        (_TOP, ALL),
    ),
    Planned(
        "On these words, does the gain differ between hard and random negatives?",
        GAIN,
        (_TOP, COMMON),
        (_RANDOM, COMMON),
    ),
    Planned(
        "On these words, do hard negatives add more loss than random ones?",
        ADDED,
        (_TOP, COMMON),
        (_RANDOM, COMMON),
    ),
    Planned(
        "On these words, does the gain differ between a mixture and hard negatives?",
        GAIN,
        (_MIXED, COMMON),
        (_TOP, COMMON),
    ),
)


class _Resampled(NamedTuple):
    """A mean, and its values in the resamples, (resamples,)."""

    mean: float
    values: _Floats

    def less(self, other: _Resampled) -> _Resampled:
        return _Resampled(self.mean - other.mean, self.values - other.values)

    def as_json(self) -> Json:
        """Return the mean and its interval; None for a mean over no tokens."""
        if not np.isfinite(self.values).any():
            return dict.fromkeys(("mean", "low", "high"))
        tail = 50 * (1 - _LEVEL)
        low, high = np.nanpercentile(self.values, [tail, 100 - tail]).tolist()
        return {"mean": self.mean, "low": low, "high": high}

    def p_value(self) -> float:
        """Return the two-sided p-value of 0, of a normal bootstrap distribution.

        Counting resamples beyond 0 could give no p-value below their number.
        """
        from scipy.stats import norm

        is_finite = np.isfinite(self.values)
        error = float(self.values[is_finite].std()) if is_finite.any() else 0.0
        if not error > 0:
            return 1.0
        return float(2 * norm.sf(abs(self.mean) / error))


def summary(records: Sequence[Json], setting: Json) -> Json:
    """Return means with intervals by arm and group, and the planned comparisons."""
    counts = _resample_counts(len(records))
    means: dict[str, Json] = {}
    for arm in ARMS:
        means[arm] = {"gap": float(np.mean([_arm(one, arm)["gap"] for one in records]))}
        for group in GROUPS:
            tokens = _column(records, arm, group, "tokens")
            of_group: Json = {
                "tokens": int(tokens.sum()),
                "documents": int((tokens > 0).sum()),
            }
            for measure in MEASURES:
                resampled = _resampled(records, arm, group, measure, counts)
                of_group[measure.name] = resampled.as_json()
            means[arm][group] = of_group
    return {
        "setting": setting | {"documents": len(records)},
        "tokens": sum(record["tokens"] for record in records),
        "means": means,
        "planned": _planned(records, counts),
    }


def _resample_counts(documents: int) -> _Floats:
    """Return how often each resample has each document, (resamples, documents)."""
    rng = rng_for(0, "real text", documents)
    shares = np.full(documents, 1 / documents)
    return rng.multinomial(documents, shares, size=_RESAMPLES).astype(np.float64)


def _arm(record: Json, arm: str) -> Json:
    of_arm: Json = record["arms"][arm]
    return of_arm


def _column(records: Sequence[Json], arm: str, group: str, name: str) -> _Floats:
    values = [_arm(record, arm)[group][name] for record in records]
    return np.array(values, np.float64)


def _resampled(
    records: Sequence[Json], arm: str, group: str, measure: Measure, counts: _Floats
) -> _Resampled:
    tokens = _column(records, arm, group, "tokens")
    sums = _column(records, arm, group, measure.plus)
    if measure.minus is not None:
        sums = sums - _column(records, arm, group, measure.minus)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (counts @ sums) / (counts @ tokens)
        mean = float(sums.sum() / tokens.sum())
    return _Resampled(mean, values)


def _planned(records: Sequence[Json], counts: _Floats) -> list[Json]:
    """Return the planned comparisons, with p-values adjusted by Holm's procedure."""
    compared = []
    for planned in PLANNED:
        left = _resampled(records, *planned.left, planned.measure, counts)
        right = _resampled(records, *planned.right, planned.measure, counts)
        difference = left.less(right)
        compared.append(
            {
                "question": planned.question,
                "measure": planned.measure.name,
                "left": list(planned.left),
                "right": list(planned.right),
                **difference.as_json(),
                "p": difference.p_value(),
            }
        )
    highest = 0.0
    by_p = sorted(compared, key=lambda one: float(one["p"]))
    for rank, one in enumerate(by_p):
        # Holm: the k-th smallest times the number of those not smaller, ascending.
        highest = max(highest, min(1.0, (len(by_p) - rank) * float(one["p"])))
        one["p_holm"] = highest
    return compared


# What the page shows: a group, its heading, and the measures of its tokens.
_SHOWN: Final[Sequence[tuple[str, str, Sequence[Measure]]]] = (
    (ALL, "all tokens", (LOSS, GAIN)),
    ("only own", "own words", (GAIN,)),
    (COMMON, "own words of every arm", (GAIN, ADDED)),
)
_HEADINGS: Final = {group: heading for group, heading, _ in _SHOWN}


def page(found: Json) -> str:
    """Return the table and the planned differences for the page, in Markdown."""
    means = found["means"]
    lines = [f"| nats per token | {' | '.join(ARMS)} |", f"|{'---|' * (len(ARMS) + 1)}"]
    for group, heading, measures in _SHOWN:
        of_arms = [means[arm][group] for arm in ARMS]
        for measure in measures:
            cells = " | ".join(_interval(of_arm[measure.name]) for of_arm in of_arms)
            lines.append(f"| {heading}: {measure.name} | {cells} |")
        if group not in (ALL, COMMON):
            shares = [of_arm["tokens"] / found["tokens"] for of_arm in of_arms]
            cells = " | ".join(f"{share:.1%}" for share in shares)
            lines.append(f"| {heading}: share | {cells} |")
    lines += ["", "Planned differences, p after Holm's procedure:", ""]
    for planned in found["planned"]:
        sides = [
            f"{arm}, {_HEADINGS[group]}"
            for arm, group in (planned["left"], planned["right"])
        ]
        lines.append(
            f"- {planned['measure']}: {' − '.join(sides)}: **{_interval(planned)}**, "
            f"p {_p_value(planned['p_holm'])}"
        )
    return "\n".join(lines) + "\n"


def _interval(found: Mapping[str, Any]) -> str:
    """Return a mean with the larger half of its interval."""
    if found["mean"] is None:
        return "–"
    half = max(found["high"] - found["mean"], found["mean"] - found["low"])
    return f"{found['mean']:.2f}±{half:.2f}"


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
