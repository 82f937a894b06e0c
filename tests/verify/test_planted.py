"""Planted faults: each kind, in a run of each method, is found by a check that says which; a sound run passes."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.damage import (
    breaches,
    change_array,
    change_recipe,
    change_rows,
    change_sequence,
    files,
    first_sequence,
    read_batches,
    rehash,
)
from tests.support.exported_runs import folder_of
from tests.support.larger_cases import thorough

import nextlong
from nextlong import pipeline
from nextlong.plugins import METHODS
from nextlong.schemas import DOCUMENT, NEGATIVE, NO_CHUNK
from nextlong.verify.files import check_files
from nextlong.verify.run_files import StoredRun

QUICK = ["nextlong top", "untie_the_knots"]  # negatives, and documents in parts
KINDS = [
    *QUICK,
    *thorough(
        "nextlong random-corpus",
        # Entropy needs a model; test_sequences.py plants faults in its layout.
        *sorted({*METHODS.built_in} - {"nextlong", "entropy", *QUICK}),
    ),
]


@pytest.fixture(scope="module", params=KINDS)
def finished(request, recipe_for, started, tmp_path_factory):
    """A run of a method, or of a kind of negatives; read-only."""
    run_dir = tmp_path_factory.mktemp("planted") / "run"
    method, *negatives = request.param.split()
    chosen = [f"compose.negatives={negatives[0]}"] if negatives else []
    sizes = [
        "compose.sequences=4",
        "compose.target_tokens=1024",
        "export.formats=[parquet]",
        "workers=1",
    ]
    pipeline.run(
        recipe_for(started(run_dir), f"compose.method={method}", *chosen, *sizes)
    )
    return run_dir


def chunk_spans(row):
    return [span for span, chunk in enumerate(row["chunk_id"]) if chunk != NO_CHUNK]


def swap(row, one, other, *names):
    for name in names:
        row[name][one], row[name][other] = row[name][other], row[name][one]


def two_chunks_swapped(row):
    swap(row, *chunk_spans(row)[:2], "chunk_id")


def a_chunk_replaced(row):
    spans = chunk_spans(row)
    row["chunk_id"][spans[0]] = next(
        chunk for chunk in range(200) if chunk not in row["chunk_id"]
    )


def a_chunk_twice(row):
    spans = chunk_spans(row)
    row["chunk_id"][spans[2]] = row["chunk_id"][spans[0]]


def a_chunk_that_is_not_there(row):
    row["chunk_id"][chunk_spans(row)[1]] = 1 << 40


def a_wrong_role(row):
    span = chunk_spans(row)[0]
    row["role"][span] = NEGATIVE if row["role"][span] == DOCUMENT else DOCUMENT


def a_wrong_score(row):
    span = next(
        (span for span in chunk_spans(row) if row["role"][span] == NEGATIVE),
        chunk_spans(row)[0],
    )
    row["score"][span] = 0.123


def a_shifted_border(row):
    row["token_end"][0] -= 1
    row["token_start"][1] -= 1


def a_token_less(row):
    row["token_end"][-1] -= 1


def a_wrong_key(row):
    row["key"] ^= 1


def a_wrong_method(row):
    row["method"] = "another"


def a_wrong_layout(row):
    row["layout"] = "extended" if row["layout"] != "extended" else "concatenated"


IN_A_SEQUENCE = {
    two_chunks_swapped: {"chunks complete and in order", "spans tile the sequence"},
    a_chunk_replaced: {"chunks complete and in order"},
    a_chunk_twice: {"no chunk twice"},
    a_chunk_that_is_not_there: {"spans tile the sequence"},
    a_wrong_role: {"chunks complete and in order"},
    a_wrong_score: {"scores are cosines"},
    a_shifted_border: {"separators, bos, eos", "spans tile the sequence"},
    a_token_less: {"spans tile the sequence"},
    a_wrong_key: {"sequence ids and keys"},
    a_wrong_method: {"chunks complete and in order"},
    a_wrong_layout: {"chunks complete and in order"},
}


def test_faults_in_a_sequence(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    sound = folder_of(finished, "compose")
    for fault, finders in IN_A_SEQUENCE.items():
        shutil.copytree(sound, run / sound.name, dirs_exist_ok=True)
        change_sequence(run, fault)
        assert breaches(run, "sequences", "search", sample=5).keys() & finders, (
            fault.__name__
        )


def sequences_of(run):
    """Return the files that hold sequences, and how many each."""
    counted = [
        (path, sum(len(batch) for batch in read_batches(path)[0]))
        for path in files(run, "compose", ".sequences.arrow")
    ]
    return [(path, count) for path, count in counted if count]


def a_sequence_less(run):
    change_rows(
        sequences_of(run)[0][0], lambda rows: rows.pop(0)
    )  # the last may be one too many


def a_sequence_twice(run):
    (path, count), *others = sequences_of(run)
    second = (path, 1) if count > 1 else (others[0][0], 0)
    first = first_sequence(run)
    change_rows(second[0], lambda rows: rows.__setitem__(second[1], first))


def a_token_of_each_chunk(run):
    for path in files(run, "tokens", ".ids.npy"):
        change_array(path, lambda ids: np.add(ids, 1, out=ids, where=ids < 500))


def a_letter_of_each_document(run):
    def alter(rows):
        for row in rows:
            row["text"] = "§" + row["text"][1:]

    for path in files(run, "ingest", ".documents.arrow"):
        change_rows(path, alter)


def chunks_with_gaps(run):
    change_rows(
        files(run, "chunk", ".chunks.arrow")[0],
        lambda rows: rows[0].update(end=rows[0]["end"] - 1),
    )


def exported_rows_swapped(run):
    change_table(run, lambda table: table.take([1, 0, *range(2, len(table))]))


def an_exported_row_less(run):
    change_table(run, lambda table: table.slice(1))


def an_exported_id_altered(run):
    def alter(table):
        rows = table.to_pylist()
        rows[-1]["input_ids"][-1] ^= 1
        return type(table).from_pylist(rows, schema=table.schema)

    change_table(run, alter)


def change_table(run, change):
    path = files(run, "parquet", ".parquet")[0]
    pq.write_table(change(pq.read_table(path)), path)
    rehash(path)


def another_length_in_the_recipe(run):
    change_recipe(run, "compose", "target_tokens", 1000)


def another_size_of_chunks_in_the_recipe(run):
    change_recipe(run, "chunk", "max_chars", 100)


IN_THE_FILES = {
    a_sequence_less: (
        "exports",
        {"rows hold each sequence once", "parquet rows", "exports"},
    ),
    a_sequence_twice: (
        "exports",
        {"rows hold each sequence once", "parquet rows", "exports"},
    ),
    a_token_of_each_chunk: ("tokens", {"token ids"}),
    a_letter_of_each_document: ("documents and chunks", {"documents"}),
    chunks_with_gaps: ("documents and chunks", {"chunks tile documents"}),
    exported_rows_swapped: ("exports", {"parquet rows"}),
    an_exported_row_less: ("exports", {"parquet rows"}),
    an_exported_id_altered: ("exports", {"parquet rows"}),
    another_length_in_the_recipe: ("sequences", {"spans tile the sequence"}),
    another_size_of_chunks_in_the_recipe: (
        "documents and chunks",
        {"chunks tile documents"},
    ),
}


def test_faults_in_files(finished, tmp_path):
    for fault, (check, outcomes) in IN_THE_FILES.items():
        run = Path(shutil.copytree(finished, tmp_path / fault.__name__))
        fault(run)
        assert breaches(run, check, sample=5).keys() & outcomes, fault.__name__


def test_a_sound_run_passes_and_any_flipped_or_cut_file_is_found(finished, tmp_path):
    assert breaches(finished, sample=20) == {}
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    draw = np.random.default_rng(0)
    steps = [run / folder for folder in nextlong.open(run).variant.steps.values()]
    paths = [
        path
        for step in steps
        for path in sorted(step.glob("[!.]*"))
        if path.stat().st_size
    ]
    whole = {path: path.read_bytes() for path in paths}

    def flipped(raw):
        place = draw.integers(len(raw))
        return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]

    for some in at_a_time([path for path in paths if path.name != "manifest.json"]):
        assert told_of(run, {path: flipped(whole[path]) for path in some}) >= names(
            some
        )
    for some in at_a_time(paths):
        assert told_of(
            run, {path: whole[path][: len(whole[path]) // 2] for path in some}
        ) >= names(some)
    assert len(paths) > 30


def at_a_time(paths):
    """Return the files by fives, of which an outcome gives examples; manifests, without which no other file is looked at, alone."""
    files = [path for path in paths if path.name != "manifest.json"]
    fives = [files[first : first + 5] for first in range(0, len(files), 5)]
    return [*fives, *([path] for path in paths if path.name == "manifest.json")]


def names(paths):
    return {f"{path.parent.name}/{path.name}" for path in paths}


def told_of(run, damaged):
    """Return the files that hashes name once these hold other bytes, which are put back."""
    whole = {path: path.read_bytes() for path in damaged}
    for path, raw in damaged.items():
        path.write_bytes(raw)
    outcomes = check_files(StoredRun(run))
    for path, raw in whole.items():
        path.write_bytes(raw)
    return {
        example.split(" ")[0] for outcome in outcomes for example in outcome.examples
    }
