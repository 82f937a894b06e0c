"""Trial: run the recipe's own route on 0.6 MB of the user's texts, to measure what each step takes here.

In:  a recipe, its files. Out: the size of the corpus and a sample of its documents (`corpus.look`); the seconds and bytes of each
step on the trial, and how much there was to do; and the rates that no trial can tell.

In a trial, LSA stands for an encoder that is a model or a server, exact search for an index, a small tokenizer for one that takes
a second to load, and no evaluation files are read: the rates of these are measured apart, or declared.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from nextlong import pipeline
from nextlong.artifacts.corpus_files import read_chunks
from nextlong.artifacts.results import ComposeFiles, TokenizerResult, chunk_files
from nextlong.checks import Corpus
from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.look import kept_shares
from nextlong.engine.executor import Call, Resources, SerialExecutor, resident_bytes
from nextlong.engine.runner import find_done, run_steps
from nextlong.engine.step import Artifacts
from nextlong.errors import CorpusError, NextlongError
from nextlong.methods.base import method_of
from nextlong.methods.keywords import Keywords
from nextlong.reading.records import RejectKind
from nextlong.recipe import Encoder, Recipe
from nextlong.recipe.keys import (
    EXACT,
    MIN_GAP_CHUNKS,
    TYPICAL_CHARS_PER_TOKEN,
    checked_chars,
)
from nextlong.report.plan.amounts import Amounts, amounts_of
from nextlong.report.plan.costs import WORKER_BYTES, Rate, Trial
from nextlong.retrieval.encoders.base import Speed, kind_of
from nextlong.schemas import NO_CHUNK, Layout
from nextlong.sequences.shortfall import has_gaps
from nextlong.sequences.tokenize import (
    SPEED_UP,
    TextEncoder,
    chars_before_loading,
    is_known_to_be_fast,
)
from nextlong.sequences.tokenizer import (
    END_OF_TEXT,
    load_or_stand_in,
    lost_share,
    special_id,
    train_bpe,
)
from nextlong.text import Json, counted

_CHARS = 600_000  # of a trial
_SHOWN_CHARS = 40  # of the longest document
_MEASURED_CHUNKS = 64  # that the tokenizer is timed on
_TRIED_ENTRIES, _TRIED_TEXTS, _TRIED_CHARS = (
    2048,
    64,
    4_000,
)  # of the tokenizer of a trial
_ROOM = 3  # times the characters of a draft that a trial must hold
_SEARCH_ROWS, _SEARCH_QUERIES = 8192, 256
_SEARCH_OVERHEAD = 1.25  # of exact search over its products (bench/search.py)


@dataclass(frozen=True)
class CorpusSample:
    """The size of the corpus, and documents drawn from it.

    `stands_for`, `chars` and `chunks` have shape (n,), one row for each document of `looked_at`: how many documents of the
    corpus it stands for, its characters, and its chunks. `size` is exact if `is_whole`.
    """

    size: Amounts  # up to `meta_chunks`
    is_whole: bool
    looked_at: list[str]
    stands_for: NDArray[np.float64]
    chars: NDArray[np.int64]
    chunks: NDArray[np.int64]
    rejects: Mapping[
        RejectKind, float
    ]  # records of the whole corpus that are no documents

    def drawn(self, chars: int) -> list[str]:
        """Return random documents of about this many characters, two at least, by the shares of sources after caps and weights."""
        random = np.random.default_rng(0)
        likely = (
            random.random(len(self.chars)) < self.stands_for / self.stands_for.max()
        )
        places = random.permutation(np.flatnonzero(likely))
        count = int(np.searchsorted(np.cumsum(self.chars[places]), chars, side="right"))
        return [self.looked_at[place] for place in places[: max(2, count)]]

    def dropped(self, recipe: Recipe, *, chars_per_token: float) -> tuple[float, float]:
        """Return how many documents are longer than a sequence, and how many others leave too little room for negatives."""
        longest = recipe.sequence_tokens * chars_per_token
        is_long = (self.chunks >= recipe.compose.min_meta_chunks) & (
            self.chars >= longest
        )
        needed = np.zeros(len(self.chars))
        if has_gaps(recipe.compose):
            # All but the last negative are whole chunks, so a gap takes one of them, or more if min_gap_tokens asks for more.
            mean_chunk, asked = (
                self.chars.sum() / max(1, self.chunks.sum()),
                recipe.compose.min_gap_tokens,
            )
            gap = (
                MIN_GAP_CHUNKS * mean_chunk
                if asked == "auto"
                else asked * chars_per_token
            )
            needed = (self.chunks - 1) * max(gap, mean_chunk) + gap
        is_tight = (
            (self.chunks >= recipe.compose.min_meta_chunks)
            & ~is_long
            & (self.chars + needed >= longest)
        )
        return float(self.stands_for[is_long].sum()), float(
            self.stands_for[is_tight].sum()
        )

    def longest(self) -> str:
        """Return the beginning of the longest document, and its characters."""
        place = int(self.chars.argmax())
        begin = " ".join(self.looked_at[place][:_SHOWN_CHARS].split())
        return f"'{begin}…', {self.chars[place]:,} characters"

    def documents_of(self, chunks: float) -> float:
        """Return how many documents a random `chunks` of the corpus's chunks, each used once, come from, on average."""
        # A document of k chunks is missed if all of them are: with a probability of (1 - used) ** k.
        used = min(1.0, chunks / max(1.0, self.size.chunks))
        return float((self.stands_for * (1 - (1 - used) ** self.chunks)).sum())


