"""Composing for a notebook, and of drafts in files."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.support.arrow_files import write_arrow
from tests.support.open_files import is_released

import nextlong
from nextlong import schemas
from nextlong.artifacts.corpus_files import CorpusFiles, count_chunks
from nextlong.artifacts.results import ComposeResult, TokenizerResult
from nextlong.artifacts.sequence_files import TokenStore
from nextlong.errors import ArgumentError, RunError
from nextlong.retrieval.near_duplicates.shingles import ShingleStore, shingles
from nextlong.schemas import EOS, META, NEGATIVE, SEPARATOR, DropReason, Layout
from nextlong.sequences.compose import (
    _compose_drafts,
    _ComposeInputs,
    _drafts_and_pieces,
    _TextCutter,
    compose_step,
)
from nextlong.sequences.fit import (
    Composed,
    Cut,
    Dropped,
    Group,
    Rules,
    SizedChunk,
    compose,
    compose_spans,
    concatenate_spans,
)
from nextlong.sequences.tokenizer import _TOKEN_CHARS, token_chars, train_bpe

# for a notebook


def test_compose_of_plain_token_ids():
    result = compose(
        [[1, 2], [3]],
        [[[10, 11], [12]], [[12], [13, 14, 15]]],
        target_tokens=12,
        separator=[0],
        bos=[7],
        eos=[8],
    )
    assert isinstance(result, Composed)
    # room 10: 2 + 1 + 1 + 1 for the meta-chunks and separators, 5 left: 3 for the
    # first, which has to have one, 2 for the last
    assert result.input_ids == [7, 1, 2, 0, 10, 11, 0, 3, 0, 12, 0, 8]
    assert [(span.chunk, schemas.ROLES[span.role]) for span in result.spans] == [
        (-1, "bos"), (0, "meta"), (-1, "separator"), (2, "negative"), (-1, "separator"),
        (1, "meta"), (-1, "separator"), (3, "negative"), (-1, "separator"), (-1, "eos"),
    ]  # fmt: skip


def test_compose_counts_equal_negatives_as_one_chunk():
    result = compose([[1], [2]], [[[9, 9]], [[9, 9], [8, 8]]], target_tokens=6)
    assert result.input_ids == [1, 9, 9, 2, 8, 8]


def test_compose_says_why_there_is_no_sequence():
    assert compose([[1, 2]], [[[3]]], target_tokens=9) == Dropped(
        DropReason.TOO_FEW_NEGATIVES, 3
    )
    with pytest.raises(ArgumentError) as error:
        compose([[1], [2]], [[[3]]], target_tokens=9)
    assert error.value.where == "negatives"


@pytest.mark.parametrize(
    ("changed", "where", "value"),
    [
        ({"bos": [0], "eos": [9], "target_tokens": 1}, "target_tokens", "1"),
        ({"bos": [0], "eos": [9], "target_tokens": 2}, "target_tokens", "2"),
        ({"target_tokens": 0}, "target_tokens", "0"),
        ({"fit": "papper"}, "fit", "'papper'"),
        ({"min_gap_tokens": 0}, "min_gap_tokens", "0"),
        ({"position": "middle"}, "position", "'middle'"),
    ],
)
@pytest.mark.parametrize("fit", ["exact", "paper"])
def test_compose_refuses_what_fits_no_sequence(fit, changed, where, value):
    with pytest.raises(ArgumentError) as error:
        compose([[1]], [[[2, 3]]], **({"target_tokens": 3, "fit": fit} | changed))
    assert (error.value.where, error.value.value) == (where, value)


def test_compose_of_nothing():
    with pytest.raises(ArgumentError) as error:
        compose([], [], target_tokens=5)
    assert error.value.where == "meta_chunks"


def test_a_meta_chunk_is_never_a_negative():
    result = compose(
        [[1, 2], [3]], [[[3], [1, 2], [7, 7]], [[1, 2], [8, 8]]], target_tokens=7
    )
    assert result.input_ids == [1, 2, 7, 7, 3, 8, 8]
    assert [span.chunk for span in result.spans] == [0, 2, 1, 3]


def test_compose_draws_random_positions_from_its_seed():
    negatives = [[[number] * 2 for number in range(2, 9)]]
    results = [
        tuple(
            compose(
                [[1, 1]], negatives, target_tokens=16, position="random", seed=seed
            ).input_ids
        )
        for seed in range(20)
    ]
    assert len(set(results)) > 3
    assert results[4] == tuple(
        compose(
            [[1, 1]], negatives, target_tokens=16, position="random", seed=4
        ).input_ids
    )


# files


@pytest.fixture
def drafted(tmp_path):
    """Six chunks of 3, 4, 5, 2, 2 and 1 letters, a token each; 0 and 3 end in a newline. One draft fits 17 tokens, two do not."""
    bounds = [0, 3, 7, 12, 14, 16, 17]
    columns = [[0] * 6, bounds[:-1], bounds[1:], [False, True, True, False, True, True]]
    corpus = CorpusFiles(
        (
            write_arrow(
                tmp_path / "documents.arrow",
                schemas.DOCUMENTS,
                [["ab\ndefghijklm\nopq"], [7], ["s"], ["i"]],
            ),
        ),
        (write_arrow(tmp_path / "chunks.arrow", schemas.CHUNKS, columns),),
    )
    np.save(tmp_path / "chars.npy", np.array([(1, False, True)] * 17, _TOKEN_CHARS))
    tokens = {
        "rows": np.arange(6),
        "offsets": np.array([0, 3, 7, 12, 14, 16, 17]),
        "ids": np.arange(17, dtype=np.uint32),
    }
    for name, array in tokens.items():
        np.save(tmp_path / f"{name}.npy", array)
    drafts = [
        [
            ["a"],
            [7],
            [Layout.EXTENDED],
            [[0, 1, 3, 2]],
            [[0, 1, 0, 1]],
            [[0, 0, 1, 1]],
            [[1.0, 0.5, 1.0, 0.25]],
            [[]],
            [""],
        ],
        [
            ["b"],
            [7],
            [Layout.EXTENDED],
            [[5, 4]],
            [[0, 1]],
            [[0, 0]],
            [[1.0, 0.5]],
            [[]],
            [""],
        ],
        [
            ["c"],
            [7],
            [Layout.EXTENDED],
            [[1, 2, 0]],
            [[0, 0, 0]],
            [[0, 1, 2]],
            [[1.0, 1.0, 1.0]],
            [[]],
            [""],
        ],
    ]
    return {
        "drafts": write_arrow(tmp_path / "drafts.arrow", schemas.DRAFTS, *drafts),
        "inputs": _ComposeInputs(
            tokens=TokenStore(
                tokens=tuple([tmp_path / f"{name}.npy"] for name in tokens)
            ),
            corpus=corpus,
            token_chars=tmp_path / "chars.npy",
            tokenizer=tmp_path / "none",
        ),
    }


def block(drafted, out, **changed):
    take = changed.pop("take", 3)
    plain = {
        "target_tokens": 17, "fit": "exact", "min_gap_tokens": 1, "position": "head",
        "reuse": "never", "separator_tokens": 1, "bos_tokens": 0, "eos_tokens": 1,
    }  # fmt: skip
    named = {
        "method": changed.pop("method", "nextlong"),
        "seed": changed.pop("seed", 0),
    }
    inputs = {"drafts": [drafted["drafts"]], "inputs": drafted["inputs"]}
    counts = _compose_drafts(
        out, **inputs, take=[take], rules=Rules(**(plain | changed)), **named
    )
    with pa.ipc.open_file(pa.memory_map(f"{out}.sequences.arrow")) as reader:
        assert reader.schema == schemas.SEQUENCES
        return counts, reader.read_all().to_pylist()


def test_compose_drafts_writes_sequences_and_counts_what_it_drops(drafted, tmp_path):
    counts, rows = block(drafted, tmp_path / "out")
    # 16 for text: 3 + 2 for the meta-chunks, 11 left: 4 and a separator for the first,
    # 5 and a separator for the last.
    assert rows == [
        {
            "sequence_id": "a",
            "key": 7,
            "method": "nextlong",
            "layout": "extended",
            "chunk_id": [0, 1, -1, 3, 2, -1, -1],
            "role": [META, NEGATIVE, SEPARATOR, META, NEGATIVE, SEPARATOR, EOS],
            "group": [0, 0, 0, 1, 1, 1, -1],
            "token_start": [0, 3, 7, 8, 10, 15, 16],
            "token_end": [3, 7, 8, 10, 15, 16, 17],
            "score": [1.0, 0.5, 0.0, 1.0, 0.25, 0.0, 0.0],
        }
    ]
    assert counts == ComposeResult(
        sequences=1,
        sequences_per_file=(1,),
        dropped={DropReason.TOO_FEW_NEGATIVES: 1, DropReason.TOO_LITTLE_ROOM: 1},
        dropped_examples={
            DropReason.TOO_FEW_NEGATIVES: ((5, 1, 5),),
            DropReason.TOO_LITTLE_ROOM: ((1, 3, 14),),
        },
        longest_dropped_tokens=5,
    )


def test_a_draft_without_enough_negatives_is_dropped_for_its_shortage(
    drafted, tmp_path
):
    shortage = DropReason.TOO_FEW_CANDIDATES
    drafts = [
        ["b"],
        [7],
        [Layout.EXTENDED],
        [[5, 4]],
        [[0, 1]],
        [[0, 0]],
        [[1.0, 0.5]],
        [[]],
        [shortage],
    ]
    drafted["drafts"] = write_arrow(tmp_path / "few.arrow", schemas.DRAFTS, drafts)
    counts, rows = block(drafted, tmp_path / "out", take=1)
    assert rows == []
    assert counts.dropped == {shortage: 1}
    assert counts.dropped_examples == {shortage: ((5, 1, 5),)}


def test_compose_drafts_takes_only_the_chosen_drafts(drafted, tmp_path):
    assert block(drafted, tmp_path / "one", take=1)[0] == ComposeResult(
        sequences=1, sequences_per_file=(1,), dropped={}, longest_dropped_tokens=0
    )
    assert block(drafted, tmp_path / "none", take=0) == (
        ComposeResult(
            sequences=0, sequences_per_file=(0,), dropped={}, longest_dropped_tokens=0
        ),
        [],
    )


def test_the_least_negatives_of_a_gap_are_half_a_mean_chunk(shared_run):
    run = nextlong.open(shared_run)
    compose = run.recipe.compose
    assert compose.min_gap_tokens == "auto"
    step = compose_step(
        compose, (), target_tokens=2048, seed=0, near_duplicates=None, engine="auto"
    )
    task, *_ = step.tasks(run.steps)
    corpus = run.corpus
    chars = [len(text) for text in corpus.texts(every_chunk(corpus)).tolist()]
    tokenizer = run.steps["tokenizer"].result(TokenizerResult)
    half = sum(chars) / len(chars) / tokenizer.chars_per_token / 2
    assert task.keywords["rules"].min_gap_tokens == math.ceil(half) > 1


def every_chunk(corpus):
    """Return the ids of all chunks of a corpus."""
    counts = [count_chunks(path) for path in corpus.chunks]
    return np.concatenate(
        [schemas.pack_ids(shard, np.arange(rows)) for shard, rows in enumerate(counts)]
    )


def test_random_positions_belong_to_seed_and_sequence(drafted, tmp_path):
    runs = [
        block(drafted, tmp_path / f"{seed}", position="random", seed=seed)[1][0][
            "chunk_id"
        ]
        for seed in range(8)
    ]
    assert len({tuple(chunks) for chunks in runs}) > 1
    assert (
        block(drafted, tmp_path / "again", position="random", seed=3, take=1)[1][0][
            "chunk_id"
        ]
        == runs[3]
    )


def test_random_positions_of_equal_drafts_differ(drafted, tmp_path):
    drafts = [
        [
            [f"a{key}"],
            [key],
            [Layout.EXTENDED],
            [[0, 1, 3, 2]],
            [[0, 1, 0, 1]],
            [[0, 0, 1, 1]],
            [[1.0] * 4],
            [[]],
            [""],
        ]
        for key in range(12)
    ]
    drafted["drafts"] = write_arrow(tmp_path / "equal.arrow", schemas.DRAFTS, *drafts)
    _, rows = block(drafted, tmp_path / "out", position="random", take=12)
    assert len({tuple(row["chunk_id"]) for row in rows}) > 1


def test_a_separator_closes_the_gap_that_decontaminating_left_in_a_document(
    drafted, tmp_path
):
    # Chunk 0 ends in a newline; 1 and 2 go on where the chunk before ends; before 3
    # characters were left out.
    starts, ends = [0, 1, 2, 7, 8, 9], [1, 2, 3, 8, 9, 10]
    columns = [[0] * 6, starts, ends, [False, True, True, True, True, True]]
    corpus = drafted["inputs"].corpus
    holed = replace(
        corpus, chunks=(write_arrow(tmp_path / "holed.arrow", schemas.CHUNKS, columns),)
    )
    drafted["inputs"] = drafted["inputs"]._replace(corpus=holed)
    whole = [
        ["d"],
        [8],
        [Layout.CONCATENATED],
        [[0, 1, 2, 3]],
        [[schemas.DOCUMENT] * 4],
        [[0] * 4],
        [[1.0] * 4],
        [[]],
        [""],
    ]
    drafted["drafts"] = write_arrow(tmp_path / "whole.arrow", schemas.DRAFTS, whole)
    _, (row,) = block(
        drafted, tmp_path / "out", method="standard", target_tokens=16, take=1
    )
    assert row["chunk_id"] == [0, 1, 2, -1, 3, -1]
    assert row["role"][3] == schemas.SEPARATOR
    assert row["token_end"] == [3, 7, 12, 13, 15, 16]


# Where a chunk is cut: between characters, without a second newline, and not where what
# is left repeats something


STOCK = "a notice of the rights that are reserved by the authors of this work "
TEXTS = (
    "the meta document. " + STOCK,
    "日本の港\n",
    "one\ntwo\n",
    STOCK
    + "and then of tides, harbours, reefs and the ships that lie there at anchor in a storm",
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
    chunks = [
        range(count),
        [0] * count,
        [*map(len, TEXTS)],
        [not text.endswith("\n") for text in TEXTS],
    ]
    corpus = CorpusFiles(
        (write_arrow(folder / "documents.arrow", schemas.DOCUMENTS, documents),),
        (write_arrow(folder / "chunks.arrow", schemas.CHUNKS, chunks),),
    )
    shingle_store = ShingleStore(
        hashes=[folder / "runs.npy"], offsets=[folder / "run_offsets.npy"]
    )
    return _ComposeInputs(
        tokens=TokenStore(
            tokens=tuple(
                [folder / f"{name}.npy"] for name in ("rows", "offsets", "ids")
            )
        ),
        corpus=corpus,
        token_chars=folder / "chars.npy",
        tokenizer=folder / "tokenizer.json",
        near_duplicates=(shingle_store, folder / "weights.npy", 0.8),
    )


def cutter(store, *, separator_tokens=1, near_duplicates=True):
    inputs = store if near_duplicates else store._replace(near_duplicates=None)
    return _TextCutter(inputs, [0], separator_tokens=separator_tokens)


def piece(chunk):
    return SizedChunk(chunk, len(TEXTS[chunk].encode()), TEXTS[chunk].endswith("\n"))


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
    assert (
        cutter(store, separator_tokens=separator_tokens).negative(piece(1), budget, [])
        == cut
    )


@pytest.mark.parametrize(
    ("budget", "cut"),
    [(4, Cut(4, closed=True)), (5, Cut(3, closed=False)), (6, Cut(5, closed=False))],
)
def test_no_separator_follows_what_ends_in_a_newline(store, budget, cut):
    # "one\n" fills four; of five tokens it would leave one for a separator, so "one"
    # and two separators.
    assert cutter(store).negative(piece(2), budget, []) == cut


@pytest.mark.parametrize(
    ("chunk", "budget", "separator_tokens", "cut"),
    [
        (1, 3, 1, None),  # 日, but no separator
        (1, 4, 1, Cut(3, closed=False)),
        (1, 5, 0, Cut(5, closed=True)),  # a recipe without separators
        (2, 4, 1, Cut(4, closed=True)),  # "one\n"
        (2, 1, 1, None),
        (2, 2, 1, Cut(1, closed=False)),
        (2, 3, 3, None),
    ],
)
def test_a_cut_before_a_meta_chunk_ends_a_line_or_has_room_for_a_separator(
    store, chunk, budget, separator_tokens, cut
):
    own = cutter(store, separator_tokens=separator_tokens)
    assert own.negative(piece(chunk), budget, [], following="meta-chunk") == cut


def test_what_is_left_of_a_chunk_repeats_neither_the_meta_document_nor_what_is_placed(
    store,
):
    whole = piece(3)
    assert cutter(store).negative(whole, len(STOCK) + 1, []) is None
    assert (
        cutter(store, near_duplicates=False).negative(whole, len(STOCK) + 1, [])
        is not None
    )
    assert cutter(store).negative(whole, whole.tokens - 2, []) == Cut(
        whole.tokens - 3, closed=False
    )
    assert cutter(store).negative(piece(4), 22, [3]) == Cut(21, closed=False)
    assert (
        cutter(store).negative(piece(4), 31, [4]) is None
    )  # fewer than ten words: only the same ones


def test_another_chunk_is_cut_where_what_is_left_would_repeat_the_meta_document(store):
    group = Group(piece(0), [piece(3), piece(4)])
    target = group.meta.tokens + 1 + len(STOCK) + 1
    spans = compose_spans(
        [Group(piece(0), [piece(3)])],
        Rules(target_tokens=target, separator_tokens=1),
        cutter=cutter(store),
    )
    assert isinstance(spans, Dropped)
    spans = compose_spans(
        [group],
        Rules(target_tokens=group.meta.tokens + 12, separator_tokens=1),
        cutter=cutter(store),
    )
    assert [span.chunk for span in spans] == [
        0,
        -1,
        3,
        -1,
    ]  # ten letters of the notice are too few words to tell


@pytest.mark.parametrize(
    ("tokens", "end"), [(3, 3), (4, 3), (5, 3), (6, 6), (2, 2), (12, 12)]
)
def test_the_last_document_ends_between_two_characters_and_has_one_at_least(
    store, tokens, end
):
    assert cutter(store).end(piece(1), tokens) == end
    assert cutter(store, separator_tokens=0).end(piece(1), tokens) == tokens


def test_a_cutter_does_not_keep_its_inputs_until_the_garbage_collector_runs(store):
    def make():
        used = cutter(store)
        assert used.negative(piece(3), piece(3).tokens - 2, [4]) is not None
        assert used.end(piece(1), 5) == 3
        return used

    assert is_released(make)


def test_separators_fill_what_a_cut_between_characters_leaves(store):
    spans = concatenate_spans(
        [piece(1)],
        [schemas.DOCUMENT],
        [0],
        Rules(target_tokens=5, separator_tokens=1),
        cutter=cutter(store),
    )
    assert [(span.chunk, span.role, span.start, span.end) for span in spans] == [
        (1, schemas.DOCUMENT, 0, 3), (-1, schemas.SEPARATOR, 3, 4), (-1, schemas.SEPARATOR, 4, 5),
    ]  # fmt: skip


def test_a_file_with_fewer_drafts_than_it_should_hold_is_refused(tmp_path):
    path = tmp_path / "part-00000.drafts.arrow"
    with pa.ipc.new_file(str(path), schemas.DRAFTS):
        pass
    with pytest.raises(RunError) as error:
        list(_drafts_and_pieces(path, 3, tokens=None, chunks=[]))
    assert error.value.where == str(path)
