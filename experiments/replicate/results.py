"""Results: `results.json` of experiments → `results.md` and its figures as SVG.

Every number on the page is computed from the JSON files; the page is the same to the
byte when it is written again. Its text is the template `page.md`. Hypotheses
(`hypotheses.yaml`) were written before the runs; each is followed by what a paired
t-test over the seeds says about it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from importlib.resources import files
from itertools import product
from math import sqrt
from operator import getitem
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final, NamedTuple

import jinja2
import yaml

from experiments.replicate import corpora
from experiments.replicate.recipe import CRITERION_NEGATIVES, recipe_from
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.evaluate.report import drawn, style
from nextlong.evaluate.tables import ScoreTable, as_markdown
from nextlong.text import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FOLDER: Final = "results"
_KINDS: Final = {
    "invented": {
        "hard": "hard negatives (same topic)",
        "random": "random negatives (other topics)",
    },
    "documents": {
        "hard": "hard negatives (same input document)",
        "random": "random negatives (other documents)",
    },
}


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

    def __str__(self) -> str:
        mean = _rounded(self.mean)
        return mean if self.half is None else f"{mean} ± {_rounded(self.half)}"


def _rounded(value: float) -> str:
    places = 2 if abs(value) >= 1 else 3
    # Rounded first, and 0.0 added, so that there is no "-0.000".
    return f"{round(value, places) + 0.0:.{places}f}"


class Results:
    """The finished models of an experiment.

    Those seeds only for which every arm is finished.

    many: the numbers of negatives that a short row cannot hold, those that the
        hypotheses are about
    few: those that it holds, without those of the base model's criterion
    leg_tokens, base_tokens: in millions, of a leg, and of each base model, sorted
    """

    def __init__(self, results: Json, *, origin: str) -> None:
        self.json = {"later": [], **results}
        self.recipe = results["recipe"]
        corpus = self.recipe["corpus"]
        pretrain = self.recipe["pretrain"]
        self.is_invented = corpus["kind"] == "invented"
        self.kinds = _KINDS[corpus["kind"]]
        sizes = corpora.Invented if self.is_invented else corpora.RealDocuments
        self.negative_tokens: int = sizes(**corpus).negative_tokens
        self.name = str(self.recipe["preset"])
        self.arms = ["base", *self.recipe["arms"]]
        self._models: dict[tuple[str, int], Json] = {}
        # Every model that was trained; a base model that seeds share once.
        trained: dict[str, Json] = {}
        for model in results["models"]:
            self._models[model["arm"], model["seed"]] = model
            trained[model["sha256"]] = model
        self.trained = list(trained.values())
        self.seeds = [seed for seed in self.recipe["seeds"] if self._is_finished(seed)]
        if not self.seeds:
            raise RunError(
                where=origin,
                problem="no seed is finished for every arm",
                fix="resume the experiment",
            )
        self.negatives: list[int] = sorted(self.recipe["measure"]["negatives"])
        self.many = [
            count
            for count in self.negatives
            if count * self.negative_tokens > pretrain["tokens"]
        ]
        self.few = [
            count
            for count in self.negatives
            if CRITERION_NEGATIVES < count < self.many[0]
        ]
        self.leg_tokens = float(pretrain["tokens_per_step"] * pretrain["steps"] / 1e6)
        base_legs = sorted(model["legs"] for model in self.models("base"))
        self.base_tokens = [self.leg_tokens * legs for legs in base_legs]
        self.source_names = [
            source["name"] or Path(source["path"]).name
            for source in corpus.get("sources", ())
        ]
        # The last positions of the parts of a row whose losses were measured.
        self.positions = list(self.models("base")[0]["measured"]["loss"])

    def _is_finished(self, seed: int) -> bool:
        return all((arm, seed) in self._models for arm in self.arms)

    def models(self, arm: str) -> list[Json]:
        """Return the models of an arm, by seed.

        A base model that all seeds share comes once.
        """
        is_shared = arm == "base" and self.recipe["pretrain"]["models"] == "one"
        seeds = self.seeds[:1] if is_shared else self.seeds
        return [self._models[arm, seed] for seed in seeds]

    def mean_recall(self, arm: str, kind: str, counts: Sequence[int]) -> list[float]:
        """Return the mean recall across some numbers of negatives, by seed."""
        means = []
        for model in self.models(arm):
            recall = model["measured"]["recall"][kind]
            means.append(fmean(recall[str(count)] for count in counts))
        return means

    def verdicts(self, counts: Sequence[int]) -> Iterator[str]:
        """Yield each hypothesis with what a paired t-test over the seeds says.

        95 %, two-sided.
        """
        file = files(__package__) / "hypotheses.yaml"
        claims = yaml.safe_load(file.read_text(encoding="utf-8"))
        for claim in claims[self.recipe["corpus"]["kind"]]:
            for other in claim["theirs"]:
                if {claim["ours"], other} <= set(self.arms):
                    verdict = self._verdict(claim, other, counts)
                    yield f"- {claim['text']} **{verdict}**"

    def _verdict(self, claim: Json, other: str, counts: Sequence[int]) -> str:
        """Return what the test of an arm against another one says, in a sentence."""
        ours = self.mean_recall(claim["ours"], claim["kind"], counts)
        theirs = self.mean_recall(other, claim["kind"], counts)
        # The difference of the two arms at each seed: both start from the same base
        # model, so the test is paired.
        differences = [own - rival for own, rival in zip(ours, theirs, strict=True)]
        gap = SeedMean.of(differences)
        figures = (
            f"{claim['ours']} {fmean(ours):.1f} %, {other} {fmean(theirs):.1f} %: "
            f"{gap.mean:+.1f} points"
        )
        if gap.half is None:
            return f"One seed, so not tested ({figures})."
        if abs(gap.mean) <= gap.half:
            outcome = "Not decided"
        elif gap.mean > 0:
            outcome = "Holds"
        else:
            outcome = "Fails, the opposite holds"
        standard_error = stdev(differences) / sqrt(len(differences))
        return f"{outcome} ({figures}, standard error {standard_error:.1f})."

    def spreads(self, *path: str) -> dict[str, SeedMean]:
        """Return a measurement of each arm, named by the keys of its JSON."""
        spreads = {}
        for arm in self.arms:
            models = self.models(arm)
            values = [reduce(getitem, path, model["measured"]) for model in models]
            spreads[arm] = SeedMean.of(values)
        return spreads

    def tables(self) -> str:
        """Return recall, losses, attention and costs as Markdown tables."""
        tables = []
        for kind, words in self.kinds.items():
            columns = {}
            for count in self.negatives:
                columns[str(count)] = self.spreads("recall", kind, str(count))
            tables.append(
                self._table(
                    f"Recall across {words}",
                    "Percent of values recalled, by the number of negatives between a "
                    "fact and its question.",
                    columns,
                )
            )
        losses = {part: self.spreads("loss", part) for part in self.positions}
        about = "Nats per token, up to this position."
        tables.append(self._table("Loss by position", about, losses))
        thirds = {}
        for kind, third in product(self.kinds, ("first", "last")):
            heading = f"{third} third, {kind} negatives"
            thirds[heading] = self.spreads("attention", kind, third)
        tables.append(
            self._table(
                "Attention by thirds",
                "Percent of the attention. The facts are in the first third, the earlier "
                "questions in the last.",
                thirds,
            )
        )
        tables.append(self._cost_table())
        return as_markdown(tables, level=3).rstrip()

    def _table(
        self, title: str, about: str, columns: dict[str, dict[str, SeedMean]]
    ) -> ScoreTable:
        rows = []
        for arm in self.arms:
            cells = tuple(str(column[arm]) for column in columns.values())
            rows.append((arm, cells))
        return ScoreTable(title, about, tuple(columns), tuple(rows), "parts")

    def _cost_table(self) -> ScoreTable:
        rows = []
        for arm in self.arms:
            models = self.models(arm)
            tokens = fmean(model["tokens"] for model in models)
            seconds = fmean(model["seconds"] for model in models)
            loss = fmean(model["loss"] for model in models)
            rows.append((arm, (f"{tokens:,.0f}", f"{seconds:,.0f}", loss)))
        return ScoreTable(
            "Cost",
            "Means over seeds. Base: the last leg only. Seconds: of the training steps, "
            "on one thread of a shared machine.",
            ("Tokens", "Seconds", "Training loss at the end"),
            tuple(rows),
            "parts",
        )

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
                # The sources are left out: they are paths of the machine that ran the
                # experiment.
                if name != "sources" and part != usual[key].get(name):
                    changed[f"{key}.{name}"] = part
        return [
            shlex.quote(f"{key}={json.dumps(value)}") for key, value in changed.items()
        ]


def write(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Write `results.md`, and `results/` with the JSON files and the figures.

    Return what was written into the folder.
    """
    parts = _read(sources)
    results = [Results(part, origin=name) for name, part in parts.items()]
    texts = {"results.md": page(results)}
    for experiment in results:
        for name, svg in _figures(experiment):
            texts[f"{_FOLDER}/{experiment.name}-{name}.svg"] = svg
    with store.explained(folder):
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            store.write_json(folder / _FOLDER / f"{name}.json", part)
        for name, text in texts.items():
            store.write_file(folder / name, text)
    written = [folder / name for name in texts]
    written += [folder / _FOLDER / f"{name}.json" for name in parts]
    return written


