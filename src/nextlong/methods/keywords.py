"""Extract keywords from documents in any script: RAKE on queries that the document answers.

In:  documents, a shard at a time; a doc2query model, or the extractive stand-in, a document's most central sentences.
Out: for each document that has chunks, its keywords, best first, as 8-byte hashes (the strings take about 26 bytes).

RAKE (Rose, Engel, Cramer, Cowley: "Automatic Keyword Extraction from Individual Documents", 2010): a phrase is a run of
words between stop words and punctuation. A word scores degree / frequency, where its degree is the total length of the
phrases that contain it; a phrase scores the sum of its words. A phrase of two words that occur only there scores 4, a
single word 1. Numbers are kept in phrases but score nothing, or every year would be a keyword. The paper's joining of
phrases across stop words is omitted. RAKE is our own because rake-nltk, python-rake, multi-rake and rake-spacy are not
maintained, and RAKEkeywords 0.3.1 handles only ASCII.

Words in scripts without spaces come from ICU's dictionaries (icu4py, an extra), 1.6 million characters a second. BudouX
gives phrases and lacks three of the six scripts; jieba's last release is from 2020. Stop words of 57 languages are those of
stopwordsiso.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from nextlong.artifacts.lookup import read_chunks, record_batches
from nextlong.engine import store
from nextlong.engine.executor import Resources, granted_gpus
from nextlong.engine.step import Step, TaskResult, each_shard
from nextlong.errors import EncoderError, RecipeError
from nextlong.plugins import METHODS
from nextlong.recipe import Section
from nextlong.recipe.keys import MayBePath, Named, Positive
from nextlong.text import Json, first_sentence

_KEYWORDS = pa.schema([("keywords", pa.list_(pa.uint64()))])


class KeywordsResult(TaskResult):
    """The documents of a shard of `source`, those that have a keyword, and the origin of their queries."""

    documents: int
    with_keywords: int
    queries: str
    source: str = ""


class Keywords(Section):
    """How keywords are extracted: keys in the section of each method that needs keywords."""

    queries: Annotated[Named, MayBePath()] = Field(
        "extractive",
        description="a doc2query model (name or path), or the built-in extractive stand-in",
    )
    min_keyword_score: Annotated[float, Field(ge=0)] = Field(
        3.0, description="minimum RAKE score of a keyword"
    )
    min_keyword_chars: Positive = Field(
        6, description="minimum length; shorter keywords are uninformative"
    )


def keywords_step(method: str, options: Section, ingest: Step, chunk: Step) -> Step:
    """Return the step from documents to the keywords of their queries."""
    if not isinstance(options, Keywords):
        base = "nextlong.methods.keywords.Keywords"
        why = f"needs keywords, but its Options do not derive from {base}, whose keys configure the extraction"
        raise METHODS.broken(method, why)
    files = {
        "documents": (ingest, ".documents.arrow"),
        "chunks": (chunk, ".chunks.arrow"),
    }
    tasks = each_shard(partial(_extract_keywords, options=options), **files)
    config: Json = options.model_dump(include=set(Keywords.model_fields))
    is_model = options.queries != "extractive"  # a model uses a GPU if there is one
    model = Path(options.queries).expanduser()
    if is_model and model.is_dir():
        # Its path depends on the working directory.
        config["queries"] = "model"
        config["files"] = store.hash_folder(model)
    needs = Resources(gpu="optional" if is_model else "unused")
    return Step(
        "keywords",
        3,
        config,
        (ingest, chunk),
        tasks,
        KeywordsResult,
        resources=needs,
    )


def _extract_keywords(
    out: Path, *, documents: Path, chunks: Path, options: Keywords
) -> KeywordsResult:
    """Write `{out}.keywords.arrow`: the hashes of the keywords of each document of a shard that has chunks."""
    doc_rows = np.unique(read_chunks(chunks)["doc_row"])
    model = None if options.queries == "extractive" else _doc2query(options.queries)
    with_keywords, source = 0, ""
    with (
        pa.OSFile(f"{out}.keywords.arrow", "wb") as sink,
        pa.ipc.new_file(sink, _KEYWORDS) as writer,
    ):
        for first, batch in record_batches(documents):
            low, high = np.searchsorted(doc_rows, [first, first + batch.num_rows])
            source = batch.column("source")[
                0
            ].as_py()  # all documents of a shard have the same source
            texts = (
                batch.column("text")
                .take(pa.array(doc_rows[low:high] - first))
                .to_pylist()
            )
            queries = (
                [_extract_queries(text) for text in texts]
                if model is None
                else model.queries(texts)
            )
            keywords = [_candidate_keywords(of_text, options) for of_text in queries]
            with_keywords += sum(map(bool, keywords))
            hashes = [
                [xxhash.xxh3_64_intdigest(keyword.encode()) for keyword in of_text]
                for of_text in keywords
            ]
            writer.write_batch(
                pa.record_batch(
                    [pa.array(hashes, _KEYWORDS.field(0).type)], schema=_KEYWORDS
                )
            )
    origin = _EXTRACTIVE if model is None else options.queries
    return KeywordsResult(
        documents=len(doc_rows),
        with_keywords=with_keywords,
        queries=origin,
        source=source,
    )


def read_keywords(paths: Sequence[Path]) -> pa.ChunkedArray:
    """Return the keywords of all documents, list<uint64> (n,), memory-mapped: for 240 million documents they take 19 GB."""
    columns = [
        batch.column("keywords") for path in paths for _, batch in record_batches(path)
    ]
    return pa.chunked_array(columns, _KEYWORDS.field(0).type)


_EXTRACTIVE: Final = "extractive stand-in"  # its name in reports, because these are not queries of a model

# The paper's two examples, and other frequent but empty phrases of doc2query models and prose.
_UNINFORMATIVE: Final = frozenset(
    [
        "following sentence", "best way", "following statement", "following question", "following example",
        "following table", "good idea", "main idea", "main purpose", "different types", "long time", "wide range",
        "large number", "small number", "many people", "years ago", "first time", "read more", "learn more",
        "see also", "table of contents", "rights reserved", "terms of service", "privacy policy",
    ]
)  # fmt: skip

# A full stop within a word (3.14, example.org) ends no sentence. Matching sentences is five times as fast as splitting.
_ENDS: Final = "。！？।॥؟۔។။"  # of Chinese and Japanese, Devanagari, Arabic and Urdu, Khmer, Burmese
_SENTENCES: Final = re.compile(
    rf"[^\n.!?{_ENDS}]+(?:[.!?]+(?=\S)[^\n.!?{_ENDS}]+)*[.!?{_ENDS}]*"
)
_READ_CHARS: Final = 8192  # of a document; its subject shows early
_QUERY_CHARS: Final = 300  # longer sentences are truncated, because a query is short
_MAX_SEGMENTS: Final = 8  # segments of a document for which a model predicts a query …
_QUERY_TOKENS: Final = 64  # … of at most this many tokens
_LANGUAGE_CHARS: Final = 2000  # of a text, from which its language is detected


def _extract_queries(text: str, *, max_queries: int = 5) -> list[str]:
    """Return the first line and the most central sentences of a text in reading order, with spaces between words.

    The centrality of a sentence is the sum of the counts, in the text, of its distinct words other than stop words, divided by
    the square root of their number. Deterministic, without a model.
    """
    head = _spaced(text[:_READ_CHARS])
    stripped = (
        " ".join(sentence.split())[:_QUERY_CHARS]
        for sentence in _SENTENCES.findall(head)
    )
    sentences = list(dict.fromkeys(filter(None, stripped)))
    stop_words = _stop_words_of(_find_words(head[:_LANGUAGE_CHARS].lower()))
    words = [
        set(filter(_is_word, _find_words(sentence.lower()))) - stop_words
        for sentence in sentences
    ]
    counts = Counter(word for sentence_words in words for word in sentence_words)
    central = [
        sum(counts[word] for word in distinct) / math.sqrt(len(distinct) or 1)
        for distinct in words
    ]
    best = sorted(range(1, len(sentences)), key=lambda place: (-central[place], place))[
        : max_queries - 1
    ]
    return [sentences[place] for place in sorted([*best, 0])] if sentences else []


def _candidate_keywords(queries: Sequence[str], options: Keywords) -> list[str]:
    """Return the keywords of a document's queries, best first: RAKE phrases without uninformative ones."""

    def is_candidate(phrase: str, score: float) -> bool:
        size = len(phrase) + 2 * len(
            _IDEOGRAPH.findall(phrase)
        )  # an ideograph is as informative as three letters
        return (
            size >= options.min_keyword_chars
            and score >= options.min_keyword_score
            and phrase not in _UNINFORMATIVE
        )

    return [
        phrase
        for phrase, score in _key_phrases(_spaced("\n".join(queries)))
        if is_candidate(phrase, score)
    ]


