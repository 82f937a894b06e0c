"""References turned into tokens, text and names, on a real run over texts of many scripts."""

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import nextlong
from nextlong import pipeline
from nextlong.artefacts import finished
from nextlong.artefacts import resolve as stage
from nextlong.artefacts.resolve import SpecialIds, Truncation, resolve, resolve_table
from nextlong.recipe import Recipe

WORDS = [
    "tide harbour anchor gull deck rope storm reef",
    "今日は 港に 船が 帰る 魚を 売る 市場の 朝",
    "🌊 👨‍👩‍👧 ⚓️ 🐟 👍🏽 é̱ naïve señor",
    "שלום ים סירה גל عربي بحر سفينة ميناء",
    "море гавань якорь чайка палуба канат шторм риф",
]


def documents(count=60):
    draw = random.Random(3)
    texts = {}
    for number in range(count):
        words = WORDS[number % len(WORDS)].split()
        lines = [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(draw.randint(3, 12))]
        texts[f"doc-{number}"] = draw.choice(["\n", "\r\n"]).join(lines) + draw.choice(["", "\n"])
    return texts


@pytest.fixture(scope="module")
def texts():
    return documents()


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory):
    return made(tmp_path_factory.mktemp("resolve"), texts)


def made(folder, texts, **compose):
    lines = [json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items()]
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    recipe = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "ingest": {"sources": [{"path": str(folder / "corpus.jsonl")}], "shard_mb": 0.006},
        "chunk": {"max_chars": 64},
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 330, "bos": "<|endoftext|>", "eos": "<|endoftext|>"},
        "compose": {"sequences": "all", "target_tokens": 700, "position": "random"} | compose,
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
                decoded = run.tokenizer.decode(sequence.input_ids[span.token_start : span.token_end].tolist())
                assert decoded.rstrip("\ufffd") == texts[span.source_id][span.char_start : span.char_end]


def test_a_cut_falls_between_two_characters_and_joints_fill_the_rest(run):
    filled = 0
    for sequence in run.sequences():
        assert "\ufffd" not in run.tokenizer.decode(sequence.input_ids.tolist())
        roles = [span.role for span in sequence.spans]
        filled += any(pair == ("joint", "joint") for pair in pairwise(roles))
    assert filled > 3


def test_a_cut_span_ends_with_its_last_whole_character(texts, tmp_path):
    run, parted = made(tmp_path, texts, joint=""), 0  # nothing to fill what a cut between characters would leave
    for sequence in run.sequences():
        for span in sequence.spans:
            if span.chunk_id < 0:
                continue
            ids = sequence.input_ids[span.token_start : span.token_end].tolist()
            text = texts[span.source_id][span.char_start : span.char_end]
            held_bytes = sum(len(run.tokenizer.id_to_token(token)) for token in ids)  # one letter a byte
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
                assert (span.doc_id, span.source_id, span.char_start, span.char_end) == (-1, "", -1, -1)
                assert span.role in ("bos", "eos", "joint")
                expected = {"joint": run.tokenizer.encode("\n").ids}.get(span.role, [0])
                assert sequence.input_ids[span.token_start : span.token_end].tolist() == expected


def test_no_negative_is_of_the_own_document(run):
    for sequence in run.sequences():
        (own,) = {span.doc_id for span in sequence.spans if span.role == "meta"}
        assert own not in {span.doc_id for span in sequence.spans if span.role == "negative"}


def test_meta_chunks_rebuild_the_document(run, texts):
    for sequence in run.sequences():
        metas = [span for span in sequence.spans if span.role == "meta"]
        whole = "".join(texts[span.source_id][span.char_start : span.char_end] for span in metas)
        assert whole == texts[metas[0].source_id]


def options(run):
    return {
        "corpus": run.corpus,
        "tokens": finished.token_store(run.steps),
        "special": finished.special_ids(run.steps),
        "truncation": Truncation(run.steps["tokenizer"].file(".tokenchars.npy"), lambda: run.tokenizer),
    }


def test_blocks_do_not_show_in_what_comes_out(run, monkeypatch):
    path = run.steps["compose"].files(".sequences.arrow")[0]
    (whole,) = resolve(path, take=None, **options(run))
    monkeypatch.setattr(stage, "_FIRST_BLOCK_TOKENS", 1)
    monkeypatch.setattr(stage, "_BLOCK_TOKENS", 1)
    blocks = list(resolve(path, take=None, **options(run)))
    assert len(blocks) == len(whole) > 1
    assert np.concatenate([block.input_ids for block in blocks]).tolist() == whole.input_ids.tolist()
    assert [block.sequence_ids[0] for block in blocks] == whole.sequence_ids
    for name in ("chunk_ids", "doc_ids", "source_ids", "char_starts", "char_ends", "roles", "groups", "token_ends"):
        assert np.concatenate([getattr(block, name) for block in blocks]).tolist() == getattr(whole, name).tolist()


def test_ids_and_domains_without_the_spans(run):
    def never():
        raise AssertionError("nothing of the text is needed")

    path = run.steps["compose"].files(".sequences.arrow")[0]
    (whole,) = resolve(path, take=None, **options(run))
    with pa.ipc.open_file(str(path)) as reader:
        table = reader.read_all()
    parts = options(run) | {"truncation": Truncation(Path("nowhere.npy"), never)}
    for wanted, domains in (("ids", [""] * len(whole)), ("domains", whole.domains)):
        block = resolve_table(table, **parts, wanted=wanted)
        assert block.input_ids.tolist() == whole.input_ids.tolist()
        assert block.chunk_ids.tolist() == whole.chunk_ids.tolist()
        assert block.domains == domains
        assert set(block.char_ends.tolist()) == {-1}


def test_some_of_the_sequences(run):
    path = run.steps["compose"].files(".sequences.arrow")[0]
    (whole,) = resolve(path, take=None, **options(run))
    (second,) = resolve(path, first=1, take=2, **options(run))
    assert second.sequence_ids == whole.sequence_ids[1:2]
    assert second.input_ids.tolist() == whole.input_ids[700:1400].tolist()
    assert list(resolve(path, take=0, **options(run))) == []


def test_texts_of_chunks_come_in_the_order_of_their_ids(run):
    ids = np.array([(1 << 32) + 1, 0, 1, 0])
    found = run.corpus.texts(ids)
    assert found[1] == found[3]
    assert [run.corpus.texts(ids[place : place + 1])[0] for place in range(4)] == found.tolist()


def test_ids_by_role_leave_out_chunks():
    special = SpecialIds(joint=(5,), eos=(2,))
    assert {role: ids.tolist() for role, ids in special.by_role().items()} == {3: [5], 4: [], 5: [2]}
