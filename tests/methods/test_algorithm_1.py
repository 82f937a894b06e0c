"""`fit: paper` is the paper's Algorithm 1 with the deviations of docs/paper.md: an independent one gives the same sequences."""

import json
import math
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from tests.support.counted import counts_of
from tests.support.larger_cases import thorough
from tokenizers import Tokenizer

import nextlong
from nextlong import pipeline

T, S, W = 2048, 256, 1.5


def read_arrow(path):
    with pa.ipc.open_file(str(path)) as reader:
        return reader.read_all()


class Corpus:
    """Documents, chunks and vectors of a run, read from its files alone; chunks are numbered through all shards."""

    def __init__(self, run):
        documents, chunks = (
            run.steps["ingest"].files(".documents.arrow"),
            run.steps["chunk"].files(".chunks.arrow"),
        )
        self.texts, self.document, self.separator, self.chars, self.content_hash = (
            [],
            [],
            [],
            {},
            {},
        )
        for shard, paths in enumerate(zip(documents, chunks, strict=True)):
            table, cut = (read_arrow(path) for path in paths)
            for row in cut.to_pylist():
                document = (shard, row["doc_row"])
                text = table.column("text")[row["doc_row"]].as_py()
                self.texts.append(text[row["start"] : row["end"]])
                self.document.append(document)
                self.separator.append(row["separator"])
                self.chars[document] = len(text)
                self.content_hash[document] = table.column("content_hash")[
                    row["doc_row"]
                ].as_py()
        files = run.steps["embed"].files(".vectors.npy")
        self.vectors = np.concatenate([np.load(path) for path in files]).astype(
            np.float32
        )


def algorithm_1(corpus, document, encode, *, chars_per_token):
    """Return the tokens of the long document made of one, or None where it stays below T (paper, Algorithm 1 and appendix)."""
    metas = [number for number, own in enumerate(corpus.document) if own == document]
    if sum(len(encode(corpus.texts[meta])) for meta in metas) >= T:
        return None
    needed = (T * chars_per_token * W - corpus.chars[document]) / len(metas)
    k = max(1, math.ceil(needed / S))
    used, tokens = set(), []
    for meta in metas:
        scores = corpus.vectors @ corpus.vectors[meta]
        nearest = np.argsort(-scores, kind="stable").tolist()
        free = [
            number
            for number in nearest
            if corpus.document[number] != document and number not in used
        ]
        used.update(free[:k])
        for number in [meta, *free[:k]]:
            tokens += encode(corpus.texts[number]) + (
                encode("\n") if corpus.separator[number] else []
            )
    return tokens[:T] if len(tokens) >= T else None


@pytest.mark.parametrize(
    "chars_per_token", ["auto", *thorough(2.0, 9.0)], ids=["measured", "low", "high"]
)
def test_fit_paper_is_algorithm_1(recipe_for, small_corpus, tmp_path, chars_per_token):
    recipe = recipe_for(
        tmp_path / "run",
        f"ingest.sources.0.path={small_corpus}/{'[01]' if chars_per_token == 'auto' else '*'}.jsonl",
        "compose.fit=paper",
        "mine.near_duplicates=null",
        "compose.sequences=all",
        f"tokenizer.chars_per_token={chars_per_token}",
    )
    pipeline.run(recipe)
    run = nextlong.open(tmp_path / "run")
    corpus = Corpus(run)
    tokenizer = Tokenizer.from_file(str(run.steps["tokenizer"].file(".tokenizer.json")))
    (counts,) = counts_of(run.steps["tokenizer"])
    if chars_per_token != "auto":
        assert counts["chars_per_token"] == chars_per_token

    @cache
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    made = {sequence.id: sequence.input_ids.tolist() for sequence in run.sequences()}
    expected = {}
    for document in sorted(set(corpus.document)):
        if corpus.document.count(document) >= recipe.compose.min_meta_chunks:
            tokens = algorithm_1(
                corpus,
                document,
                encode,
                chars_per_token=counts["chars_per_token"],
            )
            if tokens is not None:
                expected[f"{corpus.content_hash[document]:016x}"] = tokens
    assert len(expected) > 5, json.dumps(counts)
    assert {name.rpartition("-")[2]: ids for name, ids in made.items()} == expected
