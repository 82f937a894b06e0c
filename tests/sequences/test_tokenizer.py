"""Loading, training and measuring a tokenizer, and what a user reads when it cannot be had."""

import json
import random
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from tests.support.spacing_tokenizers import MAKERS, TEXTS, made
from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from nextlong import recipe, schemas
from nextlong.artifacts.continuation import continuation_ids, ids_within
from nextlong.artifacts.results import TokenizerResult
from nextlong.artifacts.sequence_files import read_tokenizer
from nextlong.checks import Corpus, check
from nextlong.corpus.chunk import _chunk_shard, chunk_text
from nextlong.engine.step import Step
from nextlong.errors import CorpusError, TokenizerError
from nextlong.sequences import tokenize
from nextlong.sequences import tokenizer as stage
from nextlong.sequences.tokenizer import (
    Ends,
    _prepare_tokenizer,
    check_source,
    find_ends,
    is_worth_sharing,
    load_tokenizer,
    local_path,
    share_tokenizer,
    special_id,
    token_chars,
    tokenizer_step,
    train_bpe,
)

SENTENCES = [
    "The first star of the night.\n",
    "It's 1234 parsecs away, isn't it?\n",
    "Zoë counts 東京 and café.\n",
]


DOCUMENTS = [
    (10 + number, SENTENCES[number % 3] * (1 + number % 4)) for number in range(24)
]


