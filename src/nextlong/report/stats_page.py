"""Stats page: the numbers of a data set on a terminal, or as plain text, one record a line.

In:  `Stats`. Out: what it is, then one block each for yield, similarity, distance, reuse, and mix.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from nextlong.report import tables
from nextlong.runs.attention import Exposure
from nextlong.runs.stats import Stats
from nextlong.runs.tally import Spread
from nextlong.schemas import Layout
from nextlong.text import counted

Rows = Sequence[tuple[str, str]]


def show(stats: Stats, console: Console) -> None:
    """Print one data set."""
    is_extended = _is_extended(stats)
    compared, place = ("negatives", "beside it") if is_extended else ("documents", "in the sequence, from 0")
    by_rank = [(f"rank {one.rank}", f"{one.mean:.4f} (mean of {one.count:,})") for one in stats.similarity_by_rank]
    stretched = "meta-chunks" if is_extended else "parts of a document"
    for title, rows in (
        (f"{counted(stats.sequences, 'sequence')} of {stats.target_tokens:,} tokens in {stats.run}", _what(stats)),
        ("Yield", _yield(stats)),
        ("Left out of the corpus", _left_out(stats)),
        (
            f"Cosine of {compared} to {stats.scores}, by their rank {place}",
            [*spread_rows(stats.similarity, "{:.4f}"), *by_rank],
        ),
        (f"Tokens between consecutive {stretched}", spread_rows(stats.distance_tokens, "{:,.0f}")),
        (f"Use of a chunk{', as a negative,' * is_extended} over all sequences", _reuse(stats)),
        (
            "Chunks used most",
            [(f"{hub.uses:,} times", hub.name) for hub in stats.reuse.hubs],
        ),
        ("Leaks, which must be 0", _leaks(stats)),
        ("Tokens by source", _shares(stats.tokens_by_source, sum(stats.tokens_by_source.values()))),
        ("Attention work of the busiest of 2, 4 and 8 devices that share a row, 1 is even", _attention_work(stats)),
        *((f"Effective left context, attention: {one.mask}", _exposure(one)) for one in stats.exposure),
        ("Tokens by role", _shares(stats.tokens_by_role, stats.tokens)),
        ("Look before you train", [(warned.name, warned.message) for warned in stats.warnings]),
    ):
        if rows:
            tables.show_pairs(title, rows, console)


def spread_rows(spread: Spread | None, form: str) -> list[tuple[str, str]]:
    """Return a distribution as rows; `form` formats one number."""
    if spread is None:
        return []
    names = ("mean", "p10", "p50", "p90", "max")
    return [(name, form.format(getattr(spread, name))) for name in names]


def _what(stats: Stats) -> Rows:
    rows = [
        ("method", stats.method_name),
        ("negatives", stats.negatives or ""),
        ("position", stats.position or ""),
        ("fit", stats.fit or ""),
        ("uses of a chunk", f"at most {stats.max_uses:,}" if stats.max_uses else ""),
        ("chunks", f"at most {stats.max_chars:,} characters"),
        ("encoder", stats.encoder or ""),
        ("search", stats.search or ""),
        ("shortlist", stats.shortlist or ""),
        ("queries", stats.queries or ""),
        ("tokens", f"{stats.tokens:,}"),
        ("characters per token", "" if stats.chars_per_token is None else f"{stats.chars_per_token:.3f}"),
        ("distinct documents", f"{stats.distinct_documents:,}"),
    ]
    if stats.documents_per_sequence:
        spread = stats.documents_per_sequence
        rows.append(
            (
                "documents per sequence",
                f"{spread.mean:,.1f} on average, {spread.p10:,.0f} to {spread.p90:,.0f} (p10 to p90)",
            )
        )
    return [(name, value) for name, value in rows if value]


def _yield(stats: Stats) -> Rows:
    yields = stats.yields
    counts = [("asked", yields.asked), ("documents", yields.documents)]
    if _is_extended(stats):
        counts.append(("eligible", yields.eligible))
    rows = [(name, f"{value:,}" if isinstance(value, int) else value) for name, value in counts]
    rows.append(("sampled" if _is_extended(stats) else "drafts", f"{yields.drafts:,}, of which"))
    parts = [("kept", yields.kept), ("spare, built", yields.spare), ("spare, not built", yields.untried)]
    rows += [(name, f"{count:,}") for name, count in parts]
    for reason, count in yields.dropped.items():
        examples = yields.dropped_examples.get(reason, ())
        rows.append((f"dropped: {reason}", f"{count:,}" + (f", such as {'; '.join(examples)}" if examples else "")))
    if not yields.dropped:
        rows.append(("dropped", "0"))
    if stats.cut_off is not None:
        rows.append(("cut off", f"{stats.cut_off.tokens:,} tokens of documents ({stats.cut_off.share:.1%})"))
    if stats.near_duplicates is not None:
        passages = f"{stats.repeated_passages or 0:,} of them only because of a shared 100-word passage"
        rows.append(("near-duplicates", f"{stats.near_duplicates:,} candidate chunks skipped, {passages}"))
    if stats.near_duplicate_documents is not None:
        rows.append(
            ("near-duplicates", f"{counted(stats.near_duplicate_documents, 'document')} left out by the method")
        )
    for source, of in (stats.keywords or {}).items():
        left_out = of.documents - of.with_keywords
        rows.append((f"without keywords in {source}", f"{left_out:,} of {of.documents:,} documents left out"))
    if stats.unshared_keywords is not None:
        rows.append(("unshared keywords", f"{counted(stats.unshared_keywords, 'document')} left out by the method"))
    if stats.in_parts is not None:
        split = stats.in_parts
        rows.append(("in parts", f"{split.in_parts:,} of {split.documents:,} documents ({split.share:.1%})"))
    contaminated = stats.contaminated or {}
    return [
        *rows,
        *((f"contaminated by {file}", f"{counted(count, 'chunk')} left out") for file, count in contaminated.items()),
    ]


def _attention_work(stats: Stats) -> Rows:
    masks = dict.fromkeys(work.mask for work in stats.attention_work)
    return [
        (
            f"attention: {mask}",
            ", ".join(
                f"{work.mean:.2f} (at most {work.worst:.2f})" for work in stats.attention_work if work.mask == mask
            ),
        )
        for mask in masks
    ]


def _exposure(exposure: Exposure) -> Rows:
    """Return the share of predicted tokens by the tokens that they see before them."""
    rows = [(f"{one.least:,.0f}–{one.most:,.0f}", f"{one.count / exposure.targets:.1%}") for one in exposure.histogram]
    return [("mean", f"{exposure.mean:,.0f} tokens"), *rows]


def _left_out(stats: Stats) -> Rows:
    """Return a row for each reason, and below it its examples: id, what there is to say, how the text begins."""
    rows = []
    for one in stats.left_out:
        rows.append(("", f"{counted(one.count, one.unit.removesuffix('s'))}: {one.reason}"))
        for example in one.examples:
            reasons = [
                example.source_id,
                example.note,
                json.dumps(example.head, ensure_ascii=False) if example.head else "",
            ]
            rows.append(("", f"  {' · '.join(filter(None, reasons))}"))
    return rows


def _is_extended(stats: Stats) -> bool:
    return stats.layout == Layout.EXTENDED


def _reuse(stats: Stats) -> Rows:
    reuse = stats.reuse
    if reuse.mean is None:
        return []
    rows = [("distinct chunks", f"{reuse.distinct_chunks:,}"), ("mean", f"{reuse.mean:.2f}"), ("max", f"{reuse.max:,}")]
    for one in reuse.histogram:
        times = f"{one.least:,}" if one.least == one.most else f"{one.least:,}-{one.most:,}"
        rows.append((f"used {times}", counted(one.chunks, "chunk")))
    return rows


def _leaks(stats: Stats) -> Rows:
    by_design = " (by design)" if stats.repeat_meta_chunks else ""
    leaks = [("own-document negatives", stats.own_document_negatives), ("repeated chunks", stats.repeated_chunks)]
    return [(name, f"{count:,}{by_design}") for name, count in leaks if count is not None]


def _shares(tokens: dict[str, int], total: int) -> Rows:
    return [(name, f"{count:,} ({count / max(1, total):.2%})") for name, count in tokens.items()]
