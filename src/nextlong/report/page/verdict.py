"""Verdict: whether to train on a run, and why.

In:  `Stats.as_json()` of a run, with its data-quality warnings. Out: a decision in a
few words, its reasons, the checks that passed, and the settings to build the data again
with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nextlong.corpus.filter_report import FilterReason
from nextlong.report.page.cells import TEXTS, RunStats, value_at
from nextlong.report.page.explain import LIMITS
from nextlong.runs.statistics.thresholds import THRESHOLDS
from nextlong.runs.statistics.warnings import FROM_SCRATCH

# Warnings that forbid training.
_FATAL: Final = (
    "own-document-negatives",
    "repeated-chunks",
    "lossy-tokenizer",
    "missing-ids",
)

# The path in the statistics that is None where a check has nothing to look at.
_NEEDS: Final = {
    "own-document-negatives": "negatives",
    "low-meta-share": "tokens.meta_share",
    "high-meta-share": "tokens.meta_share",
    "short-distances": "tokens.meta_share",
    "few-meta-chunks": "meta_chunks",
    "short-last-chunks": "meta_chunks",
    "near-identical-negatives": "negatives.near_identical",
    "much-cut-off": "tokens.cut_off",
    "many-near-duplicates": "near_duplicates.documents",
    "no-keywords": "corpus.keywords",
    "unshared-keywords": "corpus.unshared_keywords",
    "hardly-in-parts": "documents.in_parts",
    "small-corpus": "similarity",
}

# What a passed check means, by its name.
_PASSED: Final = {name: text.format(**LIMITS) for name, text in TEXTS["passed"].items()}


class Verdict(NamedTuple):
    """Whether to train on a run.

    `level` is a class of the style sheet. `settings` are those of the recipe
    (KEY=VALUE) to build again with, and `solved` says what they are likely to solve.
    """

    level: str
    decision: str
    reasons: tuple[str, ...]
    passed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    solved: str = ""


def verdict(stats: RunStats, *, is_stand_in: bool = False) -> Verdict:
    """Return whether to train on a run, and why.

    `is_stand_in`: the tokenizer was trained on its corpus.
    """
    warning_names = {warning["name"] for warning in stats["warnings"]}
    passed = _passed(stats, warning_names)
    cautions = [stats["control"]] if stats["control"] else []
    if is_stand_in and "stand-in-tokenizer" not in warning_names:
        cautions.append(
            "The tokenizer was trained on this corpus: train on the data "
            f"{FROM_SCRATCH}."
        )
    if stats["warnings"]:
        return _not_yet(stats["warnings"], cautions, passed)
    if stats["control"]:
        return Verdict(
            level="look",
            decision="Only as a control.",
            reasons=tuple(cautions),
            passed=passed,
        )
    but = f", but {FROM_SCRATCH}" if is_stand_in else ""
    return Verdict(
        level="good",
        decision=f"No defects found: you can train on it{but}.",
        reasons=tuple(_reasons(stats, passed)),
        passed=passed,
    )


def _passed(stats: RunStats, warning_names: Collection[str]) -> tuple[str, ...]:
    """Return the checks that passed, of those that apply to the run."""
    setting = stats["setting"]
    has_sources = len(stats["tokens"]["by_source"]) > 1
    has_random_pairs = value_at(stats, "similarity.random") is not None
    reasons_left_out = [left_out["reason"] for left_out in stats["corpus"]["left_out"]]
    applies = {name: value_at(stats, path) is not None for name, path in _NEEDS.items()}
    # A run that makes all it can has no number to fall short of.
    applies["fewer-sequences"] = stats["yields"]["asked"] != "all"
    has_negatives = stats["negatives"] is not None
    is_meant_hard = has_negatives and not stats["control"]
    applies["unrelated-negatives"] = is_meant_hard and has_random_pairs
    # Of a single source, all negatives come from it.
    applies["one-source"] = has_sources and has_negatives
    applies["stand-in-tokenizer"] = (
        setting["target_tokens"] >= THRESHOLDS.stand_in_tokens
    )
    applies["unmet-exclusions"] = FilterReason.EXCLUDED in reasons_left_out
    return tuple(
        text
        for name, text in _PASSED.items()
        if applies.get(name, True) and name not in warning_names
    )


def _not_yet(
    warnings: Sequence[Mapping[str, Any]],
    cautions: Sequence[str],
    passed: tuple[str, ...],
) -> Verdict:
    """Return the verdict on a run with warnings."""
    messages = []
    for warning in warnings:
        message = warning["message"]
        messages.append(f"{message[:1].upper()}{message[1:]}.")

    # Two warnings may propose different values for one key; then neither is proposed.
    proposed = [warning["change"] for warning in warnings if warning["change"]]
    distinct = set(proposed)
    values_of_key = Counter(map(_key_of, distinct))
    changes = [change for change in proposed if values_of_key[_key_of(change)] == 1]

    problems = "this problem"
    if len(messages) > 1:
        problems = f"these {len(messages)} problems"
    solved = problems
    if len(changes) < len(messages):
        solved = f"{len(changes)} of {problems}"

    # Most warnings can be accepted by a user who knows better; some forbid training.
    level = "look"
    decision = f"Not yet: solve {problems} and build the data again."
    if any(warning["name"] in _FATAL for warning in warnings):
        level = "stop"
        decision = "No, do not train on this data."
    return Verdict(
        level=level,
        decision=decision,
        reasons=(*messages, *cautions),
        passed=passed,
        # Two warnings may propose the same change.
        settings=tuple(dict.fromkeys(changes)),
        solved=solved,
    )


def _key_of(change: str) -> str:
    return change.partition("=")[0]


def _reasons(stats: RunStats, passed: Sequence[str]) -> list[str]:
    """Return the reasons to train on a run without warnings."""
    reasons = [
        f"All {len(passed)} data-quality checks passed. For its effect on models, see "
        "the page Results of the documentation."
    ]
    cosine = value_at(stats, "similarity.cosine")
    random = value_at(stats, "similarity.random")
    if random and cosine["mean"] > random["mean"]:
        reasons.append(
            "Negatives are similar to their meta-chunk: mean cosine "
            f"{cosine['mean']:.2f}. Random pairs of chunks have {random['mean']:.2f}."
        )
    distance = stats["distance_tokens"]
    if distance:
        apart = f"{distance['p50']:,.0f} tokens apart (median)"
        reasons.append(
            f"Chunks that followed each other in their document are now {apart}."
        )
    return reasons
