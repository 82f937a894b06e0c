"""Results: the JSON files of presets → a section of `results.md`, and its figure.

Every number of the section is computed from the JSON files; it is the same to the byte
when it is written again. Its text is the template `page.md`. The planned tests
(`planned.yaml`) were written before any arm was trained.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jinja2
import yaml

from experiments.replicate import corpus
from experiments.replicate.corpus import Kind
from experiments.replicate.recipe import PRESETS, recipe_from
from experiments.replicate.small_llama import KINDS
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.picture.plots import drawn, style
from nextlong.significance import holm
from nextlong.text import Json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE: Final = "results.md"
_FOLDER: Final = "results"
FIGURE: Final = f"{_FOLDER}/mechanism.svg"
_MAIN: Final = "mechanism"
_COLUMNS: Final = 4  # of the table, by kind: the largest numbers of negatives
_TRIAL: Final = "smoke"  # shows that every part works; no part of the plan
# What the report writes of the page; what stands before and after is kept.
_BEGIN: Final = "<!-- python -m experiments.replicate report: begin -->"
_END: Final = "<!-- python -m experiments.replicate report: end -->"
_SIGNIFICANT: Final = 0.05
# The planned tests are about the mean recall across these numbers of negatives.
TESTED: Final = (4, 8)
_KIND_NAMES: Final[Mapping[Kind, str]] = {
    "same": "look-alikes",
    "far": "unrelated paragraphs",
}
# The arms of every preset.
_FOUR: Final = ("top", "mixed", "random-corpus", "unrelated only")
_DRAWN: Final = ("base", "top", "mixed", "random-corpus", "unrelated only", "standard")


class SeedMean(NamedTuple):
    """A mean over seeds, and half of its 95 % interval (t distribution).

    None for a single seed.
    """

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedMean:
        from scipy.stats import t

        count = len(values)
        if count < 2:
            return cls(fmean(values), None)
        quantile = float(t.ppf(0.975, count - 1))
        return cls(fmean(values), quantile * stdev(values) / sqrt(count))


class Results:
    """The finished models of a preset."""

    def __init__(self, results: Json) -> None:
        self.json = results
        self.recipe = results["recipe"]
        self.name = str(self.recipe["preset"])
        self._models: dict[tuple[str, int], Json] = {}
        for model in results["models"]:
            self._models[model["arm"], model["seed"]] = model
        trained = dict.fromkeys(arm for arm, _ in self._models)
        self.arms = list(trained)
        self.negatives: list[int] = sorted(self.recipe["measure"]["negatives"])

    @property
    def missing(self) -> list[str]:
        """The arms of the recipe of which no model is finished."""
        return [arm for arm in self.recipe["arms"] if arm not in self.arms]

    @property
    def models(self) -> list[Json]:
        return list(self._models.values())

    def seeds(self, arm: str) -> list[int]:
        """Return the seeds for which an arm is finished."""
        return [seed for name, seed in self._models if name == arm]

    def recall(self, arm: str, seed: int, kind: str, counts: Iterable[int]) -> float:
        """Return the mean recall of a model across some numbers of negatives."""
        recall = self._models[arm, seed]["measured"]["recall"][kind]
        return fmean(recall[str(count)] for count in counts)

    def spread(self, arm: str, kind: str, count: int) -> SeedMean:
        """Return the recall of an arm across a number of negatives."""
        values = [self.recall(arm, seed, kind, [count]) for seed in self.seeds(arm)]
        return SeedMean.of(values)

    def mean(self, arm: str, kind: Kind) -> float:
        """Return the mean recall of an arm across the numbers that tests are about."""
        return fmean(self.recall(arm, seed, kind, TESTED) for seed in self.seeds(arm))

    def mean_text(self, arm: str, kind: Kind) -> str:
        """Return `mean` as a cell of a table, empty if no seed is finished."""
        return f"{self.mean(arm, kind):.0f}" if self.seeds(arm) else ""

    def cell(self, arm: str, kind: Kind, count: int) -> str:
        """Return the mean recall of an arm as a cell of the table."""
        mean = f"{self.spread(arm, kind, count).mean:.0f}"
        return f"({mean})" if self.is_guess(kind, count) else mean

    def loss(self, arm: str) -> SeedMean:
        """Return the loss of an arm on held-out documents, in nats per token."""
        losses = [
            self._models[arm, seed]["measured"]["loss"] for seed in self.seeds(arm)
        ]
        return SeedMean.of(losses)

    def look_alikes(self, arm: str) -> str:
        """Return the percent of look-alikes among the negatives of an arm."""
        percent = self.json["look_alikes"].get(arm)
        return "" if percent is None else f"{percent:.0f}"

    def is_guess(self, kind: Kind, count: int) -> bool:
        """Return whether no arm recalls more than a guess, by its interval.

        A guess takes a value of the family, or, across look-alikes, one of the values
        that the row states with the relation.
        """
        guess = 100 / corpus.VALUES
        if kind == "same":
            guess = 100 / (count + 1)
        for arm in self.arms:
            spread = self.spread(arm, kind, count)
            if spread.mean - (spread.half or 0.0) > guess:
                return False
        return True

    def settings(self) -> list[str]:
        """Return what differs from the preset, as arguments of `--set`, quoted."""
        usual = recipe_from(self.name, out="OUT").model_dump(mode="json")
        changed: dict[str, object] = {}
        for key, value in self.recipe.items():
            if not isinstance(value, dict):
                if value != usual[key]:
                    changed[key] = value
                continue
            for name, part in value.items():
                if part != usual[key].get(name):
                    changed[f"{key}.{name}"] = part
        return [
            shlex.quote(f"{key}={json.dumps(value)}") for key, value in changed.items()
        ]


@dataclass(frozen=True)
class PlannedTest:
    """A planned test, and what the seeds say about it.

    differences: one of each seed, in points
    p_holm: after Holm's correction for all planned tests that were run
    """

    claim: str
    preset: str
    differences: Sequence[float]
    p_holm: float

    @property
    def short(self) -> str:
        """The letter of the claim, and what is compared: the part behind the colon."""
        letter, _, _ = self.claim.partition(" ")
        *_, compared = self.claim.split(": ")
        text = compared.removeprefix(f"{letter} ").rstrip(".")
        return f"{letter} {text}"

    @property
    def spread(self) -> SeedMean:
        return SeedMean.of(self.differences)

    @property
    def p_text(self) -> str:
        return "< 0.001" if self.p_holm < 0.001 else f"{self.p_holm:.3f}"

    @property
    def verdict(self) -> str:
        if self.p_holm >= _SIGNIFICANT:
            return "not decided"
        return "holds" if self.spread.mean > 0 else "the opposite holds"


def planned_tests(results: Mapping[str, Results]) -> list[PlannedTest]:
    """Return the planned tests of the presets that were run, in the order of the plan.

    A test for which fewer than two seeds are finished is left out.
    """
    plan = yaml.safe_load((files(__package__) / "planned.yaml").read_text("utf-8"))
    found: list[tuple[str, str, list[float]]] = []
    for test in plan:
        for preset in test["presets"]:
            differences = _differences(test, preset, results)
            if len(differences) > 1:
                found.append((test["claim"], preset, differences))
    corrected = holm([p_value(differences) for *_, differences in found])
    tests = []
    for (claim, preset, differences), p_holm in zip(found, corrected, strict=True):
        tests.append(PlannedTest(claim, preset, differences, p_holm))
    return tests


def _differences(
    test: Mapping[str, Any], preset: str, results: Mapping[str, Results]
) -> list[float]:
    """Return the difference of each seed that has all models of a test."""
    of_presets = [_by_seed(test, results.get(preset))]
    if "less" in test:
        of_presets.append(_by_seed(test, results.get(test["less"])))
    first, *others = of_presets
    differences = []
    for seed, difference in first.items():
        if all(seed in other for other in others):
            less = sum(other[seed] for other in others)
            differences.append(difference - less)
    return differences


def _by_seed(test: Mapping[str, Any], results: Results | None) -> dict[int, float]:
    if results is None:
        return {}
    terms = [*test["plus"], *test["minus"]]
    seeds = set(results.seeds("base"))
    for arm, _ in terms:
        seeds &= set(results.seeds(arm))
    differences = {}
    for seed in sorted(seeds):
        recalls = [results.recall(arm, seed, kind, TESTED) for arm, kind in terms]
        count = len(test["plus"])
        total = sum(recalls[:count]) - sum(recalls[count:])
        differences[seed] = test.get("scale", 1.0) * total
    return differences


def p_value(differences: Sequence[float]) -> float:
    """Return p of the t-test that the mean difference is 0, two-sided."""
    from scipy.stats import t

    deviation = stdev(differences)
    if not deviation:
        return 1.0 if not fmean(differences) else 0.0
    statistic = fmean(differences) / (deviation / sqrt(len(differences)))
    return float(2 * t.sf(abs(statistic), len(differences) - 1))


def write(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Write the section of `results.md`, the JSON files and the figure.

    Return what was written into the folder.
    """
    parts = _read(sources)
    results = {name: Results(part) for name, part in parts.items()}
    if _MAIN not in results:
        # A trial, such as `smoke`: its own tables and tests.
        results = {_MAIN: next(iter(results.values()))}
    page = folder / PAGE
    with store.explained(folder):
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            store.write_json(folder / _FOLDER / f"{name}.json", part)
        images = drawn(_draw, results=results[_MAIN])
        assert images is not None, "there is always something to draw"
        store.write_file(folder / FIGURE, images.svg + "\n")
        existing = page.read_text(encoding="utf-8") if page.exists() else ""
        store.write_file(page, _placed(section(results), existing))
    return [
        page,
        folder / FIGURE,
        *(folder / _FOLDER / f"{name}.json" for name in parts),
    ]


