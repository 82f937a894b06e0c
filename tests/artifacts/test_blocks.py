"""References turned into tokens, text and names, on a real run over texts of many scripts; and rows read singly from them."""

import json
import pickle
import random
from dataclasses import fields, replace
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.support.random_rows import random_blocks
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

import nextlong
from nextlong import pipeline
from nextlong.artifacts import blocks
from nextlong.artifacts.blocks import (
    Resolved,
    cuts_of,
    joined,
    joined_names,
    packed,
    resolve,
    resolve_table,
    sliced,
    span_texts,
)
from nextlong.artifacts.rows import Rows, epoch_order, rank_positions, worker_part
from nextlong.recipe import Recipe
from nextlong.schemas import META, NO_CHUNK, SEPARATOR
from nextlong.sequences.tokenizer import token_chars, train_bpe

WORDS = [
    "tide harbour anchor gull deck rope storm reef",
    "今日は 港に 船が 帰る 魚を 売る 市場の 朝",
    "🌊 👨‍👩‍👧 ⚓️ 🐟 👍🏽 é̱ naïve señor",
    "שלום ים סירה גל عربي بحر سفينة ميناء",
    "море гавань якорь чайка палуба канат шторм риф",
]


def documents(count=40):
    draw = random.Random(3)
    texts = {}
    for number in range(count):
        words = WORDS[number % len(WORDS)].split()
        lines = [
            " ".join(draw.choices(words, k=draw.randint(3, 9)))
            for _ in range(draw.randint(3, 12))
        ]
        texts[f"doc-{number}"] = draw.choice(["\n", "\r\n"]).join(lines) + draw.choice(
            ["", "\n"]
        )
    return texts


@pytest.fixture(scope="module")
def texts():
    return documents()


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory):
    return made(tmp_path_factory.mktemp("resolve"), texts)


def made(folder, texts, **compose):
    lines = [
        json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items()
    ]
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    recipe = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(folder / "corpus.jsonl")}],
            "shard_mb": 0.006,
        },
        "chunk": {"max_chars": 64},
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 330, "bos": "<|endoftext|>", "eos": "<|endoftext|>"},
        "compose": {"sequences": "all", "target_tokens": 700, "position": "random"}
        | compose,
        "export": {"formats": ["parquet", "jsonl"]},
    }
    pipeline.run(Recipe.from_dict(recipe))
    return nextlong.open(folder / "run")


def test_the_run_spans_shards_and_makes_sequences(run):
    assert len(run.corpus.documents) > 2
    assert len(run) >= 20


def test_every_span_decodes_to_its_document(run, texts):
    for sequence in run.sequences():
        for span in sequence.spans:
            if span.chunk_id >= 0:
                decoded = run.tokenizer.decode(
                    sequence.input_ids[span.token_start : span.token_end].tolist()
                )
                assert (
                    decoded.rstrip("\ufffd")
                    == texts[span.source_id][span.char_start : span.char_end]
                )


def test_a_cut_falls_between_two_characters_and_separators_fill_the_rest(run):
    filled = 0
    for sequence in run.sequences():
        assert "\ufffd" not in run.tokenizer.decode(sequence.input_ids.tolist())
        roles = [span.role for span in sequence.spans]
        filled += any(pair == ("separator", "separator") for pair in pairwise(roles))
    assert filled > 3


def test_a_cut_span_ends_with_its_last_whole_character(texts, tmp_path):
    run, parted = (
        made(tmp_path, texts, separator=""),
        0,
    )  # nothing to fill what a cut between characters would leave
    for sequence in run.sequences():
        for span in sequence.spans:
            if span.chunk_id < 0:
                continue
            ids = sequence.input_ids[span.token_start : span.token_end].tolist()
            text = texts[span.source_id][span.char_start : span.char_end]
            held_bytes = sum(
                len(run.tokenizer.id_to_token(token)) for token in ids
            )  # one letter a byte
            missing = held_bytes - len(text.encode())
            following = texts[span.source_id][span.char_end : span.char_end + 1]
            assert 0 <= missing < max(1, len(following.encode()))
            assert span.char_start < span.char_end
            parted += missing > 0
    assert parted > 3


