"""Documents, chunks, and token ids against the reference tokenizer: every planted fault is found."""

import itertools
import json
from types import SimpleNamespace

import fastokens
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import check_names
from tests.support.damage import (
    breaches,
    change_array,
    change_recipe,
    change_rows,
    chunk_name,
    document_name,
    files,
    first_sequence,
    outcomes,
    read_batches,
    rehash,
)
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from nextlong.cli.main import main
from nextlong.schemas import NO_CHUNK, ROW_MASK, SHARD_BITS
from nextlong.verify import corpus as tokens
from nextlong.verify.reference import Reference


def test_an_altered_document(run):
    def alter(rows):
        rows[0]["text"] = "Z" + rows[0]["text"][1:]

    change_rows(files(run, "ingest", ".documents.arrow")[0], alter)
    assert (
        f"document {document_name(run, 0)} has the hash"
        in breaches(run, check_names.CORPUS)["documents"]
    )


@pytest.mark.parametrize("place", [".hashes.npy", ".documents.arrow"])
def test_a_hash_that_is_right_in_one_of_its_two_places(run, place):
    def alter(stored):
        if place == ".hashes.npy":
            stored[0] ^= np.uint64(1)
        else:
            stored[0]["content_hash"] ^= 1

    change = change_array if place == ".hashes.npy" else change_rows
    change(files(run, "ingest", place)[0], alter)
    assert (
        f"document {document_name(run, 0)} has the hash"
        in breaches(run, check_names.CORPUS)["documents"]
    )


@pytest.mark.parametrize(("asked", "is_right"), [("lang", True), ("year", False)])
def test_documents_keep_the_columns_of_the_names_asked_for(run, asked, is_right):
    for path in files(run, "ingest", ".documents.arrow"):
        table = pa.Table.from_batches(read_batches(path)[0])
        table = table.append_column("metadata", pa.array(['{"lang": 1}'] * len(table)))
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        rehash(path)
    change_recipe(
        run, "ingest", "sources", [{"path": "x", "name": "small", "metadata": [asked]}]
    )
    said = breaches(run, "documents and chunks").get("documents", "")
    assert said == "" if is_right else "['lang']" in said


def test_two_kept_documents_with_one_text(run):
    """A hash that is made again from the text, and so is right, may still be another document's."""
    path = files(run, "ingest", ".documents.arrow")[0]
    hashes_path = files(run, "ingest", ".hashes.npy")[0]
    kept = np.flatnonzero(np.load(files(run, "select", ".keep.npy")[0]))[:2].tolist()
    hashes = np.load(hashes_path)
    hashes[kept[1]] = hashes[kept[0]]
    np.save(hashes_path, hashes)

    def alter(rows):
        rows[kept[1]].update(
            {name: rows[kept[0]][name] for name in ("text", "content_hash")}
        )

    change_rows(path, alter)
    said = breaches(run, "documents and chunks")["no duplicate documents"]
    names = " and ".join(document_name(run, row) for row in kept)
    assert f"documents {names} are both kept, but are duplicates" in said


def test_chunks_with_a_gap(run):
    def alter(rows):
        rows[0]["end"] -= 1

    change_rows(files(run, "chunk", ".chunks.arrow")[0], alter)
    assert (
        f"document {document_name(run, 0)}: "
        in breaches(run, check_names.CORPUS)[check_names.TILES]
    )


@pytest.fixture
def sampled(monkeypatch):
    """A function that lets the reference tokenizer encode a sample of so many characters."""
    return lambda chars: monkeypatch.setattr(tokens, "_SAMPLE_CHARS", chars)


def token_outcome(run, **options):
    return outcomes(run, "tokens", **options)["token ids"]


def change_tokenizer(run, change):
    """Alter the run's tokenizer.json: `change` gets what it holds, and alters it in place."""
    (path,) = files(run, "tokenizer", ".tokenizer.json")
    held = json.loads(path.read_text(encoding="utf-8"))
    change(held)
    path.write_text(json.dumps(held), encoding="utf-8")
    rehash(path)