def sample(recipe: Recipe, corpus: Corpus) -> CorpusSample:
    """Look at every source. Raises CorpusError if no document is found."""
    every = corpus.looks
    looks = [look for look in every if look.documents]
    kinds = dict.fromkeys(kind for look in every for kind in look.rejects)
    rejects = {
        kind: sum(look.scale * look.rejects.get(kind, 0) for look in every)
        for kind in kinds
    }
    if not looks:
        if recipe.ingest.exclude is not None and not rejects:
            cure = "delete lines of it, or set it to null"
            raise CorpusError(
                f"ingest.exclude excludes all documents of a sample; {cure}"
            )
        most = sum((look.rejects for look in every), Counter[RejectKind]()).most_common(
            3
        )
        skipped = sum((look.skipped for look in every), Counter[str]())
        found = [*most, *skipped.most_common(3)]
        why = ", ".join(f"{counted(count, 'record')}: {kind}" for kind, count in found)
        raise CorpusError(
            f"no document was found in a sample of {corpus.files[0][0].path} or other files of ingest.sources "
            f"({why or 'they are empty'}); correct ingest.sources; `nextlong run` names every reject"
        )
    kept = kept_shares(looks)
    texts, options = (
        [text for look in looks for text in look.texts],
        recipe.chunk.model_dump(),
    )
    chars, chunks = np.array(
        [(len(text), len(chunk_text(text, **options))) for text in texts]
    ).T
    stands_for = np.repeat(
        np.multiply(kept, [look.text_scale for look in looks]),
        [len(look.texts) for look in looks],
    )
    is_eligible = chunks >= recipe.compose.min_meta_chunks
    # Documents that are longer than a sequence are not searched for.
    most_chars = checked_chars(recipe.sequence_tokens, TYPICAL_CHARS_PER_TOKEN)
    is_searched = is_eligible & (chars <= most_chars)
    size = Amounts(
        text_bytes=sum(look.text_bytes for look in looks),
        documents=sum(look.scale * look.documents for look in looks),
        kept_documents=float(
            np.dot(kept, [look.scale * look.distinct_documents for look in looks])
        ),
        kept_chars=float(stands_for @ chars),
        chunks=float(stands_for @ chunks),
        eligible=float(stands_for[is_eligible].sum()),
        meta_chunks=float((stands_for * chunks)[is_searched].sum()),
    )
    return CorpusSample(
        size,
        all(look.is_whole for look in looks),
        texts,
        stands_for,
        chars,
        chunks,
        rejects,
    )