def test_spans_without_a_document(run):
    for sequence in run.sequences():
        first, last = sequence.spans[0], sequence.spans[-1]
        assert (first.role, last.role) == ("bos", "eos")
        for span in sequence.spans:
            if span.chunk_id < 0:
                assert (
                    span.doc_id,
                    span.source_id,
                    span.char_start,
                    span.char_end,
                ) == (-1, "", -1, -1)
                assert span.role in ("bos", "eos", "separator")
                expected = {"separator": run.tokenizer.encode("\n").ids}.get(
                    span.role, [0]
                )
                assert (
                    sequence.input_ids[span.token_start : span.token_end].tolist()
                    == expected
                )


def test_no_negative_is_of_the_own_document(run):
    for sequence in run.sequences():
        (own,) = {span.doc_id for span in sequence.spans if span.role == "meta"}
        assert own not in {
            span.doc_id for span in sequence.spans if span.role == "negative"
        }


def test_meta_chunks_rebuild_the_document(run, texts):
    for sequence in run.sequences():
        metas = [span for span in sequence.spans if span.role == "meta"]
        whole = "".join(
            texts[span.source_id][span.char_start : span.char_end] for span in metas
        )
        assert whole == texts[metas[0].source_id]


def test_blocks_do_not_show_in_what_comes_out(run, monkeypatch):
    (whole,) = resolve(run.files, 0)
    monkeypatch.setattr(blocks, "_FIRST_BLOCK_TOKENS", 1)
    monkeypatch.setattr(blocks, "_BLOCK_TOKENS", 1)
    pieces = list(resolve(run.files, 0))
    assert len(pieces) == len(whole) > 1
    assert (
        np.concatenate([block.input_ids for block in pieces]).tolist()
        == whole.input_ids.tolist()
    )
    assert [block.sequence_ids[0] for block in pieces] == whole.sequence_ids
    for name in (
        "chunk_ids",
        "doc_ids",
        "source_ids",
        "char_starts",
        "char_ends",
        "roles",
        "groups",
        "token_ends",
    ):
        assert (
            np.concatenate([getattr(block, name) for block in pieces]).tolist()
            == getattr(whole, name).tolist()
        )


def test_ids_and_domains_without_the_spans(run):
    (whole,) = resolve(run.files, 0)
    with pa.ipc.open_file(str(run.files.sequences[0])) as reader:
        table = reader.read_all()
    files = replace(
        run.files, token_chars=Path("nowhere.npy"), tokenizer=Path("nowhere.json")
    )
    for wanted, domains in (("ids", [""] * len(whole)), ("domains", whole.domains)):
        block = resolve_table(table, files, wanted=wanted)
        assert block.input_ids.tolist() == whole.input_ids.tolist()
        assert block.chunk_ids.tolist() == whole.chunk_ids.tolist()
        assert block.domains == domains
        assert set(block.char_ends.tolist()) == {-1}


def test_some_of_the_sequences(run):
    (whole,) = resolve(run.files, 0)
    (second,) = resolve(run.files, 0, first=1, take=2)
    assert second.sequence_ids == whole.sequence_ids[1:2]
    assert second.input_ids.tolist() == whole.input_ids[700:1400].tolist()
    assert list(resolve(run.files, 0, take=0)) == []


def test_texts_of_chunks_come_in_the_order_of_their_ids(run):
    ids = np.array([(1 << 32) + 1, 0, 1, 0])
    found = run.corpus.texts(ids)
    assert found[1] == found[3]
    assert [
        run.corpus.texts(ids[place : place + 1])[0] for place in range(4)
    ] == found.tolist()


