"""Extract keywords from documents in any script: RAKE on queries that they answer.

In:  documents, a shard at a time; a doc2query model, or the extractive stand-in, a
     document's most central sentences.
Out: for each document that has chunks, its keywords, best first, as 8-byte hashes (the
     strings take about 26 bytes).

RAKE (Rose, Engel, Cramer, Cowley: "Automatic Keyword Extraction from Individual
Documents", 2010): a phrase is a run of words between stop words and punctuation. A word
scores degree / frequency, where its degree is the total length of the phrases that
contain it; a phrase scores the sum of its words. A phrase of two words that occur only
there scores 4, a single word 1. Numbers are kept in phrases but score nothing, or every
year would be a keyword. The paper's joining of phrases across stop words is omitted.
RAKE is our own because rake-nltk, python-rake, multi-rake and rake-spacy are not
maintained, and RAKEkeywords 0.3.1 handles only ASCII.

Words in scripts without spaces come from ICU's dictionaries (icu4py, an extra), 1.6
million characters a second. BudouX gives phrases and lacks three of the six scripts;
jieba's last release is from 2020. Stop words of 57 languages are those of stopwordsiso.
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

from nextlong.artifacts.corpus_files import read_chunks, record_batches
from nextlong.artifacts.results import ChunkFiles, IngestFiles
from nextlong.engine import store
from nextlong.engine.executor import Resources, granted_gpus
from nextlong.engine.step import ShardFiles, Step, StepFiles, TaskResult, each_shard
from nextlong.errors import EncoderError, RecipeError
from nextlong.plugins import METHODS
from nextlong.recipe import Section
from nextlong.recipe.keys import MayBePath, Named, Positive
from nextlong.text import Json, first_sentence

_KEYWORDS = pa.schema([("keywords", pa.list_(pa.uint64()))])


class KeywordsResult(TaskResult):
    """The documents of a shard of `source`, and how many have a keyword.

    `queries` is the origin of their queries.
    """

    documents: int
    with_keywords: int
    queries: str
    source: str = ""


class KeywordsFiles(StepFiles):
    """The keywords of each document of a shard."""

    step = "keywords"
    keywords = ShardFiles(".keywords.arrow")


class Keywords(Section):
    """How keywords are extracted: keys of each method that needs keywords."""

    queries: Annotated[Named, MayBePath()] = Field(
        "extractive",
        description=(
            "a doc2query model (name or path), or the built-in extractive stand-in"
        ),
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
        raise METHODS.broken(
            method,
            f"needs keywords, but its Options do not derive from {base}, whose keys "
            "configure the extraction",
        )
    tasks = each_shard(
        partial(_extract_keywords, options=options),
        documents=(ingest, IngestFiles.documents),
        chunks=(chunk, ChunkFiles.chunks),
    )
    config: Json = options.model_dump(include=set(Keywords.model_fields))
    is_model = options.queries != "extractive"
    model_folder = Path(options.queries).expanduser()
    if is_model and model_folder.is_dir():
        # Its path depends on the working directory.
        config["queries"] = "model"
        config["files"] = store.hash_folder(model_folder)
    return Step(
        name="keywords",
        phase="search",
        version=3,
        config=config,
        inputs=(ingest, chunk),
        tasks=tasks,
        result=KeywordsResult,
        # A model uses a GPU if there is one.
        resources=Resources(gpu="optional" if is_model else "unused"),
    )


def _extract_keywords(
    out: Path, *, documents: Path, chunks: Path, options: Keywords
) -> KeywordsResult:
    """Write `{out}.keywords.arrow`.

    The hashes of the keywords of each document of a shard that has chunks.
    """
    # (d,) ascending: the documents of the shard that have chunks.
    doc_rows = np.unique(read_chunks(chunks)["doc_row"])
    model = None
    if options.queries != "extractive":
        model = _doc2query(options.queries)
    with_keywords = 0
    source = ""
    with (
        pa.OSFile(f"{out}.keywords.arrow", "wb") as sink,
        pa.ipc.new_file(sink, _KEYWORDS) as writer,
    ):
        for first, batch in record_batches(documents):
            # All documents of a shard have the same source.
            source = batch.column("source")[0].as_py()
            low, high = np.searchsorted(doc_rows, [first, first + batch.num_rows])
            batch_rows = pa.array(doc_rows[low:high] - first)
            texts = batch.column("text").take(batch_rows).to_pylist()
            if model is None:
                queries = [_extract_queries(text) for text in texts]
            else:
                queries = model.queries(texts)
            hashes: list[list[int]] = []
            for document_queries in queries:
                keywords = _candidate_keywords(document_queries, options)
                with_keywords += bool(keywords)
                hashes.append(
                    [xxhash.xxh3_64_intdigest(keyword.encode()) for keyword in keywords]
                )
            column = pa.array(hashes, _KEYWORDS.field(0).type)
            writer.write_batch(pa.record_batch([column], schema=_KEYWORDS))
    return KeywordsResult(
        documents=len(doc_rows),
        with_keywords=with_keywords,
        queries=_EXTRACTIVE if model is None else options.queries,
        source=source,
    )


def read_keywords(paths: Sequence[Path]) -> pa.ChunkedArray:
    """Return the keywords of all documents, list<uint64> (n,), memory-mapped.

    For 240 million documents they take 19 GB.
    """
    columns = []
    for path in paths:
        for _, batch in record_batches(path):
            columns.append(batch.column("keywords"))
    return pa.chunked_array(columns, _KEYWORDS.field(0).type)


# Its name in reports, because these are not queries of a model.
_EXTRACTIVE: Final = "extractive stand-in"

# The paper's two examples, and other frequent but empty phrases of doc2query models and
# prose.
_UNINFORMATIVE: Final = frozenset(
    [
        "following sentence", "best way", "following statement", "following question",
        "following example", "following table", "good idea", "main idea",
        "main purpose", "different types", "long time", "wide range", "large number",
        "small number", "many people", "years ago", "first time", "read more",
        "learn more", "see also", "table of contents", "rights reserved",
        "terms of service", "privacy policy",
    ]
)  # fmt: skip

# Of Chinese and Japanese, Devanagari, Arabic and Urdu, Khmer, Burmese.
_ENDS: Final = "。！？।॥؟۔។။"
# A full stop within a word (3.14, example.org) ends no sentence. Matching sentences is
# five times as fast as splitting.
_SENTENCES: Final = re.compile(
    rf"[^\n.!?{_ENDS}]+(?:[.!?]+(?=\S)[^\n.!?{_ENDS}]+)*[.!?{_ENDS}]*"
)
_READ_CHARS: Final = 8192  # of a document; its subject shows early
_QUERY_CHARS: Final = 300  # longer sentences are truncated, because a query is short
# Segments of a document for which a model predicts a query, and the most tokens of one.
_MAX_SEGMENTS: Final = 8
_QUERY_TOKENS: Final = 64
_LANGUAGE_CHARS: Final = 2000  # of a text, from which its language is detected
_INSTALL: Final = "pip install 'nextlong[quest]'"


def _extract_queries(text: str, *, max_queries: int = 5) -> list[str]:
    """Return the first line and the most central sentences of a text, in reading order.

    With spaces between words. The centrality of a sentence is the sum of the counts, in
    the text, of its distinct words other than stop words, divided by the square root of
    their number. Deterministic, without a model.
    """
    head = _spaced(text[:_READ_CHARS])
    # Distinct, in reading order.
    distinct: dict[str, None] = {}
    for found in _SENTENCES.findall(head):
        sentence = " ".join(found.split())[:_QUERY_CHARS]
        if sentence:
            distinct[sentence] = None
    sentences = list(distinct)
    if not sentences:
        return []
    beginning = head[:_LANGUAGE_CHARS].lower()
    stop_words = _stop_words_of(_find_words(beginning))
    counts: Counter[str] = Counter()
    words_of_sentences: list[set[str]] = []
    for sentence in sentences:
        tokens = _find_words(sentence.lower())
        words = set(filter(_is_word, tokens)) - stop_words
        words_of_sentences.append(words)
        counts.update(words)
    centrality: list[float] = []
    for words in words_of_sentences:
        shared = sum(map(counts.__getitem__, words))
        centrality.append(shared / math.sqrt(len(words) or 1))
    # The first line is always a query; of equally central sentences, the earlier one
    # is.
    others = range(1, len(sentences))
    ranked = sorted(others, key=lambda index: (-centrality[index], index))
    chosen = [0, *ranked[: max_queries - 1]]
    return [sentences[index] for index in sorted(chosen)]


def _candidate_keywords(queries: Sequence[str], options: Keywords) -> list[str]:
    """Return the keywords of a document's queries, best first.

    RAKE phrases without uninformative ones.
    """
    keywords = []
    text = _spaced("\n".join(queries))
    for phrase, score in _key_phrases(text):
        # An ideograph is as informative as three letters.
        size = len(phrase) + 2 * len(_IDEOGRAPH.findall(phrase))
        if (
            size >= options.min_keyword_chars
            and score >= options.min_keyword_score
            and phrase not in _UNINFORMATIVE
        ):
            keywords.append(phrase)
    return keywords


class _Doc2Query:
    """A doc2query model, a T5 such as doc2query/msmarco-t5-base-v1."""

    def __init__(
        self,
        name: str,
        *,
        segment_tokens: int = 320,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        """Load the model by its Hub name or its folder.

        Raises EncoderError if this fails.
        """
        self._segment_tokens = segment_tokens
        self._batch_size = batch_size
        try:
            torch = importlib.import_module("torch")
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise EncoderError(
                where=f"quest.queries={name}",
                problem=str(error),
                fix=(
                    f"{_INSTALL}, or set quest.queries: extractive, which needs no "
                    "model"
                ),
            ) from None
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(name)
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(name)
        except (ImportError, OSError, ValueError) as error:
            fix = _INSTALL
            if not isinstance(error, ImportError):
                fix = (
                    "give the folder of a T5 and its tokenizer, or a Hub name, such as "
                    "doc2query/msmarco-t5-base-v1"
                )
            raise EncoderError(
                where="quest.queries",
                value=name,
                problem=f"cannot be loaded: {first_sentence(error)}",
                fix=fix,
            ) from None
        if device is None:
            device = "cpu"
            if torch.cuda.is_available():
                device = f"cuda:{next(iter(granted_gpus()), 0)}"
        self._torch = torch
        try:
            self._model = model.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            raise EncoderError(
                where="quest.queries",
                value=name,
                problem=f"does not run on device={device!r}: {first_sentence(error)}",
                fix="use another model",
            ) from None

    def queries(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the queries of each text.

        One for each of its first `_MAX_SEGMENTS` segments of `segment_tokens` tokens.
        """
        # The text of each segment, and the ids of it.
        owners: list[int] = []
        segments: list[list[int]] = []
        size = self._segment_tokens - 1
        end = self._tokenizer.eos_token_id
        for index, text in enumerate(texts):
            encoded = self._tokenizer(text, add_special_tokens=False, verbose=False)
            ids = encoded["input_ids"]
            for start in range(0, min(len(ids), size * _MAX_SEGMENTS), size):
                owners.append(index)
                segments.append([*ids[start : start + size], end])

        predicted = [""] * len(segments)
        # Batches hold segments of similar length, so that they contain little padding.
        longest_first = sorted(
            range(len(segments)),
            key=lambda index: (-len(segments[index]), segments[index]),
        )
        for first in range(0, len(segments), self._batch_size):
            indices = longest_first[first : first + self._batch_size]
            answers = self._predict([segments[index] for index in indices])
            for index, query in zip(indices, answers, strict=True):
                predicted[index] = query.strip()

        # Dictionaries as ordered sets.
        queries_of_texts: list[dict[str, None]] = [{} for _ in texts]
        for owner, query in zip(owners, predicted, strict=True):
            if query:
                queries_of_texts[owner].setdefault(query)
        return [list(queries) for queries in queries_of_texts]

    def _predict(self, segments: Sequence[Sequence[int]]) -> list[str]:
        """Return a query for each segment of a batch.

        Decoding is greedy, because a run must be repeatable; the authors of
        docTTTTTquery sample (top-k 10).
        """
        batch = self._tokenizer.pad({"input_ids": segments}, return_tensors="pt")
        with self._torch.inference_mode():
            outputs = self._model.generate(
                input_ids=batch["input_ids"].to(self._model.device),
                attention_mask=batch["attention_mask"].to(self._model.device),
                max_new_tokens=_QUERY_TOKENS,
                do_sample=False,
                num_beams=1,
            )
        decoded: list[str] = self._tokenizer.batch_decode(
            outputs, skip_special_tokens=True
        )
        return decoded