class _Tokenizing(NamedTuple):
    """What is measured of a tokenizer: E, the share of the characters that it loses, and its `tokenizer_rates`."""

    chars_per_token: float
    lost_share: float
    rates: Mapping[str, Rate]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A sample of the corpus, a trial on it, and what is measured apart from the steps."""

    sample: CorpusSample
    trial: Trial
    tokenizing: _Tokenizing
    encoding: Speed
    dimensions: int
    product_s: float  # of a multiplication and addition of exact search, with its share of keeping the best
    process_bytes: float = WORKER_BYTES  # of a process that has run every step: its libraries, and what they keep


def measure(recipe: Recipe, sample: CorpusSample) -> Measured:
    """Run the trial, and measure what it cannot tell. Raises a NextlongError for a tokenizer that cannot be used."""
    texts, options = (
        sample.looked_at,
        recipe.chunk.model_dump(),
    )  # some chunks, spread over the documents
    texts = texts[:: max(1, len(texts) // _MEASURED_CHUNKS)]
    chunks: list[str] = []
    begins: list[bool] = []
    for text in texts:
        for start, end in chunk_text(text, **options):
            chunks.append(text[start:end])
            begins.append(start == 0)
    every = max(1, len(chunks) // _MEASURED_CHUNKS)
    chunks = chunks[::every]
    tokenizing = _measure_tokenizer(recipe, chunks, begins[::every])
    encoding = kind_of(recipe.encoder).measure(recipe.encoder, chunks)
    trial = try_route(
        recipe, sample.drawn(_CHARS), chars_per_token=tokenizing.chars_per_token
    )
    dimensions = encoding.dimensions or max(
        1, round(trial.amounts.dimensions)
    )  # those that LSA found in the trial
    process_bytes = resident_bytes() or WORKER_BYTES
    with threadpool_limits(1):
        random = np.random.default_rng(0)
        stored = random.standard_normal(
            (_SEARCH_ROWS, dimensions), dtype=np.float32
        ).astype(np.float16)
        queries = stored[:_SEARCH_QUERIES].astype(np.float32)
        queries @ queries.T  # the first product takes longer, so it is not timed
        began = time.process_time()
        queries @ stored.astype(np.float32).T
        searched_s = time.process_time() - began
    return Measured(
        sample=sample,
        trial=trial,
        tokenizing=tokenizing,
        encoding=encoding,
        dimensions=dimensions,
        product_s=_SEARCH_OVERHEAD
        * searched_s
        / (_SEARCH_QUERIES * _SEARCH_ROWS * dimensions),
        process_bytes=process_bytes,
    )


def try_route(recipe: Recipe, texts: Sequence[str], *, chars_per_token: float) -> Trial:
    """Run the route on `texts` in a temporary folder; steps that the trial is too small for are missing from what it took."""
    with (
        tempfile.TemporaryDirectory(prefix="nextlong-plan-") as name,
        threadpool_limits(1),
    ):
        folder, run_dir = Path(name), Path(name, "run")
        run_dir.mkdir()
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (folder / "sample.jsonl").write_text("".join(lines), encoding="utf-8")
        tried = recipe_for(recipe, texts, folder, chars_per_token=chars_per_token)
        corpus = Corpus(tried)
        executor = Timed()
        steps = pipeline.route(tried, corpus.files)
        # A sample may be too small for what the corpus can do; the steps that have finished still tell.
        with suppress(NextlongError):
            run_steps(steps, run_dir=run_dir, executor=executor)
        done = {
            step.name: found
            for step in steps
            if (found := find_done(step, run_dir)) is not None
        }
        fitted = done["encoder"].manifest["parts"] if "encoder" in done else []
        dimensions = max(
            (part["counts"].get("dimensions", 0) for part in fitted), default=0
        )
        if "tokenizer" in done:
            chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        size = replace(sample(tried, corpus).size, dimensions=dimensions)
        return Trial(
            amounts=amounts_of(tried, size, chars_per_token=chars_per_token),
            seconds={name: executor.seconds[name] for name in done},
            bytes={name: step.manifest["bytes"] for name, step in done.items()},
            documents_share=_documents_share(done),
        )


def _documents_share(done: Artifacts) -> float:
    """Return `Trial.documents_share`: below 1 where sequences take several chunks of a document, as search makes them."""
    if "compose" not in done or not (parts := ComposeFiles.of(done).sequences):
        return 1.0
    (chunks,) = chunk_files(done).chunks  # of one shard, so ids of chunks are its rows
    documents = read_chunks(chunks, ("doc_row",))["doc_row"]  # shape (chunks,)
    chunks_of_document = np.unique(documents, return_counts=True)[1]
    found = expected = 0.0
    for part in parts:
        for ids in pa.ipc.open_file(part).read_all().column("chunk_id"):
            rows = np.unique(ids.values.to_numpy())
            rows = rows[rows != NO_CHUNK]
            # Chunks drawn at random would come from `expected` documents: those of which not all chunks are missed.
            found += len(np.unique(documents[rows]))
            expected += float(
                (1 - (1 - len(rows) / len(documents)) ** chunks_of_document).sum()
            )
    return found / expected if expected else 1.0


def recipe_for(
    recipe: Recipe, texts: Sequence[str], folder: Path, *, chars_per_token: float
) -> Recipe:
    """Return the recipe of a trial on `texts`, which lie in `folder`/sample.jsonl."""
    plain: Json = recipe.model_dump(mode="json")
    plain |= {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "workers": 1,
        "name": None,
    }
    plain["ingest"] |= {
        "sources": [{"path": str(folder / "sample.jsonl")}],
        "shard_mb": 1_000,
        "exclude": None,
    }
    plain["decontaminate"] |= {"files": []}
    plain["search"] |= {"index": EXACT, "device": "cpu"}
    plain["export"] |= {"push": None}
    if recipe.tokenizer.train is None:
        tokenizer = train_bpe(
            [text[:_TRIED_CHARS] for text in texts[:_TRIED_TEXTS]],
            vocab_size=_TRIED_ENTRIES,
        )
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        plain["tokenizer"] |= {
            "source": str(folder / "tokenizer.json"),
            "chars_per_token": chars_per_token,
        }
        plain["tokenizer"] |= {
            key: END_OF_TEXT
            for key in ("bos", "eos")
            if plain["tokenizer"][key] is not None
        }
    if plain["export"].get("megatron_eod") is not None:
        plain["export"] |= {"megatron_eod": END_OF_TEXT}
    if not kind_of(recipe.encoder).is_tried:
        plain["encoder"] |= {"model": Encoder().model}
    if isinstance(
        recipe.options, Keywords
    ):  # a model that writes queries has a rate of its own
        plain[recipe.compose.method] |= {"queries": "extractive"}
    chars = sum(map(len, texts))
    is_extended = method_of(recipe).layout == Layout.EXTENDED
    room = _ROOM * recipe.compose.draft_factor if is_extended else _ROOM
    target = max(
        256, min(recipe.compose.target_tokens, int(chars / chars_per_token / room))
    )
    sequences = (
        chars // 200_000 if is_extended else int(chars / chars_per_token / target / 2)
    )
    most = sequences if recipe.compose.sequences == "all" else recipe.compose.sequences
    plain["compose"] |= {
        "target_tokens": target,
        "sequences": max(2, min(sequences, most)),
    }
    return Recipe.from_dict(plain)


class Timed(SerialExecutor):
    """Runs tasks one after the other, and adds up the processor seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = defaultdict[str, float](float)

    def submit(
        self, key: int, call: Call, *arguments: object, resources: Resources, label: str
    ) -> None:
        """Note what to do next, timed as a task of its step."""
        step = label.rpartition(" task ")[0]

        def timed() -> object:
            began = time.process_time()
            result = call(*arguments)
            self.seconds[step] += time.process_time() - began
            return result

        super().submit(key, timed, resources=resources, label=label)


