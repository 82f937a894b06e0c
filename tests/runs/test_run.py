"""A finished run as Python objects, against the files that it exported."""

import json
import os
import shutil
from importlib import metadata

import numpy as np
import pyarrow.parquet as pq
import pytest

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.engine.step import TaskResult
from nextlong.errors import RunError
from nextlong.recipe import Recipe
from nextlong.runs import export as runs_export

COUNT = 12  # more than one in a part
LINES = [
    "The tide went out at {n} and the gulls came in.",
    "Nobody on the pier had seen storm {n} coming.",
    "A crate of lemons, number {n}, stood by the crane.",
    "Rope {n} was wet, so the captain took another.",
]


def recipe_in(folder, **changed):
    plain = {
        "run_dir": str(folder / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(folder / "corpus.jsonl"), "name": "harbour"}],
            "shard_mb": 0.01,
        },
        "chunk": {"max_chars": 128},
        "encoder": {"lsa": {"dimensions": 8}},
        "mine": {"near_duplicates": None},  # its lines are few and much alike
        "tokenizer": {"train": 300, "eos": "<|endoftext|>"},
        "compose": {"sequences": COUNT, "target_tokens": 512},
        "export": {"formats": ["parquet", "jsonl"]},
    }
    return Recipe.from_dict(
        plain, overrides=[f"{key}={value}" for key, value in changed.items()]
    )


def write_corpus(folder):
    texts = [
        "\n".join(LINES[(n * k) % 4].format(n=n + k) for k in range(1 + n % 7))
        for n in range(50)
    ]
    rows = [
        json.dumps({"id": f"log {n}", "text": text}) + "\n"
        for n, text in enumerate(texts)
    ]
    (folder / "corpus.jsonl").write_text("".join(rows), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opened")
    write_corpus(folder)
    pipeline.run(recipe_in(folder))
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return nextlong.open(folder / "run")


@pytest.fixture
def own_run(folder, tmp_path):
    return shutil.copytree(folder / "run", tmp_path / "run")


def rows_of(run, name):
    if name == "parquet":
        return [
            row
            for path in run.exported("parquet")
            for row in pq.read_table(path).to_pylist()
        ]
    return [
        json.loads(line)
        for path in run.exported("jsonl")
        for line in path.read_text("utf-8").splitlines()
    ]


def test_sequences_come_in_draw_order_and_by_number(run):
    ids = [sequence.id for sequence in run.sequences()]
    assert len(run) == len(ids) == len(set(ids)) == COUNT
    assert [run.sequence(number).id for number in range(COUNT)] == ids
    assert all(one.startswith("nextlong-") for one in ids)


@pytest.mark.parametrize("number", [-1, COUNT, 99])
def test_a_number_that_is_none(run, number):
    with pytest.raises(
        IndexError,
        match=f"sequence {number} does not exist: .* has {COUNT}, counted from 0",
    ):
        run.sequence(number)


def test_a_sequence_has_exactly_its_tokens_and_spans_that_tile_them(run):
    for sequence in run.sequences():
        assert sequence.method == "nextlong"
        assert sequence.input_ids.shape == (512,)
        assert sequence.input_ids.dtype == np.int32
        assert [span.token_start for span in sequence.spans] == [
            0,
            *(span.token_end for span in sequence.spans[:-1]),
        ]
        assert sequence.spans[-1].token_end == 512
        assert sequence.spans[-1].role == "eos"
        assert sequence.input_ids[-1] == run.tokenizer.token_to_id("<|endoftext|>")


def test_every_meta_chunk_of_the_document_is_there(run):
    chunks = [
        (span.char_start, span.char_end)
        for span in run.sequence(0).spans
        if span.role == "meta"
    ]
    assert chunks[0][0] == 0
    assert [end for _, end in chunks[:-1]] == [start for start, _ in chunks[1:]]


def test_parquet_and_jsonl_agree_with_the_objects(run):
    tables, lines, sequences = (
        rows_of(run, "parquet"),
        rows_of(run, "jsonl"),
        list(run.sequences()),
    )
    assert len(tables) == len(lines) == COUNT
    for row, line, sequence in zip(tables, lines, sequences, strict=True):
        assert row["input_ids"] == sequence.input_ids.tolist()
        assert line["text"] == sequence.text == "".join(sequence.texts)
        for name in ("sequence_id", "method", "length"):
            assert row[name] == line[name]
        assert (row["sequence_id"], row["length"], row["seq_lengths"]) == (
            sequence.id,
            512,
            [512],
        )
        for span, other, mine in zip(
            row["spans"], line["spans"], sequence.spans, strict=True
        ):
            assert span["score"] == pytest.approx(other["score"], abs=1e-6)
            assert {**span, "score": 0} == {**other, "score": 0}
            assert {
                name: getattr(mine, name) or None
                if name == "metadata"
                else getattr(mine, name)
                for name in span
            } == span


def test_the_text_of_a_jsonl_line_is_what_its_tokens_say(run):
    for row, line in zip(rows_of(run, "parquet"), rows_of(run, "jsonl"), strict=True):
        assert (
            run.tokenizer.decode(row["input_ids"], skip_special_tokens=False)
            == line["text"]
        )
        assert line["text"].endswith("<|endoftext|>")


def test_a_group_is_a_meta_chunk_and_its_negatives_by_descending_cosine(run):
    for sequence in run.sequences():
        for number in range(sequence.spans[-2].group + 1):
            meta, *others = [
                span
                for span in sequence.spans
                if span.group == number and span.role != "separator"
            ]
            assert (meta.role, meta.score) == ("meta", 1.0)
            assert {span.role for span in others} <= {"negative"}
            scores = [span.score for span in others]
            assert scores == sorted(scores, reverse=True)


def test_the_recipe_of_the_run_comes_back(run, folder):
    assert run.recipe == recipe_in(folder)
    assert Recipe.load(run.variant.recipe_file) == run.recipe


def test_fewer_sequences_are_the_first_of_more(run, folder, own_run):
    fewer = recipe_in(
        folder,
        **{"compose.sequences": 2, "run_dir": own_run, "export.formats": "[jsonl]"},
    )
    pipeline.run(fewer)
    opened = nextlong.open(own_run)
    assert [sequence.id for sequence in opened.sequences()] == [
        run.sequence(0).id,
        run.sequence(1).id,
    ]
    assert len(rows_of(opened, "jsonl")) == 2
    with pytest.raises(RunError) as error:
        opened.exported("parquet")
    assert error.value.where == str(opened)
    assert f"nextlong export {opened} --to parquet" in error.value.fix


def test_run_returns_the_opened_run_each_time(folder):
    for _ in range(2):
        assert len(nextlong.run(recipe_in(folder))) == COUNT


# what is no run


@pytest.mark.parametrize("name", ["nowhere", "corpus.jsonl"])
def test_what_is_no_folder_cannot_be_opened(folder, name):
    with pytest.raises(RunError) as error:
        nextlong.open(folder / name)
    assert error.value.where == str(folder / name)


def test_a_folder_without_a_finished_run(folder):
    with pytest.raises(RunError) as error:
        nextlong.open(folder)
    assert error.value.where == str(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "run.json: it is damaged"),
        ("[]", "is not the record of a run"),
        ('{"recipe": {}}', "is not the record of a run"),
    ],
)
def test_a_record_that_is_none(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=message):
        nextlong.open(tmp_path)