def _read(sources: Sequence[Path]) -> dict[str, Json]:
    """Return the results of files, by their presets."""
    parts: dict[str, Json] = {}
    for source in sources:
        content = store.read_json(source)
        if not isinstance(content, dict) or not {"recipe", "models"} <= content.keys():
            raise RunError(
                where=source,
                problem="it holds no results of python -m experiments.replicate",
                fix="give the results.json of its `out` folder",
            )
        preset = content["recipe"]["preset"]
        if preset in parts:
            raise RunError(
                where=source,
                problem=f"another file has results of the preset {preset} as well",
                fix="report them apart",
            )
        parts[preset] = content
    return parts


def page(results: Sequence[Results]) -> str:
    """Return the page as Markdown: the experiments one after the other."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = format
    file = files(__package__) / "page.md"
    template = environment.from_string(file.read_text(encoding="utf-8"))
    return template.render(experiments=results, corpora=corpora).rstrip() + "\n"


def _figures(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the name of each figure and its SVG."""
    draws: dict[str, Callable[[Figure], None]] = {}
    for kind in results.kinds:
        draws[f"recall-{kind}"] = partial(_draw_recall, results=results, kind=kind)
    draws["loss"] = partial(_draw_loss, results=results)
    draws["attention"] = partial(_draw_attention, results=results)
    for name, draw in draws.items():
        images = drawn(draw)
        assert images is not None, "each figure has something to draw"
        yield name, images[0] + "\n"