class _Doc2Query:
    """A doc2query model (a T5 such as doc2query/msmarco-t5-base-v1), loaded with transformers."""

    def __init__(
        self,
        name: str,
        *,
        segment_tokens: int = 320,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        """Load the model by its Hub name or its folder. Raises EncoderError if this fails."""
        self._segment_tokens, self._batch_size = segment_tokens, batch_size
        try:
            torch, transformers = (
                importlib.import_module("torch"),
                importlib.import_module("transformers"),
            )
        except ImportError as error:
            cure = "pip install 'nextlong[quest]', or set quest.queries: extractive, which needs no model"
            raise EncoderError(f"quest.queries={name}: {error}; {cure}") from None
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(name)
        except (ImportError, OSError, ValueError) as error:
            cure = "pip install 'nextlong[quest]'"
            if not isinstance(error, ImportError):
                cure = "give the folder of a T5 and its tokenizer, or a Hub name, such as doc2query/msmarco-t5-base-v1"
            raise EncoderError(
                f"quest.queries={name} cannot be loaded: {first_sentence(error)}; {cure}"
            ) from None
        device = device or (
            f"cuda:{next(iter(granted_gpus()), 0)}"
            if torch.cuda.is_available()
            else "cpu"
        )
        try:
            self._torch, self._model = torch, model.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            why = f"does not run on device={device!r}: {first_sentence(error)}; use another model"
            raise EncoderError(f"quest.queries={name} {why}") from None

    def queries(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the queries of each text, one for each of its first `_MAX_SEGMENTS` segments of `segment_tokens` tokens."""
        # Decoding is greedy, because a run must be repeatable; the authors of docTTTTTquery sample (top-k 10).
        owners: list[int] = []
        segments: list[list[int]] = []
        size = self._segment_tokens - 1
        for number, text in enumerate(texts):
            ids = self._tokenizer(text, add_special_tokens=False, verbose=False)[
                "input_ids"
            ]
            starts = range(0, min(len(ids), size * _MAX_SEGMENTS), size)
            owners += [number] * len(starts)
            segments += [
                [*ids[start : start + size], self._tokenizer.eos_token_id]
                for start in starts
            ]
        predicted = [""] * len(segments)
        # Batches hold segments of similar length, so that they contain little padding.
        longest_first = sorted(
            range(len(segments)),
            key=lambda place: (-len(segments[place]), segments[place]),
        )
        for start in range(0, len(segments), self._batch_size):
            places = longest_first[start : start + self._batch_size]
            batch = self._tokenizer.pad(
                {"input_ids": [segments[place] for place in places]},
                return_tensors="pt",
            )
            inputs = {
                name: batch[name].to(self._model.device)
                for name in ("input_ids", "attention_mask")
            }
            with self._torch.inference_mode():
                outputs = self._model.generate(
                    **inputs, max_new_tokens=_QUERY_TOKENS, do_sample=False, num_beams=1
                )
            decoded = self._tokenizer.batch_decode(outputs, skip_special_tokens=True)
            for place, query in zip(places, decoded, strict=True):
                predicted[place] = query.strip()
        queries_of: list[dict[str, None]] = [
            {} for _ in texts
        ]  # dictionaries as ordered sets
        for owner, query in zip(owners, predicted, strict=True):
            queries_of[owner].setdefault(query)
        return [[*filter(None, of_text)] for of_text in queries_of]


_doc2query = lru_cache(maxsize=1)(
    _Doc2Query
)  # a worker loads the model once for all its shards


def _key_phrases(text: str) -> list[tuple[str, float]]:
    """Return each distinct phrase, in lower case, and its score, descending; ties in alphabetical order."""
    words = _find_words(text.lower())
    stop_words = _stop_words_of(words)
    phrases: list[tuple[str, ...]] = []
    run: list[str] = []
    for word in [*words, "\n"]:
        if _is_word(word) and word not in stop_words:
            run.append(word)
        elif run:
            phrases.append(tuple(run))
            run = []
    frequency: Counter[str] = Counter()
    degree: Counter[str] = Counter()
    for phrase in phrases:
        words = [word for word in phrase if not word.isnumeric()]
        for word in words:
            frequency[word] += 1
            degree[word] += len(words)
    word_score = {word: degree[word] / frequency[word] for word in frequency}
    scores = {
        " ".join(phrase): sum(word_score.get(word, 0.0) for word in phrase)
        for phrase in phrases
    }
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # noqa: E501
_UNSPACED_RUN: Final = re.compile(f"[{_UNSPACED}]+")
_IS_LATIN: Final = re.compile(
    "[\0-\u02ff\u2000-\u206f]*"
).fullmatch  # words have no combining marks
_LATIN_TOKENS: Final = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]|\n")
_IDEOGRAPH: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_LEAST_UNSPACED: Final = 0.1  # share of a text's characters; less are names and quotations in another language
_LANGUAGE_WORDS: Final = 200  # words from which the language is detected
_SURELY_ENGLISH: Final = (
    0.2  # share of English stop words from which other languages need not be checked
)
_FEW_STOP_WORDS: Final = (
    2  # so few tell nothing about the language: titles, formulas, names
)
_MARGIN: Final = 1.5  # by which another language must have more stop words than English
_ENGLISH: Final = "en"
# The most common function words of languages that stopwordsiso lacks.
_OTHER_STOP_WORDS: Final = {
    "km": "និង ជា របស់ នៅ ក្នុង ដែល បាន មាន ពី ទៅ នេះ នោះ ដោយ ឬ ក៏ នឹង ត្រូវ ដើម្បី ជាមួយ លើ មួយ ដល់ គឺ ការ មិន",
    "lo": "ແລະ ທີ່ ຂອງ ໃນ ເປັນ ມີ ໄດ້ ຈາກ ຢູ່ ຢູ່ໃນ ນີ້ ນັ້ນ ຫຼື ໃຫ້ ກັບ ແມ່ນ ການ ຄວາມ ຈະ ບໍ່ ໂດຍ ເພື່ອ",
    "my": "သည် က ကို နှင့် ၏ မှ တွင် ဖြစ် များ သော တို့ ရန် မှာ ပါ သို့ ၍ ခဲ့ ရှိ လည်း တစ် ဖြင့် အား ဖြစ်သည် ရှိသည်",
}


def _spaced(text: str) -> str:
    """Return the text with spaces between words if its script has none, as Thai. Raises RecipeError without icu4py."""
    runs = _UNSPACED_RUN.findall(text)
    if sum(map(len, runs)) <= _LEAST_UNSPACED * len(text):
        return text
    try:
        from icu4py.breakers import WordBreaker
    except ImportError:
        raise RecipeError(
            f"compose.method=quest extracts keywords from words, and the text {runs[0][:20]!r} … has no spaces between words; "
            "pip install 'nextlong[languages]'"
        ) from None
    return _UNSPACED_RUN.sub(
        lambda run: f" {' '.join(WordBreaker(run[0], 'und'))} ", text
    )


def _find_words(text: str) -> list[str]:
    """Return the words, punctuation marks and newlines of a text with spaces between words, in order."""
    return (_LATIN_TOKENS if _IS_LATIN(text) else _tokens()).findall(text)


@cache
def _tokens() -> re.Pattern[str]:
    """Return the pattern of tokens; vowel signs and other marks, which `\\w` does not match, continue a word."""
    codes = range(0x300, sys.maxunicode >> 3)
    inside = "".join(
        chr(code) for code in codes if unicodedata.category(chr(code)).startswith("M")
    )
    word = rf"\w[\w{inside}]*"
    return re.compile(rf"{word}(?:['’\-]{word})*|[^\w\s]|\n")


def _is_word(token: str) -> bool:
    """Return whether a token of `_find_words` is a word."""
    return token[0].isalnum() or token[0] == "_"


def _stop_words_of(tokens: Iterable[str]) -> frozenset[str]:
    """Return the stop words of the text's language, that of most of its stop words; of English if there are few."""
    words = [word for word in tokens if _is_word(word) and not word[0].isdigit()][
        :_LANGUAGE_WORDS
    ]
    if sum(word in _stop_words(_ENGLISH) for word in words) > _SURELY_ENGLISH * len(
        words
    ):
        return _stop_words(_ENGLISH)
    counts = Counter(
        language for word in words for language in _languages_of().get(word, ())
    )
    best = max(
        counts, key=lambda language: (counts[language], language), default=_ENGLISH
    )
    return _stop_words(
        best
        if counts[best] > max(_FEW_STOP_WORDS, _MARGIN * counts[_ENGLISH])
        else _ENGLISH
    )


@cache
def _languages_of() -> dict[str, list[str]]:
    """Return the languages in which each word is a stop word."""
    import stopwordsiso

    languages: dict[str, list[str]] = {}
    for language in [*stopwordsiso.langs(), *_OTHER_STOP_WORDS]:
        for word in _stop_words(language):
            languages.setdefault(word, []).append(language)
    return languages


@cache
def _stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language; for English scikit-learn's 318, and contractions."""
    import stopwordsiso
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    if language == _ENGLISH:
        contracted = {
            word.replace("’", "'")
            for word in stopwordsiso.stopwords(_ENGLISH)
            if "'" in word or "’" in word
        }
        return (
            frozenset(ENGLISH_STOP_WORDS)
            | contracted
            | {word.replace("'", "’") for word in contracted}
        )
    if language in _OTHER_STOP_WORDS:
        return frozenset(_OTHER_STOP_WORDS[language].split())
    return frozenset(stopwordsiso.stopwords(language))
