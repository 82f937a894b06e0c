"""Quest: documents that answer the same queries, by keyword (arXiv 2405.19846, ICLR 2025).

In:  the queries of each document (by a doc2query model, or the extractive stand-in).
Out: positions of documents, in sequences of documents that share a keyword.

What the paper says, as quoted from its v7 (§3, App. A.4) in public reading notes; its own code is not published
(github.com/caskcsg/longcontext holds none of Quest's):

- a doc2query model predicts queries; long documents are segmented, a query is generated for each segment;
- RAKE on the queries: "we filter out keywords with a Rake score below 3.0", then "frequent but non-informative keywords
  such as 'following sentence' or 'best way'"; "we randomly select one of the remaining keywords";
- "Documents with an identical representative keyword are indexed together";
- keywords are sorted by document count, the top split-ratio % form a short-index set that is oversampled; "The best
  results occur when oversampled indexes comprise 10-30%";
- "We perform sampling without replacement from the documents within a sampled keyword and concatenate the selected
  documents up to the target context length L".

Ours, where those notes are silent: `split_ratio` 0.2, the middle of that range, taken from the keywords with fewest
documents; "oversampled" means that they come `oversample` times where others come once; RAKE sees all queries of a
document at once; and a keyword whose documents do not fill a sequence is followed by the next one drawn, one that
overfills it goes on in the next sequence. A document stands in a sequence once. Documents without a keyword are left out.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from nextlong.engine.executor import Capacity, Resources, granted_gpus
from nextlong.errors import EncoderError
from nextlong.methods.base import stretches
from nextlong.methods.quest.rake import key_phrases
from nextlong.methods.quest.words import find_words, is_word, letters, spaced, stop_words_of
from nextlong.rng import keyed_hash, rng_for

EXTRACTIVE: Final = "extractive stand-in"  # its name in every report: sentences of the document, not a model's queries

# The paper's two, and what doc2query models and prose say as often and as emptily.
UNINFORMATIVE: Final = frozenset(
    [
        "following sentence", "best way", "following statement", "following question", "following example",
        "following table", "good idea", "main idea", "main purpose", "different types", "long time", "wide range",
        "large number", "small number", "many people", "years ago", "first time", "read more", "learn more",
        "see also", "table of contents", "rights reserved", "terms of service", "privacy policy",
    ]
)  # fmt: skip

# A stop inside a word (3.14, example.org) ends nothing. Matching sentences is five times as fast as splitting at ends.
_ENDS: Final = "。！？।॥؟۔។။"  # of Chinese and Japanese, Devanagari, Arabic and Urdu, Khmer, Burmese
_SENTENCES: Final = re.compile(rf"[^\n.!?{_ENDS}]+(?:[.!?]+(?=\S)[^\n.!?{_ENDS}]+)*[.!?{_ENDS}]*")
_READ_CHARS: Final = 8192  # of a document; queries are about its subject, which shows early
_QUERY_CHARS: Final = 300  # longer sentences are cut: a query is short
_TOLD_BY_CHARS: Final = 2000  # a text's language shows in these


def extract_queries(text: str, *, max_queries: int = 5) -> list[str]:
    """Return the first line and the most central sentences of a text, in reading order: the extractive stand-in.

    Where its script sets no blanks between words, the sentences have them. Raises RecipeError if what finds words is not installed.
    Central is a sentence whose words are frequent in the text: the sum of the counts of its distinct words, stop words
    left out, over the root of their number. Deterministic; no model.
    """
    read = spaced(text[:_READ_CHARS])
    stripped = (" ".join(sentence.split())[:_QUERY_CHARS] for sentence in _SENTENCES.findall(read))
    sentences = list(dict.fromkeys(filter(None, stripped)))
    stop_words = stop_words_of(find_words(read[:_TOLD_BY_CHARS].lower()))
    words = [set(filter(is_word, find_words(sentence.lower()))) - stop_words for sentence in sentences]
    counts = Counter(word for sentence_words in words for word in sentence_words)
    central = [
        sum(counts[word] for word in sentence_words) / math.sqrt(len(sentence_words) or 1) for sentence_words in words
    ]
    best = sorted(range(1, len(sentences)), key=lambda place: (-central[place], place))[: max_queries - 1]
    return [sentences[place] for place in sorted([*best, 0])] if sentences else []


def candidate_keywords(
    queries: Sequence[str],
    *,
    min_keyword_score: float = 3.0,
    min_keyword_chars: int = 6,
    uninformative: Collection[str] = UNINFORMATIVE,
) -> list[str]:
    """Return the keywords of one document's queries that may stand for it, best first: RAKE's, less the uninformative."""
    return [
        phrase
        for phrase, score in key_phrases(spaced("\n".join(queries)))
        if score >= min_keyword_score and letters(phrase) >= min_keyword_chars and phrase not in uninformative
    ]


class Index(NamedTuple):
    """The inverted index, read from the documents' side: each has one keyword or none."""

    keywords: list[str]  # the distinct ones that were drawn, in alphabetical order
    keyword_of: NDArray[np.int64]  # (n,) index into `keywords`, -1 for none


