"""Token ids → documents: split at end tokens, without special tokens, and only texts with the same ids."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tokenized import TEXTS, ids_of, read_tokens, tokenizer_at, with_ends

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import estimate_text_bytes
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record, RejectKind
from nextlong.reading.token_ids import Decoder, identity_of
from nextlong.recipe import Recipe, Source
from nextlong.runs.public_recipe import public_recipe
from nextlong.sequences.tokenizer import END_OF_TEXT


def write_ids(path, ids):
    """Write ids as datatrove does, without an index."""
    path.write_bytes(np.array(ids, "<u2").tobytes())


@pytest.fixture
def tokenizer(tmp_path):
    return tokenizer_at(tmp_path / "tokenizer.json")


@pytest.fixture
def options(tmp_path, tokenizer):
    return {"tokenizer": str(tmp_path / "tokenizer.json")}


def test_documents_end_at_the_end_token(tmp_path, tokenizer, options):
    write_ids(tmp_path / "a.ds", np.concatenate(with_ends(tokenizer)))
    items = read_tokens(tmp_path / "a.ds", **options)
    assert [item.text for item in items] == TEXTS
    assert [item.line for item in items] == [1, 2, 3, 4, 5, 6]
    assert items[2].source_id == "a.ds:3"


@given(st.lists(st.integers(0, 9), max_size=40))
def test_any_ids_are_split_as_a_loop_splits_them(ids):
    """Id 9 ends a document; 7 and 8 are special at its ends, and text within."""
    decoder = Decoder(None, 9, frozenset({7, 8, 9}))
    expected = []
    document = []
    for token_id in [*ids, 9]:
        if token_id != 9:
            document.append(token_id)
            continue
        while document and document[0] in (7, 8):
            del document[0]
        while document and document[-1] in (7, 8):
            del document[-1]
        if document:
            expected.append(document)
        document = []
    assert list(decoder.documents(np.array(ids, np.int64))) == expected


def test_ids_of_another_tokenizer_are_rejected_and_counted(
    tmp_path, tokenizer, options
):
    # The letters one by one, which the tokenizer merges.
    apart = [tokenizer.token_to_id(letter) for letter in "tide"]
    end = tokenizer.token_to_id(END_OF_TEXT)
    write_ids(tmp_path / "a.ds", [*ids_of(tokenizer, TEXTS[0]), end, *apart, end])
    good, bad = read_tokens(tmp_path / "a.ds", **options)
    assert good.text == TEXTS[0]
    assert (bad.kind, bad.line) == (RejectKind.OTHER_IDS, 2)
    assert bad.detail == "4 ids"


def test_a_document_that_is_cut_within_a_character_is_rejected(
    tmp_path, tokenizer, options
):
    ids = ids_of(tokenizer, "日")
    assert len(ids) > 1
    write_ids(tmp_path / "a.ds", ids[:-1])
    (item,) = read_tokens(tmp_path / "a.ds", **options)
    assert item.kind is RejectKind.OTHER_IDS


def test_another_end_token_can_be_named(tmp_path, tokenizer, options):
    space = tokenizer.token_to_id("one") or ids_of(tokenizer, "x")[0]
    name = tokenizer.id_to_token(space)
    write_ids(tmp_path / "a.ds", ids_of(tokenizer, f"a {name}") * 2)
    items = read_tokens(tmp_path / "a.ds", end_token=name, **options)
    assert len(items) == 2


@pytest.mark.parametrize(
    ("named", "where"),
    [
        ({}, "a.ds"),
        ({"end_token": "<nope>"}, "ingest.sources[].end_token"),
        ({"tokenizer": "no-such/tokenizer"}, "ingest.sources[].tokenizer"),
    ],
)
def test_a_mistake_in_the_source(
    tmp_path, monkeypatch, tokenizer, options, named, where
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_ids(tmp_path / "a.ds", ids_of(tokenizer, TEXTS[0]))
    given = {} if not named else options | named
    with pytest.raises(CorpusError) as error:
        read_tokens(tmp_path / "a.ds", **given)
    assert error.value.where.endswith(where)


def test_text_has_no_tokenizer(tmp_path, options):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(CorpusError) as error:
        read_tokens(tmp_path / "a.jsonl", **options)
    assert error.value.where.endswith("a.jsonl")


def test_columns_that_ids_do_not_have(tmp_path, tokenizer, options):
    write_ids(tmp_path / "a.ds", ids_of(tokenizer, TEXTS[0]))
    with pytest.raises(CorpusError) as error:
        read_tokens(tmp_path / "a.ds", metadata=["lang"], **options)
    assert error.value.where.endswith("a.ds")


def test_the_tokenizer_is_part_of_the_identity(tmp_path, options):
    path = tmp_path / "tokenizer.json"
    tokenizer_at(path)
    source = Source(path="a.ds", **options)
    before = identity_of(source)
    assert identity_of(Source(path="a.ds", tokenizer=str(tmp_path))) == before
    path.write_text(path.read_text().replace("x", "y"))
    assert identity_of(source) != before
    assert identity_of(Source(path="a.jsonl")) is None


def test_the_text_is_estimated_from_the_ids(tmp_path, tokenizer, options):
    write_ids(tmp_path / "a.ds", np.concatenate(with_ends(tokenizer) * 50))
    source = Source(path=str(tmp_path / "a.ds"), **options)
    files = list_files(source, where="path")
    read = sum(len(item.text.encode()) for item in read_tokens(source.path, **options))
    assert estimate_text_bytes(files, source) == pytest.approx(read, rel=0.25)
    assert FilePart(files[0]).begins_file


def test_a_run_over_ids_has_the_documents_of_the_text(
    tmp_path, recipe_for, tokenizer, options
):
    """The corpus of the tests, as text and as ids: the same documents, hence the same sequences."""
    texts = [f"{text} {number}.\n" * 40 for number in range(30) for text in TEXTS]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [[*ids_of(tokenizer, text), end] for text in texts]
    write_ids(tmp_path / "ids.ds", np.concatenate(ids))
    runs = []
    for path, keys in (("texts.jsonl", {}), ("ids.ds", options)):
        source = {"path": str(tmp_path / path), "name": "one", **keys}
        recipe = recipe_for(
            tmp_path / path.partition(".")[0],
            f"ingest.sources=[{json.dumps(source)}]",
            "compose.sequences=3",
            "compose.target_tokens=1024",
        )
        pipeline.run(recipe)
        runs.append(nextlong.open(recipe.run_path))
    of_text, of_ids = ([sequence.text for sequence in run.sequences()] for run in runs)
    assert of_text == of_ids
    assert str(tmp_path) not in public_recipe(runs[1].recipe)
    assert isinstance(read_tokens(tmp_path / "ids.ds", **options)[0], Record)


def test_init_reads_ids_with_the_tokenizer_that_it_is_given(
    tmp_path, tokenizer, options, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids").mkdir()
    ids = [*with_ends(tokenizer)] * 400
    write_ids(tmp_path / "ids" / "a.ds", np.concatenate(ids))
    init = ["init", "my.yaml", "ids", "--tokenizer", "tokenizer.json"]
    assert main(init) == 0
    recipe = Recipe.load(tmp_path / "my.yaml")
    (source,) = recipe.ingest.sources
    assert source.tokenizer == "tokenizer.json"
    (file,) = list_files(source, where="path")
    assert estimate_text_bytes([file], source) > 0