def wordpiece():
    vocab = {"[UNK]": 0, "hello": 1, "wor": 2, "##ld": 3, ",": 4}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def bytes_only(*, trim):
    tokenizer = train_bpe([], vocab_size=257)
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def characters():
    tokenizer = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1, "é": 2, "b": 3}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def under_nfc():
    tokenizer = train_bpe(["the cat sat on the mat", "e\u0301e\u0301"], vocab_size=300)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def mixed_scripts(normalizer=None):
    # Without a pattern that splits, so that tokens begin and end within characters.
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, show_progress=False
    )
    texts = [
        "the cat sat on the mat",
        "日本の港に船が帰る",
        "🌊🌊 👍🏽 🐟🐟",
        "שלום ים סירה",
        "море гавань якорь",
        "naïve señor",
    ]
    tokenizer.train_from_iterator(texts * 3, trainer)
    tokenizer.add_tokens(["    ", "  "])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def every_cut(tokenizer, *texts, table=None):
    """Return the characters kept by 1, 2, … all but one tokens of each text, and how many cuts were left to the offsets."""
    encoded = [
        (text, tokenizer.encode(text, add_special_tokens=False).ids) for text in texts
    ]
    cuts = [(text, ids, count) for text, ids in encoded for count in range(1, len(ids))]
    table = token_chars(tokenizer) if table is None else table
    asked, kept = [], []
    for text, ids, count in cuts:
        found = cuts_of(
            np.array(ids, np.int32),
            chars=len(text),
            begins=True,
            token_chars=table,
            text_of=lambda text=text: asked.append(text) or text,
            tokenizer=lambda: tokenizer,
        )
        kept.append(max(1, int(found.chars[count])))
    return kept, len(asked)


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (bytes_only(trim=False), "aé🎉b", [1, 1, 2, 2, 2, 2, 3]),
        (bytes_only(trim=False), " a\nb", [1, 2, 3]),
        (bytes_only(trim=True), "ab  cde", [1, 2, 3, 4, 5, 6]),
        (bytes_only(trim=False), "e\u0301日x", [1, 1, 2, 2, 2, 3]),
        (
            bytes_only(trim=False),
            "\ufffdx",
            [1, 1, 1],
        ),  # a part of the only character is that character's
        (under_nfc(), "\u212ax1", [1, 2]),
    ],
)
def test_whole_characters_are_told_from_the_ids_alone(tokenizer, text, expected):
    assert every_cut(tokenizer, text) == (expected, 0)


@pytest.mark.parametrize(
    ("tokenizer", "text", "expected"),
    [
        (wordpiece(), "Hello,  WORLD,", [5, 6, 11, 13]),
        (characters(), "aéb", [1, 1, 2]),
        (
            under_nfc(),
            "ae\u0301b",
            [1, 1, 2],
        ),  # of \u00e9 the reference knows that it came from the e
    ],
)
def test_offsets_tell_of_what_ids_do_not(tokenizer, text, expected):
    assert every_cut(tokenizer, text) == (expected, len(expected))


def test_ids_that_lost_a_character_are_not_trusted():
    tokenizer = bytes_only(trim=False)
    tokenizer.add_tokens([tokenizers.AddedToken("<x>", lstrip=True)])
    assert every_cut(tokenizer, "a  <x>b") == ([1, 6], 2)


def test_chunks_of_one_block_are_told_apart():
    assert every_cut(under_nfc(), "abx", "é1", "cd") == ([1, 2, 1, 1, 1], 2)


MIXED, MIXED_NFC = mixed_scripts(), mixed_scripts(normalizers.NFC())
TABLE, TABLE_NFC = token_chars(MIXED), token_chars(MIXED_NFC)
UNREADABLE = np.zeros_like(TABLE)
TEXTS = st.text(
    st.sampled_from("the cat 日本の港🌊👍🏽שלוםморе ïñ\n")
    | st.characters(codec="utf-8"),
    min_size=1,
)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_ids_and_offsets_agree(texts):
    by_ids, asked = every_cut(MIXED, *texts, table=TABLE)
    by_offsets, asked_anew = every_cut(MIXED, *texts, table=UNREADABLE)
    assert by_ids == by_offsets
    assert asked == 0
    assert asked_anew == len(by_offsets)


@given(
    st.lists(
        TEXTS | st.text(st.sampled_from("the e\u0301\u0327é港が\u212a\u0958한")),
        min_size=1,
        max_size=3,
    )
)
def test_ids_and_offsets_agree_under_nfc(texts):
    by_ids, _ = every_cut(MIXED_NFC, *texts, table=TABLE_NFC)
    by_offsets, _ = every_cut(MIXED_NFC, *texts, table=UNREADABLE)
    assert by_ids == by_offsets


def test_tokens_of_mixed_scripts_end_within_characters():
    ends_within = TABLE["goes_on"] & (TABLE["begun"] > 0)
    assert ends_within.any()


SEEDS = st.integers(0, 2**32)