def draw_keywords(
    candidates: pa.ListArray,
    content_hashes: NDArray[np.uint64],
    *,
    seed: int,
    min_keyword_documents: int = 2,
    max_keyword_share: float = 0.05,
) -> Index:
    """Draw one keyword a document, by key, from its candidates, list<string> (n,), each distinct within its document.

    Candidates of fewer than `min_keyword_documents` documents join nothing and those of more than the share
    `max_keyword_share` of all documents say nothing; neither is drawn.
    """
    offsets = candidates.offsets.to_numpy()
    words = candidates.values.slice(offsets[0], offsets[-1] - offsets[0]).dictionary_encode()
    codes, owner = words.indices.to_numpy(), np.repeat(np.arange(len(candidates)), np.diff(offsets))
    documents = np.bincount(codes, minlength=len(words.dictionary))
    usable = (documents >= min_keyword_documents) & (documents <= max_keyword_share * len(candidates))
    codes, owner = codes[usable[codes]], owner[usable[codes]]
    choices = np.bincount(owner, minlength=len(candidates))
    drawn = keyed_hash(content_hashes, seed=seed, stage="quest.keyword") % np.maximum(choices, 1).astype(np.uint64)
    place = np.cumsum(choices) - choices + drawn.astype(np.int64)
    keyword_of = np.full(len(candidates), -1, np.int64)
    keyword_of[choices > 0] = codes[place[choices > 0]]
    return _alphabetical(keyword_of, words.dictionary)


def _alphabetical(keyword_of: NDArray[np.int64], dictionary: pa.StringArray) -> Index:
    drawn = np.unique(keyword_of[keyword_of >= 0])
    keywords = dictionary.take(pa.array(drawn)).to_pylist()
    order = sorted(range(len(drawn)), key=keywords.__getitem__)
    new_code = np.full(len(dictionary) + 1, -1, np.int64)  # the last stays -1, for documents without
    new_code[drawn[order]] = np.arange(len(drawn))
    return Index([keywords[place] for place in order], new_code[keyword_of])


def draft(
    index: Index,
    content_hashes: NDArray[np.uint64],
    tokens: NDArray[np.int64],
    *,
    enough: int,
    sequences: int | None,
    seed: int,
    split_ratio: float = 0.2,
    oversample: int = 2,
) -> list[NDArray[np.int64]]:
    """Return at most `sequences` (None: all) lists of positions of `enough` tokens each, keyword after keyword.

    Every keyword comes once, the `split_ratio` of them with the fewest documents `oversample` times, in random order;
    its documents follow in random order. That row is cut into sequences, of which `sequences` are drawn. A document
    that an oversampled keyword would put into one sequence twice stands there once, and those left short are left out.
    """
    order = _row(index, content_hashes, seed=seed, split_ratio=split_ratio, oversample=oversample)
    pieces = stretches(order, tokens, enough=enough)
    shuffle = rng_for(seed, "quest.stretches").permutation(len(pieces)).tolist()
    drafts: list[NDArray[np.int64]] = []
    for place in shuffle:
        if len(drafts) == sequences:
            break
        _, first = np.unique(pieces[place], return_index=True)
        piece = pieces[place][np.sort(first)]
        if tokens[piece].sum() >= enough:
            drafts.append(piece)
    return drafts


