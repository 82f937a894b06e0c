"""Words: what the report says of runs, for a reader who has never heard of the paper; `words.yaml` has the texts.

In:  `Stats.as_json()` of one or several runs. Out: sentences, and rows of tables with a name and one cell per run. Each cell knows
its path in `nextlong stats --json`; pages and terminals show the same text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple

import yaml

from nextlong.corpus.filter_report import FilterReason
from nextlong.runs.run import Run
from nextlong.runs.statistics.counting import NEAR_IDENTICAL_COSINE
from nextlong.runs.statistics.thresholds import THRESHOLDS
from nextlong.runs.statistics.warnings import FROM_SCRATCH
from nextlong.schemas import Layout
from nextlong.sequences.shortfall import MOST_DROPPED
from nextlong.text import Json, counted

# Of five corpora that pass all checks at 32,768 tokens (docs/warnings.md): the least and the most
_COSINES: Final = {"lsa": (0.39, 0.61)}  # by encoder: mean cosine of the negatives
_META_TOKENS: Final = (
    1050,
    1700,
)  # tokens of the meta-document of a sequence, on average
Plain = Sequence[Mapping[str, Any]]  # `Stats.as_json()` of each run
_Places = Sequence[int | None]  # of an entry of a list in each run
_APART: Final = "tokens between chunks that followed each other, median"
_SHOWN_FILES: Final = 4
# Warnings that forbid training.
_FATAL: Final = (
    "own-document-negatives",
    "repeated-chunks",
    "lossy-tokenizer",
    "missing-ids",
)
_NEEDS: Final = {  # the field of the statistics that is None where a check has nothing to look at
    "own-document-negatives": "negatives",
    **dict.fromkeys(
        ("low-meta-share", "high-meta-share", "short-distances"), "tokens.meta_share"
    ),
    **dict.fromkeys(("few-meta-chunks", "short-last-chunks"), "meta_chunks"),
    "near-identical-negatives": "negatives.near_identical",
    "much-cut-off": "tokens.cut_off",
    "many-near-duplicates": "near_duplicates.documents",
    "no-keywords": "corpus.keywords",
    "unshared-keywords": "corpus.unshared_keywords",
    "hardly-in-parts": "documents.in_parts",
    "small-corpus": "similarity",
}
_USED_WITH: Final = {  # the fields of the statistics one of which a run must have for a term of the glossary to be of use
    "meta-document": {"tokens.meta_share"},
    "negative": {"setting.negatives"},
    "cosine": {"similarity"},
    "near-duplicate": {"near_duplicates.chunks", "near_duplicates.documents"},
}
_WORDS: Final = yaml.safe_load(
    (files(__package__) / "words.yaml").read_text(encoding="utf-8")
)
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = _WORDS["settings"]
LABELS: Final[Mapping[str, Mapping[str, str]]] = _WORDS["labels"]
_LIMITS: Final = vars(THRESHOLDS) | {
    "near_identical_cosine": NEAR_IDENTICAL_COSINE,
    "max_dropped": MOST_DROPPED,
}
_PASSED: Final = {
    name: text.format(**_LIMITS) for name, text in _WORDS["passed"].items()
}


class _Verdict(NamedTuple):
    """Whether to train on a run: a level of the style sheet, the decision in a few words, the reasons, and the passed checks.

    `settings` are those of the recipe (KEY=VALUE) to build again with, and `solved` says what they are likely to solve.
    """

    level: str
    decision: str
    reasons: tuple[str, ...]
    passed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    solved: str = ""


def is_extended(plain: Plain) -> bool:
    """Say whether a sequence of at least one of the runs extends a document."""
    return any(stats["setting"]["layout"] == Layout.EXTENDED for stats in plain)


def reading(name: str, plain: Plain, names: Sequence[str]) -> str:
    """Return how to read the chart or table of the card `name`, with reference values for its numbers."""
    read = (
        _WORDS["read"]
        if is_extended(plain)
        else _WORDS["read"] | _WORDS["read_documents"]
    )[name].format(**_LIMITS)
    compared = [_compared_to(name, stats) for stats in plain]
    if len(set(compared)) == 1:
        return f"{read} {compared[0]}".strip()
    return " ".join(
        [
            read,
            *(
                f"{run}: {text}"
                for run, text in zip(names, compared, strict=False)
                if text
            ),
        ]
    )


def _compared_to(name: str, stats: Mapping[str, Any]) -> str:
    """Return the reference values for the numbers of a run in the card `name`; "" if there are none."""
    setting, yields = stats["setting"], stats["yields"]
    tokens, share = setting["target_tokens"], stats["tokens"]["meta_share"]
    parts: list[str] = []
    more: Json = {}
    if name in ("similarity", "source-cosine") and value_at(stats, "similarity.random"):
        parts, usual = ["random"], _COSINES.get(setting["encoder"])
        if name == "similarity" and usual:
            parts += [
                "usual cosine",
                *(["least cosine"] if setting["negatives"] == "top" else []),
            ]
            more = {"usual": usual}
    elif name == "roles" and share:
        parts, more = (
            ["usual share"],
            {"usual": _META_TOKENS, "shares": [meta / tokens for meta in _META_TOKENS]},
        )
    elif name == "yield" and setting["min_meta_chunks"]:
        parts = ["yield"]
        more = {"min_chunks": counted(setting["min_meta_chunks"], "chunk")}
    elif name == "chunks" and (per_token := stats["tokens"]["chars_per_token"]):
        parts = ["chunks", "longest chunk" if stats["chunks"]["tokens"] else "end"]
        more = {"mean": setting["max_chars"] / per_token}
    elif name == "distance" and share:
        parts, more = ["distance"], {"least": THRESHOLDS.min_distance * tokens}
    elif (
        name == "near" and (count := stats["near_duplicates"]["documents"]) is not None
    ):
        parts, documents = ["near documents"], yields["documents"]
        more = {
            "of_documents": counted(documents, "document"),
            "share": count / max(1, documents),
        }
    elif (
        name == "near"
        and (count := stats["near_duplicates"]["chunks"]) is not None
        and stats["similarity"]
    ):
        parts, drafts = ["near"], yields["drafts"]
        more = {"drafts": counted(drafts, "draft"), "rate": count / max(1, drafts)}
        cosines = stats["similarity"]["cosine"]["count"]
        more["each"] = cosines / max(1, stats["sequences"])
    return "".join(_WORDS["compared"][part] for part in parts).format_map(
        {**stats, **more}
    )


def glossary(plain: Plain) -> dict[str, str]:
    """Return the terms that a page about these runs uses, and what they mean."""
    negatives = "; or ".join(
        dict.fromkeys(
            _negatives(stats)[0] for stats in plain if stats["setting"]["negatives"]
        )
    )
    spreads = [value_at(stats, "similarity.random") for stats in plain]
    random = {spread["mean"] for spread in spreads if spread}
    unrelated = (
        f"; unrelated text of this corpus has about {random.pop():.2f}"
        if len(random) == 1
        else ""
    )
    terms = {}
    for term, meaning in _WORDS["glossary"].items():
        fields = _USED_WITH.get(term)
        is_used = fields is None or any(
            value_at(stats, path) is not None for stats in plain for path in fields
        )
        if is_used:
            terms[term] = meaning.format(negatives=negatives, unrelated=unrelated)
    return terms


def value_at(stats: Mapping[str, Any], path: str) -> Any:
    """Return what stands at a path such as `similarity.random`; None where a part of it is missing."""
    value: Any = stats
    for key in path.split("."):
        if value is None:
            return None
        value = value[key]
    return value


def _negatives(stats: Mapping[str, Any]) -> tuple[str, str]:
    """Return a description of the negatives of a run, and what a model must do with them."""
    beside = {"head": "before them", "tail": "after them"}.get(
        stats["setting"]["position"], "among them"
    )
    what, between = _WORDS["negatives"][stats["setting"]["negatives"]]
    return what.format(beside=beside), between


def opening(stats: Mapping[str, Any]) -> str:
    """Return how the sequences were made from the documents, in a few sentences."""
    negatives, between = _negatives(stats)
    distance = stats["distance_tokens"]
    far = f", {distance['p50']:,.0f} tokens earlier (median)" if distance else ""
    text: str = _WORDS["openings"][stats["setting"]["layout"]]
    return text.format(negatives=negatives, far=far, between=between)


def facts(stats: Mapping[str, Any], run: Run) -> dict[str, str]:
    """Return what the data set is and what it was made from, by name."""
    sources = [source.path for source in run.recipe.ingest.sources]
    more = (
        f" and {len(sources) - _SHOWN_FILES} more"
        if len(sources) > _SHOWN_FILES
        else ""
    )
    entries = f"{run.recipe.tokenizer.train or 0:,} entries"
    trained = (
        f"trained on this corpus ({entries}); not compatible with any pretrained model"
    )
    version = run.steps["compose"].manifest["versions"].get("nextlong")
    setting = stats["setting"]
    named = {
        "data set": stats["run"],
        "made": f"{run.variant.made[:10]}{f' by nextlong {version}' if version else ''}, method {setting['method_name']}",
        "input": f"{', '.join(sources[:_SHOWN_FILES])}{more}",
        "tokenizer": run.recipe.tokenizer.source or trained,
        "encoder": ": ".join(
            filter(
                None,
                (setting["encoder"], SETTINGS["encoder"].get(setting["encoder"], "")),
            )
        ),
    }
    return {name: text for name, text in named.items() if text}


def verdict(stats: Mapping[str, Any], *, is_stand_in: bool = False) -> _Verdict:
    """Return whether to train on a run, and why; `is_stand_in`: the tokenizer was trained on its corpus."""
    warning_names = {warned["name"] for warned in stats["warnings"]}
    # A check that does not apply to the run is not listed as passed.
    setting = stats["setting"]
    random = value_at(stats, "similarity.random")
    applies = {
        name: value_at(stats, path) is not None for name, path in _NEEDS.items()
    } | {
        "fewer-sequences": stats["yields"]["asked"] != "all",
        "unrelated-negatives": setting["negatives"] == "top" and random is not None,
        "one-source": len(stats["tokens"]["by_source"]) > 1
        and stats["negatives"] is not None,
        "stand-in-tokenizer": setting["target_tokens"] >= THRESHOLDS.stand_in_tokens,
        "unmet-exclusions": any(
            one["reason"] == FilterReason.EXCLUDED
            for one in stats["corpus"]["left_out"]
        ),
    }
    passed = tuple(
        text
        for name, text in _PASSED.items()
        if applies.get(name, True) and name not in warning_names
    )
    messages = tuple(
        f"{warned['message'][:1].upper()}{warned['message'][1:]}."
        for warned in stats["warnings"]
    )
    cautions = [stats["control"]] if stats["control"] else []
    if is_stand_in and "stand-in-tokenizer" not in warning_names:
        cautions.append(
            f"The tokenizer was trained on this corpus: train on the data {FROM_SCRATCH}."
        )
    if messages:
        changes = [warned["change"] for warned in stats["warnings"] if warned["change"]]
        # Two warnings may propose different values for one key; then neither is proposed.
        values = Counter(change.partition("=")[0] for change in set(changes))
        changes = [
            change for change in changes if values[change.partition("=")[0]] == 1
        ]
        points = (
            "this problem" if len(messages) == 1 else f"these {len(messages)} problems"
        )
        solved = (
            points if len(changes) == len(messages) else f"{len(changes)} of {points}"
        )
        level, decision = "look", f"Not yet: solve {points} and build the data again."
        if not warning_names.isdisjoint(_FATAL):
            level, decision = "stop", "No, do not train on this data."
        return _Verdict(
            level,
            decision,
            (*messages, *cautions),
            passed,
            tuple(dict.fromkeys(changes)),
            solved,
        )
    if stats["control"]:
        return _Verdict("look", "Only as a control.", tuple(cautions), passed)
    decision = f"No defects found: you can train on it{f', but {FROM_SCRATCH}' if is_stand_in else ''}."
    reasons = [
        f"All {len(passed)} data-quality checks passed. For its effect on models, see the page Results of the documentation."
    ]
    cosine, distance = value_at(stats, "similarity.cosine"), stats["distance_tokens"]
    if random and cosine["mean"] > random["mean"]:
        mean = f"mean cosine {cosine['mean']:.2f}. Random pairs of chunks have {random['mean']:.2f}."
        reasons.append(f"Negatives are similar to their meta-chunk: {mean}")
    if distance:
        apart = f"{distance['p50']:,.0f} tokens apart (median)"
        reasons.append(
            f"Chunks that followed each other in their document are now {apart}."
        )
    return _Verdict("good", decision, tuple(reasons), passed)


def short_names(runs: Sequence[str]) -> list[str]:
    """Return the names of runs, RUN or RUN@VARIANT, without their common prefix."""
    parts = [re.findall(r"[^/@]*[/@]?", run)[:-1] for run in runs]
    shared = 0
    while all(
        len(words) > shared + 1 and words[: shared + 1] == parts[0][: shared + 1]
        for words in parts
    ):
        shared += 1
    return ["".join(words[shared:]) for words in parts]


def labels(runs: Sequence[Run]) -> list[str]:
    """Return labels for runs side by side: their methods, else the differing parts of their names."""
    methods = [run.recipe.compose.method for run in runs]
    if len(set(methods)) == len(runs):
        return methods
    settings = [name.split(",") for name in short_names(list(map(str, runs)))]
    is_named = all("=" in one for each in settings for one in each)
    common = set(settings[0]).intersection(*settings) if is_named else set()
    return [
        ",".join(one for one in each if one not in common) or "without further settings"
        for each in settings
    ]


class Cell(NamedTuple):
    """A value as it is shown; `value` is exactly what `path` leads to in the run's numbers."""

    text: str
    value: Any = None
    path: tuple[str | int | None, ...] = ()