def _placed(section: str, existing: str) -> str:
    """Return a page with the section between its marks, all else as it was."""
    text = f"{_BEGIN}\n\n{section}\n{_END}\n"
    if _BEGIN not in existing or _END not in existing:
        return text
    before, _, rest = existing.partition(_BEGIN)
    _, _, after = rest.partition(f"{_END}\n")
    return before + text + after


def _read(sources: Sequence[Path]) -> dict[str, Json]:
    """Return the results of files, by their presets."""
    parts: dict[str, Json] = {}
    for source in sources:
        content = store.read_json(source)
        if not isinstance(content, dict) or not {"recipe", "models"} <= content.keys():
            raise RunError(
                where=source,
                problem="it holds no results of python -m experiments.replicate",
                fix="give a PRESET.json of its `out` folder",
            )
        preset = content["recipe"]["preset"]
        if preset in parts:
            raise RunError(
                where=source,
                problem=f"another file has results of the preset {preset} as well",
                fix="report them apart",
            )
        parts[preset] = content
    return {name: parts[name] for name in PRESETS if name in parts}


def section(results: Mapping[str, Results]) -> str:
    """Return the section of the page as Markdown."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = format
    template = environment.from_string(
        (files(__package__) / "page.md").read_text(encoding="utf-8")
    )
    main = results[_MAIN]
    others = [part for name, part in results.items() if name != _MAIN]
    text = template.render(
        main=main,
        others=others,
        four=_FOUR,
        shown=main.negatives[-_COLUMNS:],
        not_run=[name for name in PRESETS if name not in {*results, _TRIAL}],
        trained=_trained([main, *others]),
        tests=planned_tests(results),
        corpus=corpus,
        kinds=KINDS,
        figure=FIGURE,
    )
    return text.rstrip() + "\n"


def _trained(parts: Sequence[Results]) -> list[Json]:
    """Return every model once, also where presets share it."""
    trained: dict[str, Json] = {}
    for part in parts:
        for model in part.models:
            trained[model["sha256"]] = model
    return list(trained.values())


def _draw(figure: Figure, *, results: Results) -> None:
    """Draw the recall of some arms across look-alikes and unrelated paragraphs."""
    axes = figure.subplots(1, 2, sharey=True)
    arms = [arm for arm in _DRAWN if arm in results.arms]
    for panel, kind in zip(axes, KINDS, strict=True):
        for index, arm in enumerate(arms):
            spreads = [results.spread(arm, kind, n) for n in results.negatives]
            panel.errorbar(
                # Moved apart, so that error bars do not hide each other.
                [count + 0.08 * index for count in results.negatives],
                [spread.mean for spread in spreads],
                yerr=[spread.half or 0.0 for spread in spreads],
                label=arm if kind == KINDS[0] else None,
                **style(index),
                elinewidth=0.8,
                capsize=2,
            )
        for count in results.negatives:
            if results.is_guess(kind, count):
                panel.axvspan(count - 0.5, count + 0.8, color="0.9", zorder=0)
        panel.set_xticks(results.negatives, list(map(str, results.negatives)))
        panel.set(xlabel=_KIND_NAMES[kind], ylim=(0, 102))
    axes[0].set_ylabel("facts recalled, percent")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