def test_a_run_that_lacks_a_step(own_run):
    (folder,) = own_run.glob("*-tokens-*")
    shutil.rmtree(folder)
    with pytest.raises(RunError) as error:
        nextlong.open(own_run)
    assert error.value.where == str(folder / "manifest.json")


def test_a_run_with_an_altered_file(own_run):
    (path,) = own_run.glob("*-compose-*/part-00000.sequences.arrow")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError) as error:
        nextlong.open(own_run)
    assert error.value.where == str(path)


def flip_last_byte(path):
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    os.utime(path, ns=(1, 1))


def test_opening_to_read_goes_by_sizes_and_what_builds_on_a_run_by_bytes(own_run):
    (path,) = own_run.glob("*-tokens-*/part-00000.00000.ids.npy")
    flip_last_byte(path)
    assert len(nextlong.open(own_run)) == COUNT
    with pytest.raises(RunError) as error:
        runs_export.export([own_run], formats=["jsonl"])
    assert error.value.where == str(path)


def test_a_run_that_was_copied_is_exported(own_run):
    for path in own_run.glob("[0-9]*/part-*"):
        os.utime(path, ns=(1, 1))
    written = runs_export.export([own_run], formats=["arrow"])
    assert written.done["arrow"].files(".arrow")


def forget_files(folder, suffix):
    """Leave a step as if it had been made before it wrote files of this suffix."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    for part in manifest["parts"]:
        part["files"] = {
            name: own
            for name, own in part["files"].items()
            if not name.endswith(suffix)
        }
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")


@pytest.mark.parametrize(
    ("step", "suffix"), [("tokenizer", ".tokenchars.npy"), ("tokens", ".offsets.npy")]
)
def test_a_run_of_an_earlier_version_is_told_as_such(own_run, capsys, step, suffix):
    (folder,) = own_run.glob(f"*-{step}-*")
    forget_files(folder, suffix)
    for command in (["peek", own_run, "0"], ["export", own_run, "--to", "arrow"]):
        assert main([str(word) for word in command]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"error: {folder}: ")
        assert f" {suffix}, " in told
        # As it is installed, which may be an older checkout.
        assert metadata.version("nextlong") in told


class Surprises(TaskResult):
    surprises: int


def test_a_count_that_earlier_versions_did_not_make_is_told_as_such(own_run):
    done = nextlong.open(own_run).steps["compose"]
    with pytest.raises(RunError) as error:
        done.results(Surprises)
    assert error.value.where == str(done.folder)
    assert "surprises" in error.value.problem