class TableRow(NamedTuple):
    """A name and one cell per run; bins of a histogram are omitted where a terminal has no room."""

    name: str
    cells: tuple[Cell, ...]
    is_bin: bool = False


_NOTHING = Cell("–")


def cell(
    stats: Mapping[str, Any],
    path: Sequence[str | int | None],
    form: str = "{:,}",
    *,
    unit: float = 1,
    total: float = 0,
) -> Cell:
    """Return one number of a run, "–" if the run has none.

    `form` gets the value in `unit`s, the fields beside the value by name, and `share`, the value over `total`.
    """
    value: Any = stats
    beside: Any = {}
    for key in path:
        if key not in (
            value if isinstance(value, Mapping) else range(len(value or ()))
        ):
            return _NOTHING
        beside, value = value, value[key]
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        return Cell(value, value, tuple(path))
    more = dict(beside) if isinstance(beside, Mapping) else {}
    more["share"] = value / (total or 1)
    return Cell(
        form.format(value if unit == 1 else value / unit, **more), value, tuple(path)
    )


def filled(rows: Iterable[TableRow]) -> list[TableRow]:
    """Return the rows that hold a value of at least one run."""
    return [row for row in rows if any(cell != _NOTHING for cell in row.cells)]


def spoken_bin(low: float, high: float) -> str:
    """Return a bin of whole numbers in words."""
    return f"{low:,.0f}" if low == high else f"{low:,.0f}–{high:,.0f}"


