"""Words: what the report says to a reader who has never heard of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nextlong.corpus.filter_report import EXCLUDED
from nextlong.picture.pieces import neighbours_before
from nextlong.runs import warnings as limits
from nextlong.runs.run import Run, Span
from nextlong.runs.spans import NEAR_IDENTICAL_COSINE
from nextlong.schemas import Layout
from nextlong.sequences.shortfall import MOST_DROPPED
from nextlong.text import counted

# Of five corpora that pass all checks at 32,768 tokens (docs/warnings.md): the least and the most
_COSINES: Final = {"lsa": (0.39, 0.61)}  # by encoder: mean cosine of the negatives
_META_TOKENS: Final = 1050, 1700  # tokens of the meta-document of a sequence, on average
Plain = Sequence[Mapping[str, Any]]  # `Stats.as_json()` of each run
_SHOWN_FILES: Final = 4
_FATAL: Final = (
    "own-document-negatives",
    "repeated-chunks",
    "lossy-tokenizer",
    "missing-ids",
)  # warnings that forbid training

_OPENINGS: Final = {
    Layout.EXTENDED: "Short documents were turned into long sequences to train a language model on. A sequence "
    "takes one document (its meta-document), splits it into meta-chunks, and inserts negatives between them: "
    "{negatives}. A model that predicts a meta-chunk gains from the one before it{far}; {between}.",
    Layout.CONCATENATED: "Documents were concatenated into long sequences to train a language model on. Each document stays whole "
    "as far as it fits, so its parts stay next to each other.",
    Layout.INTERLEAVED: "Documents were split into parts, and the parts of several documents were interleaved into long sequences "
    "to train a language model on. The parts of a document are now far apart, with other documents in between.",
}

_READ: Final = {
    "rank": "Rank 1 is the most similar negative of a meta-chunk. Good: far above the line of random pairs, and "
    "falling slowly, which "
    "means that the corpus holds enough similar text. Hover to see n, the number of negatives at that rank.",
    "similarity": "1 means the same text; random pairs show what unrelated text has. Good lies in between: "
    f"unrelated text is easy to ignore, and nearly identical text ({NEAR_IDENTICAL_COSINE} or more) teaches little. "
    "The scale depends on the encoder.",
    "distance": "How far back a model must attend to find the previous chunk of the same document. A check warns if "
    f"one distance in ten is below {limits.LEAST_DISTANCE:.0%} of a sequence.",
    "source-cosine": "The negatives of each source's meta-documents. A source near the mean of random pairs has too "
    "little similar text in the corpus.",
    "exposure": "The tokens before a predicted token that its attention can reach. Short contexts do not train long "
    "attention.",
    "reuse": "Most chunks should be used once or a few times. A chunk that is used hundreds of times is likely to be "
    "memorized.",
    "chunks": "Expect one peak. Many chunks of a few tokens are headings or fragments of tables.",
    "documents": "A document of a few chunks has little to spread out; a document longer than a sequence fills it "
    "alone.",
    "sources": "Tokens of the sequences by source, and characters of the corpus. A source whose chunks are similar "
    "to many others gains.",
    "roles": "Only the meta-document has dependencies that span the sequence; the negatives are the distractors "
    f"between its chunks. A check warns below {limits.LEAST_META_SHARE:.2%} and above {limits.MOST_META_SHARE:.0%}.",
    "near": "A negative that repeats the text gives the answer away, so it is filtered out and the next similar "
    "chunk is used.",
    "yield": "Check that you accept each reason for dropping a document. Many dropped documents mean that the "
    "corpus is too small, or its documents too short for this sequence length.",
    "cost": "Steps that take at least 1% of the time; the numbers have all. Seconds from the start of the first task "
    "to the end of "
    "the last; cached steps show their original time. Memory is the peak of one task, including memory-mapped files.",
}
_READ_DOCUMENTS: Final = {  # where no sequence of the page extends a document
    "rank": "How much a document has in common with what it is compared to; a line near 0 means random neighbors. "
    "Hover to see n, the number of documents at that rank.",
    "similarity": "1 means the same text, 0 unrelated text. The scale depends on the encoder.",
    "source-cosine": "The documents of each source. A source with a low mean has few related documents in the corpus.",
    "distance": "How far back a model must attend to find the previous part of the same document.",
    "documents": "Documents shorter than a sequence share it with others; longer ones fill sequences alone.",
    "roles": "Whole documents or their parts; the rest marks where a document ends.",
    "near": "A document that repeats another one would be memorized, so it is filtered out.",
}

# What a passed check means, by its name in `CHECKS`.
_PASSED: Final = {
    "own-document-negatives": "No negative comes from the document that it interrupts.",
    "low-meta-share": f"Meta-documents have at least {limits.LEAST_META_SHARE:.2%} of the tokens.",
    "high-meta-share": f"Meta-documents have at most {limits.MOST_META_SHARE:.0%} of the tokens.",
    "short-distances": f"Nine in ten distances between consecutive meta-chunks are at least {limits.LEAST_DISTANCE:.0%} of "
    f"a sequence.",
    "unrelated-negatives": "Negatives are more similar to their meta-chunk than random pairs of chunks to each other.",
    "one-source": f"No source gives {limits.SOURCE_SHARE:.0%} of the negatives and {limits.SOURCE_LIFT:g} times its share of the "
    f"meta-documents.",
    "near-identical-negatives": f"At most {limits.MOST_NEAR_IDENTICAL:.0%} of the negatives have a cosine of "
    f"{NEAR_IDENTICAL_COSINE} or more to their meta-chunk.",
    "much-cut-off": f"At most {limits.MOST_CUT_OFF:.0%} of the documents' tokens are cut off at the ends of sequences.",
    "many-near-duplicates": f"At most {limits.MOST_NEAR_DUPLICATES:.0%} of the documents were filtered out as "
    f"near-duplicates.",
    "no-keywords": f"At most {limits.MOST_WITHOUT_KEYWORDS:.0%} of a source's documents have no keyword.",
    "hardly-in-parts": f"At least {limits.LEAST_IN_PARTS:.0%} of the documents are split into parts.",
    "repeated-chunks": "No sequence contains the same chunk twice.",
    "fewer-sequences": "The run produced as many sequences as the recipe asks for.",
    "many-dropped": f"At most {MOST_DROPPED:.0%} of the drafts were dropped.",
    "heavy-reuse": f"A chunk is used at most {limits.MOST_USES:g} times on average, and at most {limits.MOST_OVERUSED:.0%} of the "
    "uses go to chunks used more than 16 times.",
    "small-corpus": f"A sequence takes text from at most {limits.MOST_OF_CORPUS:.0%} of the documents.",
    "stand-in-tokenizer": "The tokenizer is that of a model, not one trained on this corpus.",
    "lossy-tokenizer": "The tokenizer can represent the characters of the text.",
    "no-eos": "Sequences end with the tokenizer's end-of-text token, if it has one.",
    "ordinary-eos": "The special tokens are not ordinary tokens of the vocabulary.",
    "small-tokens": f"A token holds at least {limits.LEAST_BYTES_PER_TOKEN:g} bytes of text on average.",
    "missing-ids": "Every document has a value in the id column of its source.",
    "same-ids": "No two documents of a source have the same id.",
    "unmet-exclusions": "Every entry of ingest.exclude names a document of the corpus.",
}
_NEEDS: Final = {  # the field of the statistics that is None where a check has nothing to look at
    "own-document-negatives": "own_document_negatives",
    "low-meta-share": "meta_share",
    "high-meta-share": "meta_share",
    "short-distances": "meta_share",
    "one-source": "negatives_by_source",
    "near-identical-negatives": "near_identical",
    "unrelated-negatives": "random_similarity",
    "much-cut-off": "cut_off",
    "many-near-duplicates": "near_duplicate_documents",
    "no-keywords": "keywords",
    "hardly-in-parts": "in_parts",
    "small-corpus": "similarity",
}

_NEGATIVES: Final = {  # by compose.negatives: what they are, and what a model makes of them
    None: ("chunks of other documents", "it must ignore the text in between"),
    "top": (
        "the chunks of other documents that are most similar to the meta-chunk {beside}",
        "it must ignore the similar text in between",
    ),
    "random-retrieved": (
        "the chunks of other documents that are most similar to the meta-chunk {beside}, in random order",
        "it must ignore the similar text in between",
    ),
    "tail": (
        "of the chunks that search found for the meta-chunk {beside}, the least similar",
        "it must ignore the text in between",
    ),
    "random-corpus": ("random chunks of other documents", "it must ignore the unrelated text in between"),
    "self-repeat": ("copies of the meta-chunk {beside}", "the copies in between add nothing"),
}

# What the words of a recipe mean, by the field of the statistics that holds them.
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "negatives": {
        "top": "the most similar chunks, most similar first",
        "random-retrieved": "the most similar chunks, in random order",
        "tail": "the most similar chunks, least similar first",
        "random-corpus": "random chunks of the corpus",
        "self-repeat": "the meta-chunk itself",
    },
    "position": {
        "head": "before its negatives",
        "tail": "after its negatives",
        "random": "at a random place among its negatives",
    },
    "fit": {
        "exact": "tokens are shared evenly among the gaps; only the last negative is cut",
        "paper": "the number of negatives follows the paper's formula; the sequence is cut at its end",
    },
    "encoder": {"lsa": "latent semantic analysis, fitted to the corpus"},
}

_GLOSSARY: Final = {
    "token": ("what a model reads: a word or a part of one.", ()),
    "sequence": ("the tokens that a model sees at once during training.", ()),
    "chunk": ("a piece of a document, a few paragraphs long.", ()),
    "meta-document": ("the document that a sequence extends; its chunks are meta-chunks.", ("meta_share",)),
    "negative": ("a chunk between two meta-chunks; here {negatives}.", ("negatives",)),
    "cosine": (
        "the similarity of two texts, from their vectors: 1 is the same direction, 0 no common direction{unrelated}.",
        ("similarity",),
    ),
    "draft": ("the planned order of chunks in a sequence, before its tokens are counted.", ()),
    "near-duplicate": (
        "a text most of whose words repeat another text.",
        ("near_duplicates", "near_duplicate_documents"),
    ),
}  # the fields of the statistics that a run must have for the term to be of use


class Verdict(NamedTuple):
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
    return any(stats["layout"] == Layout.EXTENDED for stats in plain)


def reading(name: str, plain: Plain, names: Sequence[str]) -> str:
    """Return how to read the chart or table of a name, with what its numbers are to be compared to."""
    read = _READ[name] if is_extended(plain) else _READ_DOCUMENTS.get(name, _READ[name])
    told = [_compared_to(name, stats) for stats in plain]
    if len(set(told)) == 1:
        return f"{read} {told[0]}".strip()
    return " ".join([read, *(f"{run}: {text}" for run, text in zip(names, told, strict=False) if text)])


def _compared_to(name: str, stats: Mapping[str, Any]) -> str:
    """Return what the numbers of a run are to be compared to, in the card of a name; "" if there is nothing to say."""
    tokens, random, share = stats["target_tokens"], stats["random_similarity"], stats["meta_share"]
    passed = "five corpora that passed all checks had"
    if name in ("similarity", "source-cosine") and random:
        told = (
            f"Random pairs of chunks have a mean cosine of {random['mean']:.2f} (90th percentile {random['p90']:.2f})."
        )
        if name == "source-cosine" or stats["encoder"] not in _COSINES:
            return told
        least, most = _COSINES[stats["encoder"]]
        limit = " A check warns at or below the mean of random pairs." if stats["negatives"] == "top" else ""
        mean = f"this run has {stats['similarity']['mean']:.2f}.{limit}"
        return f"{told} With {stats['encoder']}, {passed} means of {least:.2f} to {most:.2f}; {mean}"
    if name == "roles" and share:
        usual = f"{_META_TOKENS[0]:,} to {_META_TOKENS[1]:,} tokens on average"
        least, most = (meta_tokens / tokens for meta_tokens in _META_TOKENS)
        shares = f"{least:.1%} to {most:.1%} of {tokens:,}; this run has {share:.1%}."
        return f"Meta-documents of {passed} {usual}: {shares}"
    if name == "yield" and stats["min_meta_chunks"]:
        chunks = counted(stats["min_meta_chunks"], "chunk")
        return (
            f"A document can be extended if it has at least {chunks} (compose.min_meta_chunks), because negatives stand "
            "between its chunks; shorter documents serve as negatives."
        )
    if name == "chunks" and stats["chars_per_token"]:
        chars, per_token = stats["max_chars"], stats["chars_per_token"]
        longest = f"; the longest chunk has {stats['chunk_tokens']['max']:,.0f}" if stats["chunk_tokens"] else ""
        return (
            f"A token has {per_token:.1f} characters on average, so a chunk of {chars:,} characters (chunk.max_chars) has "
            f"about {chars / per_token:,.0f} tokens on average{longest}."
        )
    if name == "distance" and share:
        return f"Here that is {limits.LEAST_DISTANCE * tokens:,.0f} tokens."
    documents, drafts = stats["yields"]["documents"], stats["yields"]["drafts"]
    if name == "near" and (count := stats["near_duplicate_documents"]) is not None:
        return f"Filtered out: {count:,} of {counted(documents, 'document')} ({count / max(1, documents):.1%})."
    if name == "near" and (count := stats["near_duplicates"]) is not None and stats["similarity"]:
        each = f"{stats['similarity']['count'] / max(1, stats['sequences']):.1f} negatives on average"
        rate = f"{count / max(1, drafts):.1f} per draft"
        return f"Filtered out: {count:,} chunks in {counted(drafts, 'draft')}, {rate}. A sequence has {each}."
    return ""


def glossary(plain: Plain) -> dict[str, str]:
    """Return the terms that a page about these runs uses, and what they mean."""
    known = {key for stats in plain for key, value in stats.items() if value is not None}
    negatives = "; or ".join(dict.fromkeys(_negatives(stats)[0] for stats in plain if stats["negatives"]))
    random = {stats["random_similarity"]["mean"] for stats in plain if stats["random_similarity"]}
    unrelated = f"; unrelated text of this corpus has about {random.pop():.2f}" if len(random) == 1 else ""
    return {
        term: meaning.format(negatives=negatives, unrelated=unrelated)
        for term, (meaning, fields) in _GLOSSARY.items()
        if not fields or not known.isdisjoint(fields)
    }


def _negatives(stats: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the negatives of a run are, and what a model makes of them."""
    beside = {"head": "before them", "tail": "after them"}.get(stats["position"], "among them")
    what, between = _NEGATIVES[stats["negatives"]]
    return what.format(beside=beside), between


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
    told = _OPENINGS[Layout(stats["layout"])]
    if stats["layout"] != Layout.EXTENDED:
        return told
    negatives, between = _negatives(stats)
    distance = stats["distance_tokens"]
    far = f", {distance['p50']:,.0f} tokens earlier (median)" if distance else ""
    return told.format(negatives=negatives, far=far, between=between)