def values(block):
    """Return all columns in a form that compares; no number is NaN to itself."""
    return {
        field.name: repr(list(getattr(block, field.name))) for field in fields(Resolved)
    }


@given(seed=SEEDS)
def test_slices_of_what_was_joined_are_what_they_were(seed):
    blocks = random_blocks(seed, rows=7, longest=30)
    whole = joined(blocks)
    assert len(whole) == 7
    ends = np.cumsum([0, *map(len, blocks)])
    for block, first, last in zip(blocks, ends[:-1], ends[1:], strict=True):
        assert values(sliced(whole, int(first), int(last))) == values(block)


@given(seed=SEEDS, data=st.data())
def test_packing_joins_rows_and_loses_no_token_document_or_span(seed, data):
    block = joined(random_blocks(seed, rows=6, longest=30))
    inner = data.draw(st.lists(st.integers(1, 5), unique=True).map(sorted))
    bounds = np.array([0, *inner, 6])
    rows = packed(block, bounds)
    assert len(rows) == len(bounds) - 1
    for name in ("input_ids", "document_lengths", "chunk_ids", "roles"):
        assert list(getattr(rows, name)) == list(getattr(block, name))
    assert rows.sequence_ids == [
        " ".join(block.sequence_ids[a:b]) for a, b in pairwise(bounds)
    ]
    starts = (
        np.repeat(rows.token_offsets[:-1], np.diff(rows.span_offsets))
        + rows.token_starts
    )
    before = (
        np.repeat(block.token_offsets[:-1], np.diff(block.span_offsets))
        + block.token_starts
    )
    assert starts.tolist() == before.tolist()


def test_a_name_that_several_have_stands_once():
    assert joined_names(["knn", "quest", "knn"]) == "knn+quest"


def test_a_cut_chunk_has_the_beginning_of_its_text_and_a_separator_its_own():
    block = joined(random_blocks(0, rows=1, longest=9))
    spans = {
        "chunk_ids": [8, NO_CHUNK],
        "roles": [META, SEPARATOR],
        "char_starts": [5, 0],
        "char_ends": [8, 0],
    }
    block = Resolved(
        **{**vars(block), **{name: np.array(column) for name, column in spans.items()}}
    )
    corpus = SimpleNamespace(
        texts=lambda ids: np.array([f"chunk {one}" for one in ids], object)
    )
    files = SimpleNamespace(corpus=corpus, special_texts={SEPARATOR: "\n"})
    assert span_texts(block, files) == ["chu", "\n"]


@pytest.fixture(scope="module")
def marked_run(recipe_for, started, tmp_path_factory):
    """With chunks of several shards, separators, a BOS and an EOS."""
    run_dir = tmp_path_factory.mktemp("rows") / "run"
    marked = (
        "tokenizer.bos=<|endoftext|>",
        "tokenizer.eos=<|endoftext|>",
        r'compose.separator="\n\n"',
    )
    pipeline.run(recipe_for(started(run_dir), *marked, "export.formats=[jsonl]"))
    return nextlong.open(run_dir)


@pytest.fixture(scope="module")
def rows(marked_run):
    index = marked_run.files.read_index()
    return Rows([marked_run.files], index=index[::-1], offsets=np.array([0, 1, 4, 12]))


def ids_of(rows, row):
    target = np.full(int(rows.lengths(row).sum()), -1, np.int64)
    rows.copy_into(target, row)
    return target.tolist()


def test_rows_keep_no_more_files_open_than_a_process_may(rows, monkeypatch):
    whole = [ids_of(rows, row) for row in range(len(rows))]
    monkeypatch.setattr("nextlong.artifacts.rows.SHARDS_KEPT", 1)
    few = Rows(rows._sources, index=rows.index, offsets=rows._offsets)
    assert [ids_of(few, row) for row in range(len(few))] == whole
    assert len(np.unique(few.index["part"])) > 1
    assert len(few._open) == 1


def test_a_row_is_its_sequences_one_after_the_other(marked_run, rows):
    sequences = [sequence.input_ids.tolist() for sequence in marked_run.sequences()][
        ::-1
    ]
    assert {
        span.role for sequence in marked_run.sequences() for span in sequence.spans
    } == {
        "meta",
        "negative",
        "separator",
        "bos",
        "eos",
    }
    assert len(rows) == 3
    for row, (first, last) in enumerate([(0, 1), (1, 4), (4, 12)]):
        assert ids_of(rows, row) == list(chain.from_iterable(sequences[first:last]))
        assert rows.lengths(row).tolist() == [2048] * (last - first)


