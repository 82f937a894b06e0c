"""Words: what the report says to a reader who has never heard of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nextlong.picture.pieces import neighbours_before
from nextlong.recipe.keys import NEGATIVES
from nextlong.runs.run import Span
from nextlong.runs.warnings import CHECKS
from nextlong.schemas import Layout
from nextlong.text import counted

Plain = Sequence[Mapping[str, Any]]  # `Stats.as_json()` of each run
_FATAL: Final = (
    "own-document-negatives",
    "repeated-chunks",
    "lossy-tokenizer",
    "missing-ids",
)  # warnings that forbid training

_OPENINGS: Final = {
    Layout.EXTENDED: "Short documents were turned into long sequences to train a language model on. Each sequence takes one "
    "document, splits it into chunks, and inserts chunks of other documents between them: hard negatives, the most similar "
    "text in the corpus. To predict a chunk, a model must find the previous chunk of the same document thousands of tokens "
    "earlier and ignore the similar text in between.",
    Layout.CONCATENATED: "Documents were concatenated into long sequences to train a language model on. Each document stays whole "
    "as far as it fits, so its parts stay next to each other.",
    Layout.INTERLEAVED: "Documents were split into parts, and the parts of several documents were interleaved into long sequences "
    "to train a language model on. The parts of a document are now far apart, with other documents in between.",
}

_READ: Final = {
    "rank": "Higher means harder to tell apart. A line that falls slowly means that the corpus holds enough similar text; a line "
    "near 0 means that the negatives are no more similar than random text. Hover to see n, the number of chunks at that rank.",
    "similarity": "1 means the same text, 0 means nothing in common. Mass near 1 means near-duplicates, "
    "mass near 0 unrelated text.",
    "distance": "How far back a model must attend to find the previous chunk of the same document. Distances below 1,000 tokens "
    "teach little that short documents do not.",
    "exposure": "The tokens before a predicted token that its attention can reach. Short contexts do not train long attention.",
    "reuse": "Most chunks should be used once or a few times. A chunk that is used hundreds of times will be memorized.",
    "chunks": "Expect one peak. Many chunks of a few tokens are headings or fragments of tables.",
    "documents": "A document of a few chunks has little to spread out; a document longer than a sequence fills it alone.",
    "sources": "Compare this with the data mixture that you intended: a large source offers more similar chunks and tends to grow.",
    "roles": "Only the meta-documents have dependencies that span the sequence. The negatives are the distractors between them.",
    "near": "A negative that repeats the text gives the answer away, so it is filtered out. A count near the number of chunks "
    "means that the corpus should be deduplicated.",
    "yield": "Check that you accept each reason for dropping a document. Many dropped documents mean that the corpus is too small, "
    "or its documents too short for this sequence length.",
    "cost": "Seconds from the start of the first task to the end of the last; cached steps show their original time. Memory is "
    "the peak of one task, including memory-mapped files.",
}
_READ_DOCUMENTS: Final = {  # where no sequence of the page extends a document
    "rank": "Higher means that a document has more in common with what it is compared to; a line near 0 means random neighbors. "
    "Hover to see n, the number of documents at that rank.",
    "distance": "How far back a model must attend to find the previous part of the same document. Distances below 1,000 tokens "
    "teach little that short documents do not.",
    "documents": "Documents shorter than a sequence share it with others; longer ones fill sequences alone.",
    "roles": "Whole documents or their parts; the rest marks where a document ends.",
    "near": "A document that repeats another one would be memorized, so it is filtered out. A count near the number of documents "
    "means that the corpus should be deduplicated.",
}

_GLOSSARY: Final = {
    "token": ("what a model reads: a word or a part of one.", ()),
    "sequence": ("the tokens that a model sees at once during training.", ()),
    "chunk": ("a piece of a document, a few paragraphs long.", ()),
    "meta-document": ("the document that a sequence extends; its chunks are meta-chunks.", ("meta_share",)),
    "negative": ("a chunk of another document, similar to the meta-chunk before it but not a copy.", ("negatives",)),
    "cosine": (
        "the similarity of two texts, from their vectors: 1 is the same direction, 0 is unrelated.",
        ("similarity",),
    ),
    "draft": ("the planned order of chunks in a sequence, before its tokens are counted.", ()),
    "near-duplicate": (
        "a text most of whose words repeat another text.",
        ("near_duplicates", "near_duplicate_documents"),
    ),
}  # the fields of the statistics that a run must have for the term to be of use


class Verdict(NamedTuple):
    """Whether to train on a run: a level of the style sheet, the decision in a few words, and the reasons."""

    level: str
    decision: str
    reasons: tuple[str, ...]


def is_extended(plain: Plain) -> bool:
    """Say whether a sequence of at least one of the runs extends a document."""
    return any(stats["layout"] == Layout.EXTENDED for stats in plain)


def reading(name: str, plain: Plain) -> str:
    """Return how to read the chart or table of a name, in a sentence or two."""
    return _READ[name] if is_extended(plain) else _READ_DOCUMENTS.get(name, _READ[name])


def glossary(plain: Plain) -> dict[str, str]:
    """Return the terms that a page about these runs uses, and what they mean."""

    def is_used(fields: tuple[str, ...]) -> bool:
        return not fields or any(stats[key] is not None for stats in plain for key in fields)

    return {term: meaning for term, (meaning, fields) in _GLOSSARY.items() if is_used(fields)}


def sequences_of(count: int, tokens: int) -> str:
    """Return a number of sequences and their length in words."""
    return f"{counted(count, 'sequence')} of exactly {tokens:,} tokens"


def sequence(spans: Sequence[Span], *, lead: int, tokens: int) -> str:
    """Return what a sequence is made of, in a sentence or two."""
    meta_spans = [span for span in spans if span.doc_id == lead]
    others = {span.doc_id for span in spans if span.doc_id >= 0} - {lead}
    apart = [abs(b.token_start - a.token_end) for a, b in neighbours_before(spans, lead)]
    held = f"{counted(len(meta_spans), 'chunk')} of the document and text of {counted(len(others), 'other document')}"
    if not apart:
        return f"{tokens:,} tokens: {held}. The chunks of the document are still next to each other."
    return f"{tokens:,} tokens: {held}. Chunks that were neighbors are now up to {max(apart):,} tokens apart."


def opening(stats: Mapping[str, Any]) -> str:
    """Return what was done to the documents, in a few sentences."""
    return _OPENINGS[Layout(stats["layout"])]


def made(stats: Mapping[str, Any]) -> str:
    """Return what was made from what, in a sentence."""
    return (
        f"{sequences_of(stats['sequences'], stats['target_tokens'])} ({stats['tokens']:,} tokens) from "
        f"{stats['distinct_documents']:,} of the {counted(stats['yields']['documents'], 'document')} of the corpus."
    )


def compared(stats: Mapping[str, Any]) -> str:
    """Return what the cosines of a run compare."""
    what = "negatives" if stats["layout"] == Layout.EXTENDED else "documents"
    return f"{what} to {stats['scores']}"


def verdict(stats: Mapping[str, Any]) -> Verdict:
    """Return whether to train on a run, and why."""
    messages = tuple(f"{warned['message'][:1].upper()}{warned['message'][1:]}." for warned in stats["warnings"])
    if any(warned["name"] in _FATAL for warned in stats["warnings"]):
        return Verdict("stop", "Do not train on this data.", messages)
    if messages:
        points = "one point" if len(messages) == 1 else f"these {len(messages)} points"
        return Verdict("look", f"Probably, but check {points} first.", messages)
    if stats["negatives"] and NEGATIVES[stats["negatives"]].repeat_meta_chunk:
        reason = "The sequences repeat their own document, as the recipe asks: a control for an experiment, not training data."
        return Verdict("look", "Only as a control.", (reason,))
    reasons = [f"All {len(CHECKS)} data-quality checks passed.", "No sequence contains the same chunk twice."]
    if stats["own_document_negatives"] == 0:
        reasons.append("No negative comes from the document that it interrupts.")
    if isinstance(stats["yields"]["asked"], int):
        reasons.append("The run produced as many sequences as the recipe asks for.")
    return Verdict("good", "Yes, train on it.", tuple(reasons))