def title(plain: Plain) -> str:
    """Return the heading of the page."""
    if len(plain) > 1:
        return f"{len(plain)} data sets side by side"
    return f"{counted(plain[0]['sequences'], 'long sequence')} of {plain[0]['target_tokens']:,} tokens"


def facts(stats: Mapping[str, Any], run: Run) -> dict[str, str]:
    """Return what the data set is and what it was made from: a few words each, by name."""
    sources = [source.path for source in run.recipe.ingest.sources]
    more = f" and {len(sources) - _SHOWN_FILES} more" if len(sources) > _SHOWN_FILES else ""
    trained = f"trained on this corpus ({run.recipe.tokenizer.train or 0:,} entries); no pretrained model knows its ids"
    version = run.steps["compose"].manifest["versions"].get("nextlong")
    told = {
        "data set": stats["run"],
        "made": f"{run.variant.made[:10]}{f' by nextlong {version}' if version else ''}, method {stats['method_name']}",
        "input": f"{', '.join(sources[:_SHOWN_FILES])}{more}",
        "tokenizer": run.recipe.tokenizer.source or trained,
        "encoder": ": ".join(filter(None, (stats["encoder"], SETTINGS["encoder"].get(stats["encoder"], "")))),
    }
    return {name: text for name, text in told.items() if text}