def tokenizer_rates(
    read_s: float, slow_s: float, worth_chars: float
) -> dict[str, Rate]:
    """Return the rates of tokenizing, and of measuring the tokenizer, by the names in `Estimate.rate`.

    Reading its file takes `read_s`, a character `slow_s` by the reference. A worker with at least `worth_chars` (math.inf: none)
    loads fastokens, any other uses the reference.
    """
    char_s = slow_s if math.isinf(worth_chars) else slow_s / SPEED_UP
    # fastokens is loaded where that takes no longer than the reference takes for `worth_chars`.
    tokens = Rate(
        char_s,
        start_s=lambda chars: read_s + min(chars, worth_chars) * (slow_s - char_s),
    )
    return {"tokens": tokens, "tokenizer": Rate(slow_s, start_s=lambda _: read_s)}


def _measure_tokenizer(
    recipe: Recipe, chunks: Sequence[str], begins: Sequence[bool]
) -> _Tokenizing:
    """Time the tokenizer on some chunks; one that is to be trained is trained on them.

    `begins` tells which chunks begin their document.
    """
    began = time.process_time()
    tokenizer = load_or_stand_in(recipe.tokenizer, chunks)
    read_s = time.process_time() - began if recipe.tokenizer.train is None else 0.0
    for key in ("bos", "eos"):
        if (name := getattr(recipe.tokenizer, key)) is not None:
            special_id(tokenizer, name, key=f"tokenizer.{key}")
    chars = max(1, sum(map(len, chunks)))
    began = time.process_time()
    encoder = TextEncoder(tokenizer, engine="reference")
    ids, _ = encoder.encode_chunks(chunks, begins)
    slow_s = (time.process_time() - began) / chars
    is_fast = recipe.tokenizer.engine == "auto" and is_known_to_be_fast(tokenizer)
    rates = tokenizer_rates(
        read_s, slow_s, chars_before_loading(tokenizer) if is_fast else math.inf
    )
    lost = lost_share(tokenizer, chunks, begins)
    return _Tokenizing(chars / max(1, len(ids)), lost, rates)
