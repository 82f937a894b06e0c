"""Explain: what the report tells a reader who has never heard of the paper.

In:  `Stats.as_json()` of one or several runs; the texts are in `words.yaml`. Out: how
the sequences were made, how to read each card, and a glossary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nextlong.report.page.cells import SETTINGS, TEXTS, RunStats, is_extended, value_at
from nextlong.runs.run import Run
from nextlong.runs.statistics.counting import NEAR_IDENTICAL_COSINE
from nextlong.runs.statistics.thresholds import THRESHOLDS
from nextlong.sequences.shortfall import MOST_DROPPED
from nextlong.text import counted

# Of five corpora that pass all checks at 32,768 tokens (docs/warnings.md), the least
# and the most: the mean cosine of the negatives, by encoder …
_COSINES: Final = {"lsa": (0.39, 0.61)}
# … and the tokens of the meta-document of a sequence, on average.
_META_TOKENS: Final = (1050, 1700)

_SHOWN_FILES: Final = 4

# A term of the glossary is of use to a run that has one of these statistics.
_USED_WITH: Final[Mapping[str, Sequence[str]]] = {
    "meta-document": ["tokens.meta_share"],
    "negative": ["setting.negatives"],
    "cosine": ["similarity"],
    "near-duplicate": ["near_duplicates.chunks", "near_duplicates.documents"],
}

# The thresholds that texts name.
LIMITS: Final = vars(THRESHOLDS) | {
    "near_identical_cosine": NEAR_IDENTICAL_COSINE,
    "max_dropped": MOST_DROPPED,
}


def opening(stats: RunStats) -> str:
    """Return how the sequences were made from the documents, in a few sentences."""
    negatives, between = _negatives(stats)
    distance = stats["distance_tokens"]
    far = f", {distance['p50']:,.0f} tokens earlier (median)" if distance else ""
    text: str = TEXTS["openings"][stats["setting"]["layout"]]
    return text.format(negatives=negatives, far=far, between=between)


def facts(stats: RunStats, run: Run) -> dict[str, str]:
    """Return what the data set is and what it was made from, by name."""
    sources = [source.path for source in run.recipe.ingest.sources]
    shown_sources = ", ".join(sources[:_SHOWN_FILES])
    if len(sources) > _SHOWN_FILES:
        shown_sources += f" and {len(sources) - _SHOWN_FILES} more"
    version = run.steps["compose"].manifest["versions"].get("nextlong")
    made_by = f" by nextlong {version}" if version else ""
    setting = stats["setting"]
    encoder = setting["encoder"]
    described = [encoder, SETTINGS["encoder"].get(encoder, "")]
    named = {
        "data set": stats["run"],
        "made": f"{run.variant.made[:10]}{made_by}, method {setting['method_name']}",
        "input": shown_sources,
        "tokenizer": run.recipe.tokenizer.source or _trained_tokenizer(run),
        "encoder": ": ".join(filter(None, described)),
    }
    return {name: text for name, text in named.items() if text}


def _trained_tokenizer(run: Run) -> str:
    entries = f"{run.recipe.tokenizer.train or 0:,} entries"
    return (
        f"trained on this corpus ({entries}); not compatible with any pretrained model"
    )


def reading(card: str, all_stats: Sequence[RunStats], names: Sequence[str]) -> str:
    """Return how to read a card, with reference values for its numbers."""
    texts = TEXTS["read"]
    if not is_extended(all_stats):
        texts = texts | TEXTS["read_documents"]
    text = texts[card].format(**LIMITS)
    # What is the same for all runs is said once, without their names.
    references = [_references(card, stats) for stats in all_stats]
    if len(set(references)) == 1:
        return f"{text} {references[0]}".strip()
    by_run = [
        f"{run}: {reference}"
        for run, reference in zip(names, references, strict=False)
        if reference
    ]
    return " ".join([text, *by_run])


def _references(card: str, stats: RunStats) -> str:
    """Return the reference values for the numbers of a run in a card; "" if none."""
    setting = stats["setting"]
    tokens = stats["tokens"]
    parts: list[str] = []
    values: dict[str, Any] = {}
    if card in ("similarity", "source-cosine"):
        parts, values = _cosine_references(card, stats)
    elif card == "near":
        parts, values = _near_duplicate_references(stats)
    elif card == "rank" and setting["hard_share"]:
        parts = ["mixed"]
        values = {"hard_share": setting["hard_share"]}
    elif card == "roles" and tokens["meta_share"]:
        # The usual tokens are of sequences of 32,768; a share of longer ones is
        # smaller.
        shares = [count / setting["target_tokens"] for count in _META_TOKENS]
        parts = ["usual share"]
        values = {"usual": _META_TOKENS, "shares": shares}
    elif card == "yield" and setting["min_meta_chunks"]:
        parts = ["yield"]
        values = {"min_chunks": counted(setting["min_meta_chunks"], "chunk")}
    elif card == "chunks" and tokens["chars_per_token"]:
        parts = ["chunks", "longest chunk" if stats["chunks"]["tokens"] else "end"]
        values = {"mean": setting["max_chars"] / tokens["chars_per_token"]}
    elif card == "distance" and tokens["meta_share"]:
        parts = ["distance"]
        values = {"least": THRESHOLDS.min_distance * setting["target_tokens"]}
    text = "".join(TEXTS["compared"][part] for part in parts)
    return text.format_map({**stats, **values})


def _cosine_references(card: str, stats: RunStats) -> tuple[list[str], dict[str, Any]]:
    """Return the parts of the text on cosines, and the values in them."""
    if not value_at(stats, "similarity.random"):
        return [], {}
    usual = _COSINES.get(stats["setting"]["encoder"])
    if card != "similarity" or not usual:
        return ["random"], {}
    parts = ["random", "usual cosine"]
    if stats["setting"]["negatives"] == "top":
        parts.append("least cosine")
    return parts, {"usual": usual}


def _near_duplicate_references(stats: RunStats) -> tuple[list[str], dict[str, Any]]:
    """Return the parts of the text on near-duplicates, and the values in them."""
    yields = stats["yields"]
    count = stats["near_duplicates"]["documents"]
    if count is not None:
        documents = yields["documents"]
        return ["near documents"], {
            "of_documents": counted(documents, "document"),
            "share": count / max(1, documents),
        }
    count = stats["near_duplicates"]["chunks"]
    if count is None or not stats["similarity"]:
        return [], {}
    drafts = yields["drafts"]
    cosines = stats["similarity"]["cosine"]["count"]
    return ["near"], {
        "drafts": counted(drafts, "draft"),
        "rate": count / max(1, drafts),
        "each": cosines / max(1, stats["sequences"]),
    }


def glossary(all_stats: Sequence[RunStats]) -> dict[str, str]:
    """Return the terms that a page about these runs uses, and what they mean."""
    random_means = set()
    negatives = []
    for stats in all_stats:
        random = value_at(stats, "similarity.random")
        if random:
            random_means.add(random["mean"])
        if stats["setting"]["negatives"]:
            description, _ = _negatives(stats)
            negatives.append(description)
    unrelated = ""
    if len(random_means) == 1:
        mean = random_means.pop()
        unrelated = f"; unrelated text of this corpus has about {mean:.2f}"
    described = "; or ".join(dict.fromkeys(negatives))
    terms = {}
    for term, meaning in TEXTS["glossary"].items():
        if term not in _USED_WITH or _has_any(all_stats, _USED_WITH[term]):
            terms[term] = meaning.format(negatives=described, unrelated=unrelated)
    return terms


def _has_any(all_stats: Sequence[RunStats], paths: Sequence[str]) -> bool:
    """Return whether a run has a value at one of the paths."""
    values: list[Any] = []
    for stats in all_stats:
        values += [value_at(stats, path) for path in paths]
    return any(value is not None for value in values)


def _negatives(stats: RunStats) -> tuple[str, str]:
    """Return a description of the negatives, and what a model must do with them."""
    places = {"head": "before them", "tail": "after them"}
    beside = places.get(stats["setting"]["position"], "among them")
    description, between = TEXTS["negatives"][stats["setting"]["negatives"]]
    return description.format(beside=beside), between