def change_ids(run, change):
    """Alter stored ids of the first sequence's chunks, one after the other until `change` says that it did; return its name."""
    for chunk in filter(NO_CHUNK.__lt__, first_sequence(run)["chunk_id"]):
        shard, row = chunk >> SHARD_BITS, chunk & ROW_MASK
        place = np.searchsorted(
            np.load(files(run, "referenced_chunks", ".rows.npy")[shard]), row
        )
        first, stop = np.load(files(run, "tokens", ".offsets.npy")[shard])[
            place : place + 2
        ]
        path = files(run, "tokens", ".ids.npy")[shard]
        if change(np.load(path)[first:stop].copy()):
            change_array(
                path, lambda ids, first=first, stop=stop: change(ids[first:stop])
            )
            return chunk
    raise AssertionError("no chunk of this sequence can be changed so")


def alter_one(ids):
    ids[2] = 5 if ids[2] != 5 else 6
    return True


def spell_otherwise(run):
    """Return a change that spells some tokens as others of the same bytes, so that the text decoded is the same."""
    (path,) = files(run, "tokenizer", ".tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))

    def change(ids):
        for count, at in itertools.product((2, 3), range(len(ids) - 3)):
            window = ids[at : at + count].tolist()
            spelled = "".join(map(tokenizer.id_to_token, window))
            for cuts in itertools.combinations(range(1, len(spelled)), count - 1):
                bounds = itertools.pairwise([0, *cuts, len(spelled)])
                other = [
                    tokenizer.token_to_id(spelled[first:stop]) for first, stop in bounds
                ]
                if None not in other and other != window:
                    ids[at : at + count] = other
                    return True
        return False

    return change


def test_a_changed_token(run):
    chunk = chunk_name(run, change_ids(run, alter_one))
    found = breaches(run)
    assert f"{chunk}: token 2 is " in found["token ids"]
    assert f"{chunk} at character" in found["decoded text"]
    assert "row 0: input_ids[" in found["parquet rows"]
    assert "hashes" not in found


def test_wrong_separators_of_the_tokenizer(run):
    path = files(run, "tokenizer", "manifest.json")[0]
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["counts"]["separator_ids"] = [7]
    path.write_text(json.dumps(manifest))
    assert "separator_ids is [7]" in breaches(run, "tokens")["token ids"]


def test_the_reference_encodes_all_of_a_small_run_and_of_any_if_asked(
    finished, sampled, capsys
):
    assert token_outcome(finished).note == ""
    sampled(0)
    assert token_outcome(finished).note.startswith("0 of ")
    assert token_outcome(finished, sample=tokens.EVERYTHING).note == ""
    assert main(["verify", str(finished), "--sample", "all", "--json"]) == 0
    checks = {
        check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]
    }
    assert checks["token ids"]["note"] == ""
    assert (
        checks[check_names.VECTORS_AGAIN]["checked"]
        == checks[check_names.TILES]["checked"]
    )


def test_a_seed_draws_the_sample_of_the_reference(finished, sampled):
    sampled(2_000)
    first, again, other = (token_outcome(finished, seed=seed) for seed in (1, 1, 2))
    counts = [
        int(outcome.note.removesuffix(" of them by the reference tokenizer"))
        for outcome in (first, other)
    ]
    assert all(0 < count < first.checked for count in counts)
    assert first == again != other


@pytest.mark.parametrize(
    "chars", [0, 8_000_000], ids=["outside the sample", "all by the reference"]
)
def test_ids_that_only_spell_otherwise_are_found_in_any_chunk(run, sampled, chars):
    sampled(chars)
    chunk = chunk_name(run, change_ids(run, spell_otherwise(run)))
    found = breaches(run)
    assert found["token ids"].startswith(f"{chunk}: token ")
    assert "tokenizer gives" in found["token ids"]
    assert "decoded text" not in found


def test_a_tokenizer_that_fastokens_does_not_load_is_judged_by_the_reference_alone(
    run, sampled
):
    change_tokenizer(run, lambda held: held.update(normalizer={"type": "NFKC"}))
    (path,) = files(run, "tokenizer", ".tokenizer.json")
    with pytest.raises(ValueError, match="NFKC"):
        fastokens.Tokenizer.from_json_str(path.read_text(encoding="utf-8"))
    sampled(0)
    outcome = token_outcome(run)
    assert (outcome.note, outcome.breaches) == ("", 0)
    change_ids(run, alter_one)
    assert "token 2 is" in breaches(run)["token ids"]


def test_where_fastokens_gives_other_ids_than_are_stored_the_reference_decides(
    finished, sampled, monkeypatch
):
    other = fastokens.Tokenizer.from_json_str(byte_level().to_str())
    monkeypatch.setattr(
        fastokens, "Tokenizer", SimpleNamespace(from_json_str=lambda _: other)
    )
    sampled(0)
    outcome = token_outcome(finished)
    assert outcome.note == f"{outcome.checked:,} of them by the reference tokenizer"
    assert outcome.breaches == 0


