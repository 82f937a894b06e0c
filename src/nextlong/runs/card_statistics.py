"""Card statistics: what the card of an export tells about its data, from a run's `Stats`."""

from __future__ import annotations

from nextlong.runs.stats import Stats
from nextlong.runs.tally import Spread
from nextlong.schemas import Layout


def statistics(stats: Stats) -> dict[str, str]:
    """Return label → value, without what the data set has nothing to count for."""
    is_extended = stats.layout == Layout.EXTENDED
    chunks = "chunks of the meta-document" if is_extended else "parts of a document"
    similar = "a negative to its meta-chunk" if is_extended else f"a document to {stats.scores}"
    numbers = {
        "sequences": f"{stats.sequences:,} of {stats.target_tokens:,} tokens",
        "documents": f"{stats.distinct_documents:,} of {stats.yields.documents:,} in the corpus",
        "documents in a sequence": _spread(stats.documents_per_sequence, "{:,.0f}"),
        "share of the meta-documents": f"{stats.meta_share:.1%} of the tokens" if stats.meta_share else "",
        f"tokens between consecutive {chunks}": _spread(stats.distance_tokens, "{:,.0f}"),
        f"cosine of {similar}": _spread(stats.similarity, "{:.3f}"),
        "uses of a chunk": f"{stats.reuse.mean:.2f} on average, {stats.reuse.max:,} at most" if stats.reuse.max else "",
        "negatives from the own document": _count(stats.own_document_negatives),
        "chunks repeated in a sequence": f"{stats.repeated_chunks:,}",
        "characters per token": f"{stats.chars_per_token:.3f}" if stats.chars_per_token else "",
        "encoder": stats.encoder or "",
        "search": stats.search or "",
    }
    return {label: value for label, value in numbers.items() if value}


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    mean, p10, p50, p90 = (form.format(value) for value in (spread.mean, spread.p10, spread.p50, spread.p90))
    return f"{mean} on average, median {p50}, {p10} to {p90} (p10 to p90)"
