"""Words: what the page says to somebody who has never heard of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nextlong.picture.pieces import neighbours_before
from nextlong.plural import counted
from nextlong.recipe.negatives import NEGATIVES
from nextlong.runs.opened import Span
from nextlong.schemas import Layout

_OPENINGS: Final = {
    Layout.EXTENDED: "Short documents were made into long sequences to train a language model on. Each sequence takes one "
    "document, cuts it into its chunks, and puts chunks of other, similar documents in between. What a chunk depends on now "
    "stands far before it, among look-alikes: a model learns to find it there.",
    Layout.CONCATENATED: "Documents were put one after the other into long sequences to train a language model on. Each document "
    "stays whole as far as it fits: what it depends on stands where it always stood, right before it.",
    Layout.INTERLEAVED: "Documents were cut into parts, and the parts of several documents put in turn into long sequences to "
    "train a language model on. What a part depends on now stands far before it, with other documents in between.",
}

READ: Final = {
    "yield": "Every draft that was not kept should have a reason you accept; many dropped ones mean that the corpus is too "
    "small or its documents too short for this length.",
    "rank": "The higher, the harder it is to tell the look-alikes from the real thing; a line that falls slowly says that the "
    "corpus holds enough of them, one near 0 says that they are as good as chance.",
    "similarity": "1 is the same text, 0 has nothing in common; a heap near 1 would be copies, a heap near 0 would be chance.",
    "distance": "This is what the data are for: the lower on the picture the long bars stand, the further back a model has to "
    "look. Bars below 1,000 tokens teach little that short documents do not. A run whose documents stay whole has none.",
    "reuse": "Most chunks should be used once or a few times; a chunk that is used hundreds of times will be learned by heart.",
    "chunks": "One heap is what to expect; many chunks of a few tokens are headings or remains of tables.",
    "documents": "Documents of a few chunks have little to pull apart; those far longer fill sequences by themselves.",
    "sources": "Compare with the mix you meant: similar chunks are found where there is much of a kind, so a large source tends to "
    "grow.",
    "roles": "The document that is stretched is the part a model can predict from far back; the rest is what stands in between.",
    "chars": "About 4 is usual for English, 1 to 2 for Chinese or Japanese; less than your language's usual says that the "
    "tokenizer was not made for these texts, so that a sequence holds little.",
    "near": "A look-alike that repeats the text itself would give the answer away, so it is left out; a count as large as the "
    "number of chunks says that the corpus should be deduplicated.",
    "leaks": "Both numbers have to be 0, unless a sequence was asked to repeat itself.",
    "time": "Seconds from the start of a step's first task to the end of its last; a step that was kept from an earlier run "
    "shows what it took then.",
    "memory": "The most that one task of a step held at a time; times the number of workers it is what the step needs. Files that "
    "are read in place count as well, which the system takes back when memory is short.",
    "bytes": "What a step left on the disk; `nextlong gc` says what can go.",
}

# Where no sequence of the page stretches a document.
_READ_OF_DOCUMENTS: Final = {
    "rank": "The higher, the more a document has in common with what it is compared to; a line near 0 says that the two are "
    "together by chance.",
    "similarity": "1 is the same text, 0 has nothing in common; a heap near 1 would be copies, a heap near 0 would be chance.",
    "distance": "The lower on the picture the long bars stand, the further back a model has to look for what a part of a document "
    "depends on. Bars below 1,000 tokens teach little that short documents do not.",
    "documents": "Documents much shorter than a sequence share it with others; those far longer fill sequences by themselves.",
    "roles": "Whole documents, one after the other or in parts; what else there is marks where one ends.",
    "near": "A document that repeats another would be learned by heart, so it is left out; a count as large as the number of "
    "documents says that the corpus should be deduplicated.",
    "leaks": "The number has to be 0.",
}

HOW_TO_EXPLORE: Final = (
    "Each bar is a sequence, from its first token on the left to its last on the right. Point at it to see which chunk stands "
    "there; click, or move the slider, to read the chunk beside the text it belongs to. Marked are the words that both hold, "
    "without those that most texts hold: what a model could confuse the two by."
)

GLOSSARY: Final = {
    "token": "what a model reads: a word or a part of one.",
    "sequence": "the tokens that a model sees at once while it trains.",
    "chunk": "a piece of a document, some paragraphs long.",
    "meta-document": "the document that a sequence stretches; its chunks are meta-chunks.",
    "negative": "a chunk of another document, as similar as possible to the meta-chunk it stands beside, but not the same.",
    "cosine": "how similar two texts are, from their vectors: 1 is the same direction, 0 nothing in common.",
    "draft": "who stands in a sequence and in what order, before its tokens are counted.",
    "near-copy": "a chunk most of whose words repeat another text word by word.",
}


_TERMS_OF: Final = {  # what a run must have for the term to be of use
    "meta-document": ("meta_share",),
    "negative": ("negatives",),
    "cosine": ("similarity",),
    "near-copy": ("near_copies", "near_copy_documents"),
}


def is_extended(plain: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a sequence of one of the runs at least stretches a document."""
    return any(stats["layout"] == Layout.EXTENDED for stats in plain)