def verdict(stats: Mapping[str, Any], *, is_stand_in: bool = False) -> Verdict:
    """Return whether to train on a run, and why; `is_stand_in`: the tokenizer was trained on its corpus."""
    found = {warned["name"] for warned in stats["warnings"]}
    # A check that had nothing to look at is not passed: what it would say means nothing.
    special = {
        "fewer-sequences": stats["yields"]["asked"] != "all",
        "unrelated-negatives": stats["negatives"] == "top",
        "one-source": len(stats["tokens_by_source"]) > 1,
        "stand-in-tokenizer": stats["target_tokens"] >= limits.STAND_IN_TOKENS,
        "unmet-exclusions": any(one["reason"] == EXCLUDED for one in stats["left_out"]),
    }
    applying = {name for name in _PASSED if special.get(name, True)}
    applying -= {name for name, field in _NEEDS.items() if stats[field] is None}
    passed = tuple(told for name, told in _PASSED.items() if name in applying - found)
    messages = tuple(f"{warned['message'][:1].upper()}{warned['message'][1:]}." for warned in stats["warnings"])
    cautions = [stats["control"]] if stats["control"] else []
    if is_stand_in and "stand-in-tokenizer" not in found:
        cautions.append(f"The tokenizer was trained on this corpus: train on the data {limits.FROM_SCRATCH}.")
    if messages:
        changes = [warned["change"] for warned in stats["warnings"] if warned["change"]]
        # Two values of one key contradict each other: then neither solves anything.
        values = Counter(change.partition("=")[0] for change in set(changes))
        changes = [change for change in changes if values[change.partition("=")[0]] == 1]
        points = "this problem" if len(messages) == 1 else f"these {len(messages)} problems"
        solved = points if len(changes) == len(messages) else f"{len(changes)} of {points}"
        level, decision = "look", f"Not yet: solve {points} and build the data again."
        if not found.isdisjoint(_FATAL):
            level, decision = "stop", "No, do not train on this data."
        return Verdict(level, decision, (*messages, *cautions), passed, tuple(dict.fromkeys(changes)), solved)
    if stats["control"]:
        return Verdict("look", "Only as a control.", tuple(cautions), passed)
    decision = f"No defects found: you can train on it{f', {limits.FROM_SCRATCH}' if is_stand_in else ''}."
    reasons = [f"All {len(passed)} data-quality checks passed. Whether such data helps a model: docs/results.md."]
    similarity, random, distance = (stats[key] for key in ("similarity", "random_similarity", "distance_tokens"))
    if random and similarity["mean"] > random["mean"]:
        mean = f"mean cosine {similarity['mean']:.2f}. Random pairs of chunks have {random['mean']:.2f}."
        reasons.append(f"Negatives are similar to their meta-chunk: {mean}")
    if distance:
        apart = f"{distance['p50']:,.0f} tokens apart (median)"
        reasons.append(f"Chunks that followed each other in their document are now {apart}.")
    return Verdict("good", decision, tuple(reasons), passed)