@dataclass(frozen=True)
class Numbers:
    """The numbers of runs side by side, and a name a run."""

    plain: Plain
    names: Sequence[str]

    @property
    def is_extended(self) -> bool:
        """Whether a sequence of at least one of the runs extends a document."""
        return is_extended(self.plain)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield the numbers of each run."""
        return iter(self.plain)

    def row(
        self,
        name: str,
        *path: str | int | _Places,
        form: str = "{:,}",
        totals: Sequence[float] | None = None,
    ) -> TableRow:
        """Return one number of every run; a list in its path holds the place of an entry in each run."""
        cells = []
        for number, stats in enumerate(self):
            own = [key if isinstance(key, str | int) else key[number] for key in path]
            cells.append(cell(stats, own, form, total=totals[number] if totals else 0))
        return TableRow(name, tuple(cells))

    def spread(self, *path: str, form: str, of: str = "") -> list[TableRow]:
        """Return a distribution in five numbers; `of` says of what, where the table holds other numbers too."""
        return filled(
            self.row(f"{of}{name}", *path, part, form=form)
            for part, name in LABELS["spread"].items()
        )

    def entries(
        self, *path: str | int, by: Sequence[str]
    ) -> dict[tuple[Any, ...], list[int | None]]:
        """Return the place of each entry of a list in every run, by the values of its keys `by`, sorted."""
        places_of: dict[tuple[Any, ...], list[int | None]] = {}
        for number, stats in enumerate(self):
            held: Any = stats
            for key in path:
                held = (
                    (
                        held[key]
                        if isinstance(held, Mapping) or int(key) < len(held)
                        else {}
                    )
                    if held
                    else ()
                )
            for place, one in enumerate(held):
                places_of.setdefault(
                    tuple(one[key] for key in by), [None] * len(self.plain)
                )[number] = place
        return dict(sorted(places_of.items()))

    def bins(self, *path: str | int, form: str, part: str = "count") -> list[TableRow]:
        """Return a histogram, each bin with its share; `form` makes the name of its row."""
        places_of = {}
        for (low, high), places in self.entries(*path, by=("low", "high")).items():
            spoken = (
                f"{low:.2f}"
                if isinstance(low, float) and high < 2
                else spoken_bin(low, high)
            )
            places_of[form.format(spoken)] = places
        counts = [
            self.row(name, *path, places, part, form="{}").cells
            for name, places in places_of.items()
        ]
        totals = [
            sum(one.value or 0 for one in of_run)
            for of_run in zip(*counts, strict=True)
        ]
        return [
            self.row(
                name, *path, places, part, form="{:,} ({share:.1%})", totals=totals
            )._replace(is_bin=True)
            for name, places in places_of.items()
        ]

    def first(self) -> list[TableRow]:
        """Return the few numbers of the first screen of one run."""
        random, what = (
            value_at(self.plain[0], "similarity.random"),
            "negatives" if self.is_extended else "documents",
        )
        of_random = f" (random pairs: {random['mean']:.2f})" if random else ""
        shown = [
            self.row(name, *path.split(".")) for path, name in LABELS["amounts"].items()
        ]
        shown.append(self.row(_APART, "distance_tokens", "p50", form="{:,.0f}"))
        return filled(
            [
                *shown,
                self.row(
                    f"mean cosine of the {what}{of_random}",
                    "similarity",
                    "cosine",
                    "mean",
                    form="{:.2f}",
                ),
            ]
        )

    def settings(self) -> list[TableRow]:
        """Return what distinguishes the runs; words of the recipe are explained."""
        shown = []
        for path, name in {**LABELS["settings"], **LABELS["amounts"]}.items():
            *groups, key = path.split(".")
            meanings = SETTINGS.get(key, {})
            cells = (
                one._replace(text=f"{one.text}: {meanings[one.value]}")
                if one.value in meanings
                else one
                for one in self.row(name, *groups, key).cells
            )
            shown.append(TableRow(name, tuple(cells)))
        shown.append(
            self.row("characters per token", "tokens", "chars_per_token", form="{:.3f}")
        )
        shown.append(
            self.row("mean cosine", "similarity", "cosine", "mean", form="{:.4f}")
        )
        return filled(
            [*shown, self.row(_APART, "distance_tokens", "p50", form="{:,.0f}")]
        )
