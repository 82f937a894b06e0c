"""Where a chunk is cut: between characters, without a second newline, and not where what is left repeats something."""

from dataclasses import replace

import numpy as np
import pytest

from arrow_files import write_arrow
from nextlong import schemas
from nextlong.artifacts.finished import CorpusFiles
from nextlong.artifacts.lookup import TokenStore
from nextlong.retrieval.near_duplicates.shingles import ShingleStore, shingles
from nextlong.sequences.fit import Cut, Dropped, Group, Piece, Rules, compose_spans, concatenate_spans
from nextlong.sequences.token_chars import token_chars
from nextlong.sequences.tokenizer import train_bpe
from nextlong.sequences.truncate import ComposeInputs, TextCutter

STOCK = "a notice of the rights that are reserved by the authors of this work "
TEXTS = (
    "the meta document. " + STOCK,
    "日本の港\n",
    "one\ntwo\n",
    STOCK + "and then of tides, harbours, reefs and the ships that lie there at anchor in a storm",
    "of anchors and reefs and tides",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The texts as chunks of a document each, a token a byte."""
    folder, count = tmp_path_factory.mktemp("cut"), len(TEXTS)
    tokenizer = train_bpe([], vocab_size=257)
    tokenizer.save(str(folder / "tokenizer.json"))
    np.save(folder / "chars.npy", token_chars(tokenizer))
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    np.save(folder / "rows.npy", np.arange(count))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, ids)]))
    np.save(folder / "ids.npy", np.concatenate(ids).astype(np.uint32))
    found = shingles(TEXTS)
    np.save(folder / "runs.npy", found.hashes)
    np.save(folder / "run_offsets.npy", found.offsets)
    np.save(folder / "weights.npy", np.full(1 << 10, 1024, np.uint16))
    documents = [list(TEXTS), range(count), ["s"] * count, ["i"] * count]
    chunks = [range(count), [0] * count, [*map(len, TEXTS)], [not text.endswith("\n") for text in TEXTS]]
    corpus = CorpusFiles(
        (write_arrow(folder / "documents.arrow", schemas.DOCUMENTS, documents),),
        (write_arrow(folder / "chunks.arrow", schemas.CHUNKS, chunks),),
    )
    shingle_store = ShingleStore(hashes=[folder / "runs.npy"], offsets=[folder / "run_offsets.npy"])
    return ComposeInputs(
        tokens=TokenStore(**{name: [folder / f"{name}.npy"] for name in ("rows", "offsets", "ids")}),
        corpus=corpus,
        token_chars=folder / "chars.npy",
        tokenizer=folder / "tokenizer.json",
        near_duplicates=(shingle_store, folder / "weights.npy", 0.8),
    )


def cutter(store, *, separator_tokens=1, near_duplicates=True):
    inputs = store if near_duplicates else replace(store, near_duplicates=None)
    return TextCutter(inputs, [0], separator_tokens=separator_tokens)


def piece(chunk):
    return Piece(chunk, len(TEXTS[chunk].encode()), TEXTS[chunk].endswith("\n"))


@pytest.mark.parametrize(
    ("budget", "separator_tokens", "cut"),
    [
        (4, 1, Cut(3, closed=False)),  # 日 and a separator
        (5, 1, Cut(3, closed=False)),  # … or two
        (6, 1, Cut(3, closed=False)),
        (7, 1, Cut(6, closed=False)),
        (3, 1, Cut(3, closed=True)),  # no room for a separator, but for a character
        (8, 3, Cut(3, closed=False)),
        (5, 0, Cut(5, closed=True)),  # nothing that could fill the rest
        (2, 0, None),  # not one character
        (1, 1, None),
    ],
)
def test_a_cut_falls_between_two_characters(store, budget, separator_tokens, cut):
    assert cutter(store, separator_tokens=separator_tokens).negative(piece(1), budget, []) == cut


@pytest.mark.parametrize(
    ("budget", "cut"), [(4, Cut(4, closed=True)), (5, Cut(3, closed=False)), (6, Cut(5, closed=False))]
)
def test_no_separator_follows_what_ends_in_a_newline(store, budget, cut):
    # "one\n" fills four; of five tokens it would leave one for a separator, so "one" and two separators.
    assert cutter(store).negative(piece(2), budget, []) == cut


def test_what_is_left_of_a_chunk_repeats_neither_the_meta_document_nor_what_is_placed(store):
    whole = piece(3)
    assert cutter(store).negative(whole, len(STOCK) + 1, []) is None
    assert cutter(store, near_duplicates=False).negative(whole, len(STOCK) + 1, []) is not None
    assert cutter(store).negative(whole, whole.tokens - 2, []) == Cut(whole.tokens - 3, closed=False)
    assert cutter(store).negative(piece(4), 22, [3]) == Cut(21, closed=False)
    assert cutter(store).negative(piece(4), 31, [4]) is None  # fewer than ten words: only the same ones


def test_another_chunk_is_cut_where_what_is_left_would_repeat_the_meta_document(store):
    group = Group(piece(0), [piece(3), piece(4)])
    target = group.meta.tokens + 1 + len(STOCK) + 1
    spans = compose_spans(
        [Group(piece(0), [piece(3)])], Rules(target_tokens=target, separator_tokens=1), cutter=cutter(store)
    )
    assert isinstance(spans, Dropped)
    spans = compose_spans(
        [group], Rules(target_tokens=group.meta.tokens + 12, separator_tokens=1), cutter=cutter(store)
    )
    assert [span.chunk for span in spans] == [0, -1, 3, -1]  # ten letters of the notice are too few words to tell


@pytest.mark.parametrize(("tokens", "end"), [(3, 3), (4, 3), (5, 3), (6, 6), (2, 2), (12, 12)])
def test_the_last_document_ends_between_two_characters_and_has_one_at_least(store, tokens, end):
    assert cutter(store).end(piece(1), tokens) == end
    assert cutter(store, separator_tokens=0).end(piece(1), tokens) == tokens


def test_separators_fill_what_a_cut_between_characters_leaves(store):
    spans = concatenate_spans([piece(1)], [0], Rules(target_tokens=5, separator_tokens=1), cutter=cutter(store))
    assert [(span.chunk, span.role, span.start, span.end) for span in spans] == [
        (1, schemas.DOCUMENT, 0, 3), (-1, schemas.SEPARATOR, 3, 4), (-1, schemas.SEPARATOR, 4, 5),
    ]  # fmt: skip