def test_the_sample_finds_where_stored_ids_are_those_of_fastokens_and_not_of_the_reference(
    run, sampled
):
    twice = processors.TemplateProcessing(
        single="$A $A", special_tokens=[]
    )  # which fastokens leaves out, unasked
    change_tokenizer(
        run, lambda held: held.update(post_processor=json.loads(twice.__getstate__()))
    )
    sampled(0)
    (only,) = token_outcome(run).examples  # which is what a sample gives up
    assert only.startswith("tokenizer separator_ids is")
    sampled(2_000)
    outcome = token_outcome(run)
    assert 1 < outcome.breaches < outcome.checked
    assert token_outcome(run, sample=tokens.EVERYTHING).breaches == 1 + outcome.checked


def test_texts_that_the_two_class_differently_go_to_the_reference():
    tokenizer = byte_level()
    fast = fastokens.Tokenizer.from_json_str(tokenizer.to_str())
    texts = ["plain", "", "long \u017f", "kelvin \u212a", "\u180e"]
    stored = [np.array(tokenizer.encode(text).ids, np.uint32) for text in texts]
    assert tokens._is_disputed(fast, texts, stored) == [False, False, True, True, True]
    stored[0][0] += 1
    assert tokens._is_disputed(fast, texts, stored) == [True, False, True, True, True]


def byte_level(*, normalizer=None):
    """A small byte-level tokenizer with added tokens that a byte-level alphabet spells otherwise, or not at all."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(
        ["the first day, and they'll say “naïve” 東京 " * 3], trainer
    )
    tokenizer.add_tokens(
        [AddedToken("  "), AddedToken("é"), AddedToken("東京!"), AddedToken("\xad")]
    )
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


TOKENIZERS = [byte_level(), byte_level(normalizer=normalizers.NFC())]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["plain", "nfc"])
@given(data=st.data())
def test_decoded_text_is_judged_as_the_tokenizer_decodes_it(tokenizer, data):
    """Tokens of all kinds, cut within a character or unknown, against their text, one of the same letters, and any."""
    run = SimpleNamespace(tokenizer=tokenizer, reference=Reference(tokenizer))
    ids = data.draw(
        st.lists(st.integers(0, tokenizer.get_vocab_size() + 3), max_size=8)
    )
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    text = data.draw(
        st.sampled_from([decoded, decoded[::-1], decoded + "\ufffd"])
        | st.text(max_size=4)
    )
    expected = (
        text
        if tokenizer.normalizer is None
        else tokenizer.normalizer.normalize_str(text)
    )
    stored = [np.array(ids, np.uint32)]
    chunks = tokens._ChunkBatch(np.array([7]), [text], [True], stored)
    problems = tokens._text_problems(run, 0, chunks, tokens._Lossy())
    assert [problem.partition(" at ")[0] for problem in problems] == [
        tokens.chunk_name(7)
    ] * (decoded != expected)


def lossy_run(normalizer):
    """A run whose tokenizer restores no text: it writes spaces as another character, or capitals as small letters."""
    tokenizer = byte_level(normalizer=normalizer)
    return SimpleNamespace(tokenizer=tokenizer, reference=Reference(tokenizer))


@pytest.mark.parametrize(
    ("normalizer", "is_lossy"),
    [
        (normalizers.Replace(" ", "▁"), True),
        (normalizers.Lowercase(), False),  # judged by the normalized text
        (None, False),
    ],
)
def test_a_text_that_the_tokenizer_itself_does_not_restore_is_counted_apart(
    normalizer, is_lossy
):
    run, text = lossy_run(normalizer), "The First Day"
    (ids,) = run.reference.ids([text], [True])
    stored = [np.array(ids, np.uint32)]
    chunks = tokens._ChunkBatch(np.array([7]), [text], [True], stored)
    lossy = tokens._Lossy()
    assert list(tokens._text_problems(run, 0, chunks, lossy)) == []
    assert lossy.chunks == is_lossy
    assert ("▁First" in lossy.example) == is_lossy
    # Other ids than the tokenizer's own are found all the same.
    changed = [stored[0][::-1]]
    chunks = tokens._ChunkBatch(np.array([7]), [text], [True], changed)
    assert len(list(tokens._text_problems(run, 0, chunks, tokens._Lossy()))) == 1
