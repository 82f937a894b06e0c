"""Screening: what falls out, what takes its place, and how far it looks."""

import numpy as np
import pyarrow as pa
import pytest

from nextlong import schemas
from nextlong.stages.mine import METAS
from nextlong.stages.offers import Candidates
from nextlong.stages.resolve import Corpus
from nextlong.stages.screen import screen

WEIGHTS = np.ones(1 << 16, np.float16)


def words(number, *, count=40, changed=0):
    """A text of its own; `changed` of its words, far apart, are others."""
    own = [f"w{number}x{place}" for place in range(count)]
    for place in range(changed):
        own[place * (count // changed)] += "other"
    return " ".join(own)


@pytest.fixture
def corpus_of(tmp_path):
    """A function of texts that returns a corpus with one chunk a document."""

    def corpus(texts):
        documents = [texts, range(len(texts)), ["s"] * len(texts), ["i"] * len(texts)]
        sizes = [len(text) for text in texts]
        chunks = [range(len(texts)), [0] * len(texts), sizes, [True] * len(texts)]
        for name, schema, columns in (("d", schemas.DOCUMENTS, documents), ("c", schemas.CHUNKS, chunks)):
            batch = pa.RecordBatch.from_pydict(dict(zip(schema.names, map(list, columns), strict=True)), schema=schema)
            with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                writer.write_batch(batch)
        return Corpus((tmp_path / "d",), (tmp_path / "c",))

    return corpus


def offers(*lists):
    return Candidates(
        [np.array(own, np.int64) for own in lists],
        [np.linspace(0.9, 0.1, len(own), dtype=np.float32) for own in lists],
        [np.full(len(own), 100) for own in lists],
    )


def screened(corpus, offered, *, chunks=1, length=2):
    """Screen for a meta-document of the first chunks; a draft takes `length` of each list."""
    metas = np.array([(0, 0, 0, chunks, 100)], METAS)
    (found,) = screen(
        metas,
        [offered],
        lambda _, own: [min(length, len(ids)) for ids in own.ids],
        corpus=corpus,
        weights=WEIGHTS,
        threshold=0.8,
    )
    return [ids[:length].tolist() for ids, length in zip(found.offers.ids, found.prefixes, strict=True)], found


def test_a_copy_of_the_meta_document_gives_way_to_the_next(corpus_of):
    corpus = corpus_of([words(0), words(1), words(0, changed=2), words(2), words(3)])
    drafted, found = screened(corpus, offers([2, 1, 3, 4]))
    assert drafted == [[1, 3]]
    assert found.near_copies == 1
    assert found.offers.scores[0] == pytest.approx(np.linspace(0.9, 0.1, 4)[1:])


def test_a_copy_of_another_meta_chunk_falls_out_too(corpus_of):
    corpus = corpus_of([words(0), words(1), words(1, changed=1), words(2)])
    drafted, _ = screened(corpus, offers([2, 3], [3]), chunks=2)
    assert drafted == [[3], [3]]


def test_of_copies_among_candidates_the_one_that_composing_meets_first_stays(corpus_of):
    texts = [words(0), words(1), words(2), words(2, changed=1), words(3)]
    assert screened(corpus_of(texts), offers([1, 3], [2, 4]), chunks=1)[0] == [[1, 3], [4]]
    assert screened(corpus_of(texts), offers([2, 1], [3, 4]), chunks=1)[0] == [[2, 1], [4]]


def test_half_a_copy_stays(corpus_of):
    corpus = corpus_of([words(0), words(0, count=20) + " " + words(1, count=20), words(2)])
    assert screened(corpus, offers([1, 2]))[0] == [[1, 2]]


def test_it_looks_on_where_everything_so_far_falls_out(corpus_of):
    copies = [words(0, changed=1 + number % 3) for number in range(50)]
    corpus = corpus_of([words(0), *copies, words(1), words(2), words(0)])
    drafted, found = screened(corpus, offers(range(1, 54)))
    assert drafted == [[51, 52]]
    assert found.near_copies == 50


def test_a_list_of_nothing_but_copies_drafts_nothing(corpus_of):
    corpus = corpus_of([words(0), *(words(0) for _ in range(30))])
    drafted, found = screened(corpus, offers(range(1, 31)))
    assert drafted == [[]]
    assert found.near_copies == 30