def byte_tokenizer():
    """One id per UTF-8 byte: a tokenizer whose E can be counted by hand."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        models.BPE({char: number for number, char in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    return tokenizer


def write_shards(folder, shards, *, max_chars=64):
    """Write (content_hash, text) pairs as DOCUMENTS and CHUNKS shards; two documents a record batch."""
    folder.mkdir()
    documents, chunks = [], []
    for number, pairs in enumerate(shards):
        path = folder / f"{number}.documents.arrow"
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, schemas.DOCUMENTS) as writer,
        ):
            for first in range(0, len(pairs), 2):
                hashes, texts = zip(*pairs[first : first + 2], strict=True)
                columns = {
                    "text": texts,
                    "content_hash": hashes,
                    "source": ["s"] * len(texts),
                    "source_id": texts,
                }
                writer.write_batch(
                    pa.RecordBatch.from_pydict(columns, schema=schemas.DOCUMENTS)
                )
        np.save(folder / "keep.npy", np.ones(len(pairs), bool))
        out = folder / str(number)
        _chunk_shard(
            out,
            documents=path,
            keep=folder / "keep.npy",
            max_chars=max_chars,
            length="slice",
            oversize="split",
        )
        documents.append(path)
        chunks.append(folder / f"{number}.chunks.arrow")
    return {"documents": documents, "chunks": chunks}


def test_loads_a_file_or_its_folder_without_truncation_and_padding(tmp_path):
    saved = byte_tokenizer()
    saved.enable_truncation(2)
    saved.enable_padding(length=9)
    saved.save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokenizer(recipe.Tokenizer(source=str(source)))
        assert len(loaded.encode("four").ids) == 4


@pytest.mark.parametrize(
    "source",
    ["missing/tokenizer.json", "./missing", "/nowhere/at/all", "my.json", "~/tok"],
)
def test_a_path_that_does_not_exist(source):
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(recipe.Tokenizer(source=source))
    assert caught.value.where == "tokenizer.source"
    assert caught.value.value == repr(source)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json") as caught:
        load_tokenizer(recipe.Tokenizer(source=str(tmp_path)))
    assert caught.value.value == repr(str(tmp_path))


@pytest.mark.parametrize("content", ["", "{", '{"model": {"type": "BPE"}}', "\x00\x01"])
def test_a_file_that_is_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(recipe.Tokenizer(source=str(path)))
    assert caught.value.where == "tokenizer.source"
    assert caught.value.problem.startswith(f"{path} ")


def test_a_file_that_is_no_tokenizer_is_refused_before_the_first_step(
    tmp_path, recipe_for, small_corpus
):
    saved = byte_tokenizer().to_str()
    (tmp_path / "whole.json").write_text(saved, encoding="utf-8")
    check_source(recipe.Tokenizer(source=str(tmp_path / "whole.json")))
    wrong = {
        "vocab.json": '{"model": 3}',
        "bare.json": '{"model": {"type": "BPE"}}',
        "a.model": "\x00",
    }
    for name, content in (wrong | {"cut.json": saved[: len(saved) // 2]}).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        given = recipe_for(
            tmp_path / "run",
            f"tokenizer.source={tmp_path / name}",
            "tokenizer.train=null",
        )
        with pytest.raises(TokenizerError, match=r"is not a tokenizer\.json"):
            check(given, Corpus(given), "before the lock")
    assert not (tmp_path / "run").exists()


def test_a_special_token_that_the_file_lacks_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "tokenizer.json").write_text(
        byte_tokenizer().to_str(), encoding="utf-8"
    )
    with pytest.raises(TokenizerError, match=r"tokenizer\.eos='<nope>'"):
        check_source(recipe.Tokenizer(source=str(tmp_path), eos="<nope>"))


def test_special_ids():
    tokenizer = byte_tokenizer()
    assert special_id(tokenizer, "<|begin_of_text|>", key="tokenizer.bos") == 256


def test_training_gives_a_lossless_tokenizer_of_the_asked_size():
    tokenizer = train_bpe(SENTENCES * 3, vocab_size=300)
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    text = "Unseen:\x00 it's 🤗\r\n  déjà 12345"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_training_is_the_same_in_any_order_and_process():
    script = (
        "import sys, json; from nextlong.sequences.tokenizer import train_bpe; "
        "print(train_bpe(json.load(sys.stdin), vocab_size=400).to_str())"
    )
    texts = [text for _, text in DOCUMENTS]
    shuffled = random.Random(1).sample(texts, len(texts))
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(shuffled),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == train_bpe(texts, vocab_size=400).to_str()


def prepare(out, *, shards, seed=0, separator="\n", **config):
    corpus = list(zip(shards["documents"], shards["chunks"], strict=True))
    return _prepare_tokenizer(
        out,
        tokenizer=recipe.Tokenizer(**config),
        corpus=corpus,
        seed=seed,
        separator=separator,
    )


def test_prepare_counts_characters_per_token(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(
        tmp_path / "corpus", [[(1, "abcé\n"), (2, "東京\n")], [(3, "x" * 64 + "\n")]]
    )
    result = prepare(
        tmp_path / "out",
        shards=shards,
        source=str(tmp_path),
        bos="<|begin_of_text|>",
        separator=" \n",
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert result == TokenizerResult(
        chars_per_token=(5 + 3 + 65) / (6 + 7 + 65),
        vocab_size=258,
        bos_id=256,
        eos_id=None,
        separator_ids=(alphabet.index("Ġ"), alphabet.index("Ċ")),
        special_texts=("Ġ Ċ", "<|begin_of_text|>", ""),
        measured_chunks=4,
        lost_share=0.0,
    )
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "out.tokenizer.json"))
    assert written.to_str() == byte_tokenizer().to_str()
    assert (
        np.load(tmp_path / "out.tokenchars.npy")["begun"].tolist()
        == token_chars(written)["begun"].tolist()
    )


def test_e_is_the_reference_s_in_a_process_that_shares_fastokens(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize, "_kept", {})
    shards = write_shards(tmp_path / "corpus", [DOCUMENTS])
    path = tmp_path / "tokenizer.json"
    train_bpe(SENTENCES, vocab_size=300).save(str(path))
    config = recipe.Tokenizer(source=str(path))
    alone = prepare(tmp_path / "alone", shards=shards, source=str(path))

    share_tokenizer(config)
    encoder = tokenize.kept_encoder(tmp_path / "alone.tokenizer.json", "auto")
    assert encoder.expect(0) == "fastokens"

    def with_no_ids(_fast, _reference, texts):
        return np.empty(0, np.uint32), np.zeros(len(texts), np.int64)

    # Wrong, and not found by any check.
    monkeypatch.setattr(tokenize, "_encode_fast", with_no_ids)
    monkeypatch.setattr(encoder, "_check_some", lambda *_: None)
    assert prepare(tmp_path / "shared", shards=shards, source=str(path)) == alone


def test_a_tokenizer_is_shared_for_enough_text(tmp_path):
    path = tmp_path / "tokenizer.json"
    train_bpe(SENTENCES, vocab_size=300).save(str(path))
    chars = path.stat().st_size
    config = recipe.Tokenizer(source=str(path))
    assert is_worth_sharing(config, chars=chars)
    assert not is_worth_sharing(config, chars=chars - 1)
    by_reference = config.model_copy(update={"engine": "reference"})
    assert not is_worth_sharing(by_reference, chars=chars)
    assert not is_worth_sharing(recipe.Tokenizer(source="gpt2"), chars=chars)
    assert not is_worth_sharing(recipe.Tokenizer(train=300), chars=chars)


def test_a_tokenizer_that_cannot_be_loaded_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize, "_kept", {})
    (tmp_path / "tokenizer.json").write_text("{}")
    share_tokenizer(recipe.Tokenizer(source=str(tmp_path)))
    assert tokenize._kept == {}


def test_prepare_takes_a_given_number(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(tmp_path / "corpus", [[(1, "abc\n")]])
    result = prepare(
        tmp_path / "out", shards=shards, source=str(tmp_path), chars_per_token=4.5
    )
    assert (result.chars_per_token, result.measured_chunks) == (4.5, 0)


def test_prepare_draws_the_same_chunks_however_the_corpus_is_sharded(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(stage, "MEASURED_CHUNKS", 7)
    monkeypatch.setattr(stage, "TRAINING_CHARS", 600)
    backwards = DOCUMENTS[::-1]
    one = write_shards(tmp_path / "one", [DOCUMENTS])
    four = write_shards(
        tmp_path / "four",
        [backwards[:5], backwards[5:6], backwards[6:20], backwards[20:]],
    )
    results = [
        prepare(tmp_path / "a", shards=one, train=300),
        prepare(tmp_path / "b", shards=four, train=300),
    ]
    assert results[0] == results[1]
    assert results[0].measured_chunks == 7
    trained = [(tmp_path / f"{name}.tokenizer.json").read_bytes() for name in "ab"]
    assert trained[0] == trained[1]


def test_another_seed_draws_other_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "MEASURED_CHUNKS", 7)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(tmp_path / "corpus", [DOCUMENTS])
    measured = {
        prepare(
            tmp_path / "out", shards=shards, source=str(tmp_path), seed=seed
        ).chars_per_token
        for seed in range(4)
    }
    assert len(measured) > 1


def test_prepare_without_any_text(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(tmp_path / "corpus", [[]])
    with pytest.raises(CorpusError, match=r"tokenizer\.chars_per_token"):
        prepare(tmp_path / "out", shards=shards, source=str(tmp_path))


def test_a_local_source_is_one_path_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tok").mkdir()
    byte_tokenizer().save(str(tmp_path / "tok" / "tokenizer.json"))
    for source in ("~/tok", "~/tok/tokenizer.json", str(tmp_path / "tok")):
        assert local_path(source) == tmp_path / "tok" / "tokenizer.json"
        assert load_tokenizer(recipe.Tokenizer(source=source)).get_vocab_size() == 258


def test_a_runs_tokenizer_is_read_for_corpus_text(tmp_path):
    saved = byte_tokenizer()
    saved.enable_truncation(4)
    saved.enable_padding(length=9)
    saved.save(str(tmp_path / "tokenizer.json"))
    ids = (
        read_tokenizer(tmp_path / "tokenizer.json")
        .encode("a<|end_of_text|>", add_special_tokens=False)
        .ids
    )
    assert len(ids) == 16
    assert 257 not in ids


def test_a_separator_may_be_a_special_token(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(tmp_path / "corpus", [[(1, "a <|end_of_text|> b\n")]])
    result = prepare(
        tmp_path / "out",
        shards=shards,
        source=str(tmp_path),
        separator="<|end_of_text|>",
    )
    assert result.separator_ids == (257,)
    assert (
        result.chars_per_token == 1.0
    )  # in the corpus its name is 15 characters, each a byte


def trained(
    *, normalizer=None, pre_tokenizer=None, decoder=None, model=None, trainer=None
):
    tokenizer = tokenizers.Tokenizer(
        model or models.BPE(unk_token="<unk>", fuse_unk=True)
    )
    for part, value in (
        ("normalizer", normalizer),
        ("pre_tokenizer", pre_tokenizer),
        ("decoder", decoder),
    ):
        if value is not None:
            setattr(tokenizer, part, value)
    options = {"vocab_size": 120, "show_progress": False}
    trainer = trainer or trainers.BpeTrainer(special_tokens=["<unk>"], **options)
    tokenizer.train_from_iterator(
        [*SENTENCES, "word.\nWord a b c", "W o r d"] * 3, trainer
    )
    return tokenizer


TAKEN = {
    "metaspace": {
        "pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="never"),
        "decoder": decoders.Metaspace(prepend_scheme="never"),
    },
    "byte-level": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)},
    "wordpiece": {
        "normalizer": normalizers.BertNormalizer(),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.WordPiece(),
        "model": models.WordPiece(unk_token="<unk>"),
        "trainer": trainers.WordPieceTrainer(
            vocab_size=120, special_tokens=["<unk>"], show_progress=False
        ),
    },
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_tokenizer_that_puts_a_space_before_a_text_counts_chunks_within_documents(
    tmp_path, name
):
    tokenizer = made(name)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    documents = [(number, text * 3) for number, text in enumerate(TEXTS)]
    shards = write_shards(tmp_path / "corpus", [documents])
    check_source(recipe.Tokenizer(source=str(tmp_path)))
    result = prepare(
        tmp_path / "out", shards=shards, source=str(tmp_path), separator="\n\n"
    )
    ids = [
        within
        for _, text in documents
        for within in ids_within(
            tokenizer,
            [text[start:end] for start, end in chunk_text(text, max_chars=64)],
            [start == 0 for start, _ in chunk_text(text, max_chars=64)],
        )
    ]
    chars = sum(len(text) for _, text in documents)
    assert result.chars_per_token == pytest.approx(chars / sum(map(len, ids)))
    assert result.separator_ids == continuation_ids(tokenizer, "\n\n")


@pytest.mark.parametrize("name", ["llama2", "mistral", "always"])
def test_byte_fallback_loses_nothing_even_where_a_chunk_begins_with_a_space(
    tmp_path, name
):
    made(name).save(str(tmp_path / "tokenizer.json"))
    documents = [(0, "First line of the text\n  an indented line\n" * 4)]
    shards = write_shards(tmp_path / "corpus", [documents], max_chars=30)
    result = prepare(
        tmp_path / "out", shards=shards, source=str(tmp_path), separator=" "
    )
    assert result.lost_share == 0
    assert result.special_texts[0] == " "


def test_a_tokenizer_whose_continuations_cannot_be_known_is_refused_before_the_run(
    tmp_path, recipe_for
):
    vocabulary = {"<unk>": 0, "▁word.\n▁Word": 1, "▁word.\n": 2, "▁Word": 3}
    vocabulary["▁word.\nWord"] = 4
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend("▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    given = recipe_for(
        tmp_path / "run", f"tokenizer.source={tmp_path}", "tokenizer.train=null"
    )
    with pytest.raises(TokenizerError, match=re.escape(repr(str(tmp_path)))):
        check(given, Corpus(given), "before the lock")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("parts", TAKEN.values(), ids=list(TAKEN))
def test_a_tokenizer_that_keeps_chunks_apart_is_taken_even_if_it_loses_blanks(
    tmp_path, parts
):
    trained(**parts).save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(tmp_path / "corpus", [DOCUMENTS])
    assert (
        prepare(tmp_path / "out", shards=shards, source=str(tmp_path)).measured_chunks
        > 0
    )


def test_the_share_of_text_that_a_tokenizer_loses_is_measured(tmp_path):
    trained(**TAKEN["wordpiece"]).save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(
        tmp_path / "corpus", [[(1, "The Star É.\n"), (2, "the star\n")]]
    )
    result = prepare(tmp_path / "out", shards=shards, source=str(tmp_path))
    # T, S, the accented capital and the newline of the first, the newline of the
    # second.
    assert result.lost_share == pytest.approx(5 / 21)


def test_dropout_is_switched_off(tmp_path):
    tokenizer = train_bpe(SENTENCES * 3, vocab_size=300)
    plain = tokenizer.encode(SENTENCES[0]).ids
    tokenizer.model.dropout = 0.9
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    shards = write_shards(tmp_path / "corpus", [DOCUMENTS])
    result = prepare(tmp_path / "out", shards=shards, source=str(tmp_path))
    assert prepare(tmp_path / "again", shards=shards, source=str(tmp_path)) == result
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "out.tokenizer.json"))
    assert [written.encode(SENTENCES[0]).ids for _ in range(3)] == [plain] * 3


# Which token ends a document: what the files beside a tokenizer say, what it does
# itself, and what its tokens are called


def tokenizer_with(*special, before=(), behind=()):
    made = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(special))
    if before or behind:
        made.post_processor = processors.TemplateProcessing(
            single=" ".join([*before, "$A", *behind]),
            special_tokens=[
                (name, made.token_to_id(name)) for name in (*before, *behind)
            ],
        )
    return made


@pytest.mark.parametrize(
    "name",
    ["<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>"],
)
def test_a_token_that_is_called_an_end_is_one(name):
    assert find_ends(tokenizer_with("<pad>", name)) == Ends(
        eos=name, eos_source="its name"
    )


def test_what_it_puts_around_a_text_counts():
    llama = tokenizer_with(
        "<|begin_of_text|>", "<|end_of_text|>", before=["<|begin_of_text|>"]
    )
    assert find_ends(llama) == Ends(
        "<|begin_of_text|>", "<|end_of_text|>", "its post-processor", "its name"
    )
    bert = tokenizer_with("[CLS]", "[SEP]", before=["[CLS]"], behind=["[SEP]"])
    assert find_ends(bert) == Ends(
        "[CLS]", "[SEP]", "its post-processor", "its post-processor"
    )


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("tokenizer_config.json", {"eos_token": "<stop>"}),
        ("special_tokens_map.json", {"eos_token": {"content": "<stop>"}}),
        ("generation_config.json", {"eos_token_id": [1, 2]}),
        ("config.json", {"eos_token_id": 1}),
    ],
)
def test_the_files_beside_it_say_more_than_names(tmp_path, file, said):
    (tmp_path / file).write_text(json.dumps(said))
    assert find_ends(tokenizer_with("<stop>", "<|endoftext|>"), tmp_path) == Ends(
        eos="<stop>", eos_source=file
    )


def test_the_end_of_a_turn_is_no_end_of_a_document_where_there_is_another(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "bos_token": None})
    )
    assert (
        find_ends(tokenizer_with("<|im_end|>", "<|endoftext|>"), tmp_path).eos
        == "<|endoftext|>"
    )
    assert find_ends(tokenizer_with("<|im_end|>"), tmp_path).eos == "<|im_end|>"


def test_a_beginning_is_set_only_where_the_tokenizer_sets_it(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|endoftext|>", "add_bos_token": False})
    )
    assert find_ends(tokenizer_with("<|endoftext|>"), tmp_path).bos is None
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "add_bos_token": True})
    )
    assert find_ends(tokenizer_with("<s>", "</s>"), tmp_path) == Ends(
        "<s>", "</s>", "tokenizer_config.json", "its name"
    )


def test_none_of_a_tokenizer_without_special_tokens_nor_of_damaged_files(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    (tmp_path / "config.json").write_text("[]")
    assert find_ends(tokenizer_with(), tmp_path) == Ends()


def test_a_tokenizer_that_changes_below_the_home_folder_makes_another_step(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    corpus = Step("ingest", 1, {}, (), lambda done: [])

    def fingerprint(**settings):
        given = recipe.Tokenizer(source="~/tokenizer.json", **settings)
        return tokenizer_step(
            given, corpus, corpus, separator="\n", seed=0, megatron_eod=None
        ).fingerprint

    fingerprints = []
    for tokenizer in (byte_tokenizer(), train_bpe(SENTENCES, vocab_size=300)):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        fingerprints.append(fingerprint())
    assert fingerprints[0] != fingerprints[1]
    assert fingerprint(engine="reference") == fingerprints[1]


@pytest.mark.parametrize("source", ["-5", "gpt2-", "a--b", "x" * 120])
def test_a_source_that_cannot_be_a_name_of_the_hub_has_no_known_ends(source):
    assert stage.find_ends_of(recipe.Tokenizer(source=source)) is None