def _row(
    index: Index, content_hashes: NDArray[np.uint64], *, seed: int, split_ratio: float, oversample: int
) -> NDArray[np.int64]:
    """Return the documents of all drawn keywords, one keyword after the other."""
    positions = np.flatnonzero(index.keyword_of >= 0)
    shuffled = np.argsort(keyed_hash(content_hashes[positions], seed=seed, stage="quest.documents"), kind="stable")
    by_keyword = positions[shuffled[np.argsort(index.keyword_of[positions[shuffled]], kind="stable")]]
    counts = np.bincount(index.keyword_of[positions], minlength=len(index.keywords))
    first = np.cumsum(counts) - counts
    names = np.array([xxhash.xxh3_64_intdigest(keyword.encode()) for keyword in index.keywords], np.uint64)
    rare = np.lexsort((keyed_hash(names, seed=seed, stage="quest.rare"), counts))[: round(split_ratio * len(names))]
    draws = [np.arange(len(names)), *[rare] * (oversample - 1)]
    keys = [keyed_hash(names[keyword], seed=seed, stage=f"quest.draw.{turn}") for turn, keyword in enumerate(draws)]
    row = np.concatenate(draws)[np.argsort(np.concatenate(keys), kind="stable")]
    pieces = [by_keyword[first[keyword] : first[keyword] + counts[keyword]] for keyword in row.tolist()]
    return np.concatenate([np.empty(0, np.int64), *pieces])


class Doc2Query:
    """A doc2query model (a T5 such as doc2query/msmarco-t5-base-v1), loaded by transformers."""

    def __init__(
        self,
        name: str,
        *,
        segment_tokens: int = 320,
        max_segments: int = 8,
        query_tokens: int = 64,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        """Load the model by its name on the hub or the path of its folder; raises EncoderError where that fails."""
        self._segment_tokens = segment_tokens
        self._max_segments = max_segments
        self._query_tokens = query_tokens
        self._batch_size = batch_size
        self._torch, self._tokenizer, self._model = _load_t5(name, device)

    def queries(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the queries of each text, one a segment of `segment_tokens` tokens, for its first `max_segments`.

        Greedy decoding: the authors of docTTTTTquery sample (top-k 10), but then a run could not be repeated.
        """
        owners: list[int] = []
        segments: list[list[int]] = []
        for number, text in enumerate(texts):
            text_segments = self._segments(text)
            owners += [number] * len(text_segments)
            segments += text_segments
        queries_of: list[list[str]] = [[] for _ in texts]
        for owner, query in zip(owners, self._generate(segments), strict=True):
            if query and query not in queries_of[owner]:
                queries_of[owner].append(query)
        return queries_of

    def _segments(self, text: str) -> list[list[int]]:
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        size = self._segment_tokens - 1
        starts = range(0, min(len(ids), size * self._max_segments), size)
        return [[*ids[start : start + size], self._tokenizer.eos_token_id] for start in starts]

    def _generate(self, segments: Sequence[list[int]]) -> list[str]:
        """Return one query a segment; batches hold segments of like length, so that they hold little padding."""
        queries = [""] * len(segments)
        longest_first = sorted(range(len(segments)), key=lambda place: (-len(segments[place]), segments[place]))
        for start in range(0, len(segments), self._batch_size):
            places = longest_first[start : start + self._batch_size]
            batch = self._tokenizer.pad({"input_ids": [segments[place] for place in places]}, return_tensors="pt")
            with self._torch.inference_mode():
                outputs = self._model.generate(
                    input_ids=batch["input_ids"].to(self._model.device),
                    attention_mask=batch["attention_mask"].to(self._model.device),
                    max_new_tokens=self._query_tokens,
                    do_sample=False,
                    num_beams=1,
                )
            for place, query in zip(
                places, self._tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True
            ):
                queries[place] = query.strip()
        return queries


@lru_cache(maxsize=1)
def doc2query(name: str) -> Doc2Query:
    """Return the model, which a worker loads once for all its shards."""
    return Doc2Query(name)


def query_resources(queries: str, capacity: Capacity) -> Resources:
    """Return what a task that makes queries needs: a model takes a GPU for itself, if there is one."""
    return Resources(gpus=1) if queries != "extractive" and capacity.gpus else Resources()


def _load_t5(name: str, device: str | None) -> tuple[Any, Any, Any]:
    try:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise EncoderError(
            f"quest.queries={name}: {error}; pip install 'nextlong[quest]', or take "
            "quest.queries: extractive, which needs no model"
        ) from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(name)
    except ImportError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EncoderError(f"quest.queries={name} cannot be loaded: {reason}; pip install 'nextlong[quest]'") from None
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EncoderError(
            f"quest.queries={name} cannot be loaded: {reason}; give the path of a folder with a T5 and its tokenizer, or "
            "a name on the Hugging Face Hub (and a network), such as doc2query/msmarco-t5-base-v1"
        ) from None
    best = f"cuda:{next(iter(granted_gpus()), 0)}" if torch.cuda.is_available() else "cpu"
    try:
        return torch, tokenizer, model.to(device or best).eval()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EncoderError(
            f"quest.queries={name} does not run on device={device or best!r}: {reason}; name another"
        ) from None
