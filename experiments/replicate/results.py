"""Results: `results.json` of experiments → `results.md` and its figures as SVG.

Every number on the page is computed from the JSON files; the page is the same to the byte when it is written again. Its text is
the template `page.md`. Hypotheses (`hypotheses.yaml`) were written before the runs; each is followed by what a paired t-test over
the seeds says about it.
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
_COSTS: Final = ("tokens", "seconds", "loss")
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


class _SeedMean(NamedTuple):
    """A mean over seeds, and half of its 95 % interval (t distribution); None for a single seed."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> _SeedMean:
        from scipy.stats import t

        if len(values) < 2:
            return cls(fmean(values), None)
        return cls(
            fmean(values),
            float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values)),
        )

    def __str__(self) -> str:
        # Rounded first, and 0.0 added, so that there is no "-0.000".
        digits = [
            (value, 2 if abs(value) >= 1 else 3) for value in self if value is not None
        ]
        return " ± ".join(
            f"{round(value, places) + 0.0:.{places}f}" for value, places in digits
        )


class Results:
    """The finished models of an experiment, those seeds only for which every arm is finished.

    `many`: the numbers of negatives that a short row cannot hold, those that the hypotheses are about; `few`: those that it holds,
    without those of the base model's criterion. In millions: `leg_tokens` of a leg, `base_tokens` of each base model, sorted.
    """

    def __init__(self, results: Json, *, origin: str) -> None:
        self.json = {"later": [], **results}
        self.recipe = results["recipe"]
        corpus, pretrain = self.recipe["corpus"], self.recipe["pretrain"]
        self.is_invented, self.kinds = (
            corpus["kind"] == "invented",
            _KINDS[corpus["kind"]],
        )
        sizes = corpora.Invented if self.is_invented else corpora.RealDocuments
        self.negative_tokens: int = sizes(**corpus).negative_tokens
        self.name, self.arms = (
            str(self.recipe["preset"]),
            ["base", *self.recipe["arms"]],
        )
        self._models: dict[tuple[str, int], Json] = {
            (one["arm"], one["seed"]): one for one in results["models"]
        }
        self.seeds = [
            seed
            for seed in self.recipe["seeds"]
            if all((arm, seed) in self._models for arm in self.arms)
        ]
        if not self.seeds:
            raise RunError(
                f"{origin}: no seed is finished for every arm; resume the experiment"
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
        self.base_tokens = [
            self.leg_tokens * legs
            for legs in sorted(model["legs"] for model in self.models("base"))
        ]
        self.source_names = [
            source["name"] or Path(source["path"]).name
            for source in corpus.get("sources", ())
        ]
        # Every model that was trained; a base model that seeds share once.
        self.trained = list(
            {model["sha256"]: model for model in results["models"]}.values()
        )
        # The last positions of the parts of a row whose losses were measured.
        self.positions = list(self.models("base")[0]["measured"]["loss"])

    def models(self, arm: str) -> list[Json]:
        """Return the models of an arm, by seed; a base model that all seeds share once."""
        is_shared = arm == "base" and self.recipe["pretrain"]["models"] == "one"
        return [
            self._models[arm, seed]
            for seed in (self.seeds[:1] if is_shared else self.seeds)
        ]

    def mean_recall(self, arm: str, kind: str, counts: Sequence[int]) -> list[float]:
        """Return the mean recall across some numbers of negatives, by seed."""
        recalls = (model["measured"]["recall"][kind] for model in self.models(arm))
        return [fmean(recall[str(count)] for count in counts) for recall in recalls]

    def verdicts(self, counts: Sequence[int]) -> Iterator[str]:
        """Yield each hypothesis with what a paired t-test over the seeds says: 95 %, two-sided."""
        claims = yaml.safe_load(
            (files(__package__) / "hypotheses.yaml").read_text(encoding="utf-8")
        )
        pairs = (
            (claim, other)
            for claim in claims[self.recipe["corpus"]["kind"]]
            for other in claim["theirs"]
        )
        for claim, other in (
            pair for pair in pairs if {pair[0]["ours"], pair[1]} <= set(self.arms)
        ):
            ours, theirs = (
                self.mean_recall(arm, claim["kind"], counts)
                for arm in (claim["ours"], other)
            )
            # The difference of the two arms at each seed: both start from the same base model, so the test is paired.
            each = [one - rival for one, rival in zip(ours, theirs, strict=True)]
            gap = _SeedMean.of(each)
            numbers = f"{claim['ours']} {fmean(ours):.1f} %, {other} {fmean(theirs):.1f} %: {gap.mean:+.1f} points"
            if gap.half is None:
                verdict = f"One seed, so not tested ({numbers})."
            else:
                outcome = "Holds" if gap.mean > 0 else "Fails, the opposite holds"
                outcome = outcome if abs(gap.mean) > gap.half else "Not decided"
                verdict = f"{outcome} ({numbers}, standard error {stdev(each) / sqrt(len(each)):.1f})."
            yield f"- {claim['text']} **{verdict}**"

    def spreads(self, *path: str) -> dict[str, _SeedMean]:
        """Return a measurement of each arm, named by the keys of its JSON."""
        values = {
            arm: [
                reduce(getitem, path, model["measured"]) for model in self.models(arm)
            ]
            for arm in self.arms
        }
        return {arm: _SeedMean.of(of_arm) for arm, of_arm in values.items()}

    def tables(self) -> str:
        def table(
            title: str, about: str, columns: dict[str, dict[str, _SeedMean]]
        ) -> ScoreTable:
            rows = tuple(
                (arm, tuple(str(column[arm]) for column in columns.values()))
                for arm in self.arms
            )
            return ScoreTable(title, about, tuple(columns), rows, "parts")

        about = "Percent of values recalled, by the number of negatives between a fact and its question."
        made = []
        for kind, words in self.kinds.items():
            columns = {
                str(n): self.spreads("recall", kind, str(n)) for n in self.negatives
            }
            made.append(table(f"Recall across {words}", about, columns))
        losses = {part: self.spreads("loss", part) for part in self.positions}
        made.append(
            table("Loss by position", "Nats per token, up to this position.", losses)
        )
        parts = product(self.kinds, ("first", "last"))
        thirds = {
            f"{third} third, {kind} negatives": self.spreads("attention", kind, third)
            for kind, third in parts
        }
        about = "Percent of the attention. The facts are in the first third, the earlier questions in the last."
        made.append(table("Attention by thirds", about, thirds))
        rows = []
        for arm in self.arms:
            tokens, seconds, loss = (
                fmean(model[name] for model in self.models(arm)) for name in _COSTS
            )
            rows.append((arm, (f"{tokens:,.0f}", f"{seconds:,.0f}", loss)))
        about = "Means over seeds. Base: the last leg only. Seconds: of the training steps, on one thread of a shared machine."
        made.append(
            ScoreTable(
                "Cost",
                about,
                ("Tokens", "Seconds", "Training loss at the end"),
                tuple(rows),
                "parts",
            )
        )
        return as_markdown(made, level=3).rstrip()

    def settings(self) -> list[str]:
        """Return what differs from the preset, as arguments of `--set`, quoted for a shell."""
        # The sources are left out: they are paths of the machine that ran the experiment.
        usual = recipe_from(self.name, out="OUT").model_dump(mode="json")
        changed = []
        for key, value in self.recipe.items():
            if isinstance(value, dict):
                differing = {
                    name: one
                    for name, one in value.items()
                    if one != usual[key].get(name)
                }
                changed += [
                    (f"{key}.{name}", one)
                    for name, one in differing.items()
                    if name != "sources"
                ]
            elif value != usual[key]:
                changed.append((key, value))
        return [shlex.quote(f"{key}={json.dumps(value)}") for key, value in changed]


def write(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Write `results.md`, and `results/` with the JSON files and the figures, into a folder; return what was written."""
    parts: dict[str, Json] = {}
    for source in sources:
        read = store.read_json(source)
        if not isinstance(read, dict) or not {"recipe", "models"} <= read.keys():
            cure = "give the results.json of its `out` folder"
            raise RunError(
                f"{source} holds no results of python -m experiments.replicate; {cure}"
            )
        if (name := read["recipe"]["preset"]) in parts:
            raise RunError(
                f"{source}: another file has results of the preset {name} as well; report them apart"
            )
        parts[name] = read
    results = [Results(part, origin=name) for name, part in parts.items()]
    texts = {"results.md": page(results)}
    texts |= {
        f"{_FOLDER}/{one.name}-{name}.svg": svg
        for one in results
        for name, svg in _figures(one)
    }
    with store.explained(folder):
        (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
        for one in results:
            store.write_json(folder / _FOLDER / f"{one.name}.json", parts[one.name])
        for name, text in texts.items():
            store.write_file(folder / name, text)
    return [
        folder / name
        for name in (*texts, *(f"{_FOLDER}/{one.name}.json" for one in results))
    ]


def page(results: Sequence[Results]) -> str:
    """Return the page as Markdown: the experiments one after the other."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["number"] = format
    template = environment.from_string(
        (files(__package__) / "page.md").read_text(encoding="utf-8")
    )
    return template.render(experiments=results, corpora=corpora).rstrip() + "\n"


def _figures(results: Results) -> Iterator[tuple[str, str]]:
    def draw_lines(
        figure: Figure,
        columns: Sequence[tuple[float, dict[str, _SeedMean]]],
        apart: float = 0.0,
    ) -> Axes:
        axes = figure.subplots()
        for number, arm in enumerate(results.arms):
            # Lines of different arms are moved apart, so that their error bars do not hide each other.
            points = [
                (place + number * apart, column[arm].mean, column[arm].half or 0.0)
                for place, column in columns
            ]
            look = {
                **style(number),
                "elinewidth": 0.8,
                "capsize": 2,
                "linestyle": "-" if number < 7 else "--",
            }
            places, means, errors = zip(*points, strict=True)
            axes.errorbar(places, means, yerr=errors, label=arm, **look)
        figure.legend(loc="outside right upper", fontsize=7)
        return axes

    def draw_recall(figure: Figure, kind: str) -> None:
        columns = [
            (count, results.spreads("recall", kind, str(count)))
            for count in results.negatives
        ]
        axes = draw_lines(figure, columns, apart=0.12)
        axes.set_xscale("symlog", base=2, linthresh=2)
        axes.set_xticks(results.negatives, list(map(str, results.negatives)))
        axes.minorticks_off()
        axes.set(xlabel=results.kinds[kind], ylabel="recalled, percent", ylim=(0, 102))

    def draw_loss(figure: Figure) -> None:
        axes = draw_lines(
            figure,
            [*enumerate(results.spreads("loss", part) for part in results.positions)],
        )
        axes.set_xticks(
            range(len(results.positions)), [f"to {part}" for part in results.positions]
        )
        axes.set(xlabel="position in the row, tokens", ylabel="loss, nats a token")

    def draw_attention(figure: Figure) -> None:
        axes = figure.subplots()
        for offset, third in enumerate(("first", "last")):
            spreads = results.spreads("attention", "hard", third).values()
            places = [place + 0.4 * offset for place in range(len(spreads))]
            means, errors = (
                [spread.mean for spread in spreads],
                [spread.half or 0.0 for spread in spreads],
            )
            axes.barh(
                places,
                means,
                0.38,
                xerr=errors,
                label=f"{third} third",
                color=style(offset)["color"],
            )
        axes.set_yticks(
            [place + 0.2 for place in range(len(results.arms))],
            results.arms,
            fontsize=8,
        )
        axes.invert_yaxis()
        axes.set_xlabel("percent of the attention, across hard negatives")
        axes.legend(fontsize=8)

    draws: dict[str, Callable[..., None]] = {
        f"recall-{one}": partial(draw_recall, kind=one) for one in results.kinds
    }
    for name, draw in {**draws, "loss": draw_loss, "attention": draw_attention}.items():
        made = drawn(draw)
        assert made is not None, "each figure has something to draw"
        yield name, made[0] + "\n"