def reading(name: str, plain: Sequence[Mapping[str, Any]]) -> str:
    """Return how to read the picture or table of a name, in a sentence or two."""
    return READ[name] if is_extended(plain) else _READ_OF_DOCUMENTS.get(name, READ[name])


def glossary(plain: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the terms that a page about these runs uses, and what they mean."""

    def is_used(term: str) -> bool:
        return term not in _TERMS_OF or any(stats[key] is not None for stats in plain for key in _TERMS_OF[term])

    return {term: meaning for term, meaning in GLOSSARY.items() if is_used(term)}


def sequences_of(count: int, tokens: int) -> str:
    """Return so many sequences of so many tokens in words."""
    return f"{counted(count, 'sequence')} of exactly {tokens:,} tokens"


def chunks(count: int) -> str:
    """Return so many chunks in words."""
    return counted(count, "chunk")


def sequence(spans: Sequence[Span], *, lead: int, tokens: int) -> str:
    """Return what a sequence is made of, in a sentence or two."""
    meta_spans = [span for span in spans if span.doc_id == lead]
    others = {span.doc_id for span in spans if span.doc_id >= 0} - {lead}
    apart = [abs(b.token_start - a.token_end) for a, b in neighbours_before(spans, lead)]
    summary = f"{tokens:,} tokens: {chunks(len(meta_spans))} of the document, and text of {counted(len(others), 'other document')}."
    if not apart:
        return f"{summary} Whatever the document holds still stands side by side."
    return f"{summary} Chunks that stood side by side are now up to {max(apart):,} tokens apart."


def opening(stats: Mapping[str, Any]) -> str:
    """Return what was done to the documents, in three sentences."""
    return _OPENINGS[Layout(stats["layout"])]


def made(stats: Mapping[str, Any]) -> str:
    """Return what was made from what, in a sentence."""
    return (
        f"{sequences_of(stats['sequences'], stats['target_tokens'])}, {stats['tokens']:,} tokens in all, from "
        f"{stats['distinct_documents']:,} of the {counted(stats['yields']['documents'], 'document')} of the corpus."
    )


def similarity_to(stats: Mapping[str, Any]) -> str:
    """Return what cosines of a run compare."""
    what = "negatives" if stats["layout"] == Layout.EXTENDED else "documents"
    return f"{what} to {stats['scores']}"


def verdict(stats: Mapping[str, Any]) -> list[str]:
    """Return what speaks against training on a run, or that nothing which is checked does."""
    if lines := warnings(stats):
        return [f"Look before you train: {one}" for one in lines]
    if stats["negatives"] and NEGATIVES[stats["negatives"]].repeat_meta_chunk:
        return ["The sequences repeat themselves, as was asked: an experiment's control, rarely what to train on."]
    no_leaks = (
        ", no look-alike comes from the document that it stands among" if stats["own_document_negatives"] == 0 else ""
    )
    asked = ", and there are as many sequences as were asked for" if isinstance(stats["yields"]["asked"], int) else ""
    return [
        f"Nothing that is checked here speaks against training on it: no chunk stands twice in a sequence{no_leaks}{asked}. "
        "Whether its cosines, distances and sources are what you want, the pictures say."
    ]


def warnings(stats: Mapping[str, Any]) -> list[str]:
    """Return what somebody should look at before training on a run; none where its numbers hold no reason."""
    return [f"{warned['message']}." for warned in stats["warnings"]]