def _draw_recall(figure: Figure, *, results: Results, kind: str) -> None:
    columns = []
    for count in results.negatives:
        columns.append((count, results.spreads("recall", kind, str(count))))
    axes = _draw_lines(figure, results, columns, apart=0.12)
    axes.set_xscale("symlog", base=2, linthresh=2)
    axes.set_xticks(results.negatives, list(map(str, results.negatives)))
    axes.minorticks_off()
    axes.set(xlabel=results.kinds[kind], ylabel="recalled, percent", ylim=(0, 102))


def _draw_loss(figure: Figure, *, results: Results) -> None:
    spreads = [results.spreads("loss", part) for part in results.positions]
    axes = _draw_lines(figure, results, list(enumerate(spreads)))
    labels = [f"to {part}" for part in results.positions]
    axes.set_xticks(range(len(labels)), labels)
    axes.set(xlabel="position in the row, tokens", ylabel="loss, nats a token")


def _draw_lines(
    figure: Figure,
    results: Results,
    columns: Sequence[tuple[float, dict[str, SeedMean]]],
    *,
    apart: float = 0.0,
) -> Axes:
    """Draw a line with error bars for each arm."""
    axes = figure.subplots()
    for index, arm in enumerate(results.arms):
        # Lines of different arms are moved apart, so that their error bars do not hide
        # each other.
        x = [position + index * apart for position, _ in columns]
        spreads = [column[arm] for _, column in columns]
        axes.errorbar(
            x,
            [spread.mean for spread in spreads],
            yerr=[spread.half or 0.0 for spread in spreads],
            label=arm,
            **style(index),
            elinewidth=0.8,
            capsize=2,
            linestyle="-" if index < 7 else "--",
        )
    figure.legend(loc="outside right upper", fontsize=7)
    return axes


def _draw_attention(figure: Figure, *, results: Results) -> None:
    """Draw two bars for each arm: the attention on the first and on the last third."""
    axes = figure.subplots()
    for index, third in enumerate(("first", "last")):
        spreads = results.spreads("attention", "hard", third).values()
        axes.barh(
            [row + 0.4 * index for row in range(len(spreads))],
            [spread.mean for spread in spreads],
            0.38,
            xerr=[spread.half or 0.0 for spread in spreads],
            label=f"{third} third",
            color=style(index)["color"],
        )
    middles = [row + 0.2 for row in range(len(results.arms))]
    axes.set_yticks(middles, results.arms, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("percent of the attention, across hard negatives")
    axes.legend(fontsize=8)