# A worker loads the model once for all its shards.
_doc2query = lru_cache(maxsize=1)(_Doc2Query)


def _key_phrases(text: str) -> list[tuple[str, float]]:
    """Return each distinct phrase, in lower case, and its score, descending.

    Ties are in alphabetical order.
    """
    phrases = _phrases(text)
    frequency: Counter[str] = Counter()
    degree: Counter[str] = Counter()
    for phrase in phrases:
        words = [word for word in phrase if not word.isnumeric()]
        for word in words:
            frequency[word] += 1
            degree[word] += len(words)
    word_scores = {word: degree[word] / frequency[word] for word in frequency}
    scores: dict[str, float] = {}
    for phrase in phrases:
        scores[" ".join(phrase)] = sum(word_scores.get(word, 0.0) for word in phrase)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def content_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without stop words and numbers."""
    tokens = _find_words(_spaced(text).lower())
    stop_words = _stop_words_of(tokens)
    words = filter(_is_word, tokens)
    return [word for word in words if word not in stop_words and word.isalpha()]


def _phrases(text: str) -> list[tuple[str, ...]]:
    """Return the runs of words between stop words and punctuation, in order."""
    tokens = _find_words(text.lower())
    stop_words = _stop_words_of(tokens)
    phrases: list[tuple[str, ...]] = []
    run: list[str] = []
    # The line break ends the last run.
    for token in [*tokens, "\n"]:
        if _is_word(token) and token not in stop_words:
            run.append(token)
        elif run:
            phrases.append(tuple(run))
            run = []
    return phrases


_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # noqa: E501
_UNSPACED_RUN: Final = re.compile(f"[{_UNSPACED}]+")
# Words of these characters have no combining marks.
_IS_LATIN: Final = re.compile("[\0-\u02ff\u2000-\u206f]*").fullmatch
_LATIN_TOKENS: Final = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]|\n")
_IDEOGRAPH: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# Share of a text's characters; less are names and quotations in another language.
_MIN_UNSPACED: Final = 0.1
_LANGUAGE_WORDS: Final = 200  # words from which the language is detected
# Share of English stop words from which other languages need not be checked.
_SURELY_ENGLISH: Final = 0.2
# So few tell nothing about the language: titles, formulas, names.
_FEW_STOP_WORDS: Final = 2
_MARGIN: Final = 1.5  # by which another language must have more stop words than English
_ENGLISH: Final = "en"
# The most common function words of languages that stopwordsiso lacks.
_OTHER_STOP_WORDS: Final = {
    "km": "និង ជា របស់ នៅ ក្នុង ដែល បាន មាន ពី ទៅ នេះ នោះ ដោយ ឬ ក៏ នឹង ត្រូវ ដើម្បី "
    "ជាមួយ លើ មួយ ដល់ គឺ ការ មិន",
    "lo": "ແລະ ທີ່ ຂອງ ໃນ ເປັນ ມີ ໄດ້ ຈາກ ຢູ່ ຢູ່ໃນ ນີ້ ນັ້ນ ຫຼື ໃຫ້ ກັບ ແມ່ນ ການ ຄວາມ ຈະ ບໍ່ ໂດຍ ເພື່ອ",
    "my": "သည် က ကို နှင့် ၏ မှ တွင် ဖြစ် များ သော တို့ ရန် မှာ ပါ သို့ ၍ ခဲ့ ရှိ လည်း တစ် ဖြင့် အား ဖြစ်သည် ရှိသည်",
}


def _spaced(text: str) -> str:
    """Return the text with spaces between words if its script has none, as Thai.

    Raises RecipeError without icu4py.
    """
    runs = _UNSPACED_RUN.findall(text)
    if sum(map(len, runs)) <= _MIN_UNSPACED * len(text):
        return text
    try:
        from icu4py.breakers import WordBreaker
    except ImportError:
        raise RecipeError(
            where="compose.method",
            value="quest",
            problem=(
                f"extracts keywords from words, and the text {runs[0][:20]!r} … has no "
                "spaces between words"
            ),
            fix="pip install 'nextlong[languages]'",
        ) from None
    return _UNSPACED_RUN.sub(
        lambda run: f" {' '.join(WordBreaker(run[0], 'und'))} ", text
    )


def _find_words(text: str) -> list[str]:
    """Return the words, punctuation marks and newlines of a text, in order.

    The text has spaces between words.
    """
    tokens = _LATIN_TOKENS if _IS_LATIN(text) else _tokens()
    return tokens.findall(text)


@cache
def _tokens() -> re.Pattern[str]:
    """Return the pattern of tokens.

    Vowel signs and other marks, which `\\w` does not match, continue a word.
    """
    characters = map(chr, range(0x300, sys.maxunicode >> 3))
    marks = "".join(
        character
        for character in characters
        if unicodedata.category(character).startswith("M")
    )
    word = rf"\w[\w{marks}]*"
    return re.compile(rf"{word}(?:['’\-]{word})*|[^\w\s]|\n")


def _is_word(token: str) -> bool:
    """Return whether a token of `_find_words` is a word."""
    return token[0].isalnum() or token[0] == "_"


def _stop_words_of(tokens: Iterable[str]) -> frozenset[str]:
    """Return the stop words of the text's language, that of most of its stop words.

    Of English if there are few.
    """
    spelled = [token for token in tokens if _is_word(token) and not token[0].isdigit()]
    words = spelled[:_LANGUAGE_WORDS]
    english = _stop_words(_ENGLISH)
    english_count = sum(word in english for word in words)
    if english_count > _SURELY_ENGLISH * len(words):
        return english
    counts: Counter[str] = Counter()
    for word in words:
        counts.update(_languages_of().get(word, ()))
    best = max(
        counts, key=lambda language: (counts[language], language), default=_ENGLISH
    )
    if counts[best] > max(_FEW_STOP_WORDS, _MARGIN * counts[_ENGLISH]):
        return _stop_words(best)
    return english


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
    """Return the stop words of a language.

    For English scikit-learn's 318, and contractions.
    """
    import stopwordsiso
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    if language == _ENGLISH:
        words = [word.replace("’", "'") for word in stopwordsiso.stopwords(_ENGLISH)]
        contracted = {word for word in words if "'" in word}
        # Also with a typographic apostrophe.
        curly = {word.replace("'", "’") for word in contracted}
        return frozenset(ENGLISH_STOP_WORDS) | contracted | curly
    if language in _OTHER_STOP_WORDS:
        return frozenset(_OTHER_STOP_WORDS[language].split())
    return frozenset(stopwordsiso.stopwords(language))