def test_rows_travel_without_their_open_files(rows):
    expected = ids_of(rows, 1)
    sent = pickle.dumps(rows)
    assert len(sent) < 20_000
    assert ids_of(pickle.loads(sent), 1) == expected


def test_the_fingerprint_covers_the_sequences_and_their_rows(marked_run, rows):
    index = marked_run.files.read_index()
    files = marked_run.files
    other_files = replace(files, fingerprint="another")
    others = [
        Rows([source], index=own, offsets=np.array(offsets))
        for source, own, offsets in [
            (files, index[::-1], [0, 1, 4, 12]),
            (files, index, [0, 1, 4, 12]),
            (files, index[::-1], [0, 1, 5, 12]),
            (other_files, index[::-1], [0, 1, 4, 12]),
        ]
    ]
    assert [other.fingerprint == rows.fingerprint for other in others] == [
        True,
        False,
        False,
        False,
    ]


SMALL = st.integers(1, 5)


def all_places(rows, *, start=0, world_size, remainder):
    return [
        rank_positions(
            rows, start=start, rank=rank, world_size=world_size, remainder=remainder
        ).tolist()
        for rank in range(world_size)
    ]


@pytest.mark.parametrize(
    ("remainder", "expected"),
    [
        ("keep", [[0, 3, 6], [1, 4], [2, 5]]),
        ("drop", [[0, 3], [1, 4], [2, 5]]),
        ("repeat", [[0, 3, 6], [1, 4, 0], [2, 5, 1]]),
    ],
)
def test_seven_rows_for_three_ranks(remainder, expected):
    assert all_places(7, world_size=3, remainder=remainder) == expected


def test_more_ranks_than_rows():
    assert all_places(2, world_size=5, remainder="repeat") == [[0], [1], [0], [1], [0]]
    assert all_places(2, world_size=5, remainder="keep") == [[0], [1], [], [], []]
    assert all_places(2, world_size=5, remainder="drop") == [[]] * 5


def test_workers_take_whole_batches_in_turn():
    places = np.arange(11)
    parts = [
        worker_part(places, worker=worker, workers=2, batch_size=3).tolist()
        for worker in range(2)
    ]
    assert parts == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10]]


@given(st.integers(0, 60), SMALL, SMALL, SMALL, st.integers(0, 20))
def test_every_row_once_over_ranks_and_workers_also_when_resumed(
    rows, world_size, workers, batch_size, steps
):
    start = min(rows, steps * world_size)
    read = [
        place
        for rank in range(world_size)
        for worker in range(workers)
        for place in worker_part(
            rank_positions(
                rows, start=start, rank=rank, world_size=world_size, remainder="keep"
            ),
            worker=worker,
            workers=workers,
            batch_size=batch_size,
        ).tolist()
    ]
    assert sorted(read) == list(range(start, rows))


@given(st.integers(1, 60), SMALL, st.sampled_from(["drop", "repeat"]))
def test_ranks_read_equally_many_where_asked(rows, world_size, remainder):
    places = all_places(rows, world_size=world_size, remainder=remainder)
    assert len({len(own) for own in places}) == 1
    flat = [place for own in places for place in own]
    assert rows - len(set(flat)) == (rows % world_size if remainder == "drop" else 0)
    assert len(flat) - len(set(flat)) == (
        -rows % world_size if remainder == "repeat" else 0
    )


@given(st.integers(0, 200), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_is_a_permutation_that_seed_and_epoch_give(rows, seed, epoch):
    order = epoch_order(rows, order="shuffled", seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(rows))
    assert (
        order.tolist()
        == epoch_order(rows, order="shuffled", seed=seed, epoch=epoch).tolist()
    )
    assert epoch_order(rows, order="arranged", seed=seed, epoch=epoch).tolist() == list(
        range(rows)
    )


def test_epochs_and_seeds_differ():
    orders = [
        tuple(epoch_order(50, order="shuffled", seed=seed, epoch=epoch))
        for seed in range(2)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 6
