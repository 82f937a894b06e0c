"""Chunks that share words with evaluation texts, and the steps that remove them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.altered_corpora import breaches, rows_of, write_source
from tests.support.counted import total
from tests.support.larger_cases import thorough

import nextlong
from nextlong import pipeline
from nextlong.artifacts.corpus_files import read_chunks
from nextlong.corpus.decontaminate import (
    _decontaminate_shard,
    _evaluation_grams,
    decontaminate_steps,
)
from nextlong.engine.runner import open_done
from nextlong.engine.step import Step
from nextlong.errors import CorpusError
from nextlong.recipe.keys import Decontaminate
from nextlong.report import summary
from nextlong.runs.exported import Exported
from nextlong.runs.statistics.measure import measure
from nextlong.schemas import CHUNKS, DOCUMENTS

LONG = "The quick brown fox jumps over the lazy dog while seven old sailors watch from the pier"  # 17 words
QUESTION = "What is the airspeed of an unladen swallow?"


def write_shard(stem, documents):
    """Write documents, each a list of its chunks' texts."""
    texts = ["".join(chunks) for chunks in documents]
    rows, starts, ends = [], [], []
    for row, chunks in enumerate(documents):
        place = 0
        for chunk in chunks:
            rows.append(row)
            starts.append(place)
            place += len(chunk)
            ends.append(place)
    names = pa.array(["x"] * len(texts))
    with (
        pa.OSFile(f"{stem}.documents.arrow", "wb") as sink,
        pa.ipc.new_file(sink, DOCUMENTS) as writer,
    ):
        for start in range(0, len(texts), 2):
            columns = [
                pa.array(texts, pa.large_string()),
                pa.array(range(len(texts)), pa.uint64()),
                names,
                names,
            ]
            writer.write_batch(
                pa.record_batch([c.slice(start, 2) for c in columns], schema=DOCUMENTS)
            )
    columns = [
        pa.array(rows, pa.int32()),
        pa.array(starts, pa.int64()),
        pa.array(ends, pa.int64()),
        pa.array([False] * len(rows)),
    ]
    with (
        pa.OSFile(f"{stem}.chunks.arrow", "wb") as sink,
        pa.ipc.new_file(sink, CHUNKS) as writer,
    ):
        writer.write_batch(pa.record_batch(columns, schema=CHUNKS))


def decontaminate(folder, files, documents, *, ngram=13):
    """Return which chunks are contaminated, document by document, and the counts."""
    files = [str(file) for file in files]
    _evaluation_grams(folder / "grams", files=files, ngram=ngram)
    write_shard(folder / "all", documents)
    counts = _decontaminate_shard(
        folder / "0",
        documents=folder / "all.documents.arrow",
        chunks=folder / "all.chunks.arrow",
        heads=folder / "grams.heads.npy",
        grams=folder / "grams.grams.npy",
        files=files,
    )
    found = np.load(folder / "0.contaminated.npy")
    assert found.dtype == np.bool_
    assert counts.contaminated == found.sum()
    assert counts.chunks == len(found) - found.sum()
    ends = np.cumsum([len(chunks) for chunks in documents])
    return [part.tolist() for part in np.split(found, ends[:-1])], counts


def is_found(folder, evaluation, document, **options):
    """Return whether a document of one chunk is contaminated by a JSON value."""
    path = folder / "evaluation.json"
    path.write_text(json.dumps(evaluation), encoding="utf-8")
    return decontaminate(folder, [path], [[document]], **options)[0] == [[True]]


# Files


WRITTEN = {
    "a.json": json.dumps(
        {"data": [{"qas": [{"q": QUESTION, "id": 7, "ok": True, "none": None}]}]}
    ),
    "a.jsonl": json.dumps({"x": "no"}) + "\n\n" + json.dumps([[QUESTION]]) + "\n",
    "a.ndjson": json.dumps(QUESTION),
    "a.csv": f'text,label\n"{QUESTION}",speed\n',
    "a.tsv": f"label\ttext\nspeed\t{QUESTION}\n",
    "a.txt": f"Some other line\n{QUESTION}\nand more\n",
    "a.md": f"# Title\n\n{QUESTION}\n",
    "bom.json": "\ufeff" + json.dumps([QUESTION]),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
def test_a_planted_question_is_found_whatever_its_file(tmp_path, name, compression):
    raw = WRITTEN[name].encode()
    packed = {"": raw, ".gz": gzip.compress(raw), ".zst": zstandard.compress(raw)}[
        compression
    ]
    path = tmp_path / (name + compression)
    path.write_bytes(packed)
    documents = [
        ["Nothing here. "],
        ["Before it\n", f"he asked: {QUESTION} And so on."],
        ["Nor here."],
    ]
    found, counts = decontaminate(tmp_path, [path], documents)
    assert found == [[False], [False, True], [False]]
    assert counts.files == {str(path): 1}
    assert counts.example == f"{path}: {QUESTION[:-1]}"


def test_a_text_over_several_lines_is_found_in_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(LONG.replace(" ", "\n"), encoding="utf-8")
    assert decontaminate(tmp_path, [path], [[LONG]])[0] == [[True]]


# What counts


@pytest.mark.parametrize(
    ("evaluation", "document", "found"),
    [
        (LONG, " ".join(LONG.split()[:13]), True),
        (LONG, " ".join(LONG.split()[4:]), True),
        (LONG, " ".join(LONG.split()[5:]), False),
        (LONG, LONG.upper().replace(" ", " – "), True),
        (LONG, LONG.replace("lazy", "sleepy"), False),
        (
            "one two three four five six seven eight",
            "zero one two three four five six seven eight nine",
            True,
        ),
        (
            "one two three four five six seven eight",
            "one two three four five six seven",
            False,
        ),
        (
            ["one two three four five six seven", LONG],
            "one two three four five six seven",
            False,
        ),
        (
            ["one two three four five six seven?", LONG],
            "one two three four five six seven",
            True,
        ),
        (["who ruled Normandy?", LONG], "ask who ruled Normandy then", True),
        (["who ruled?", LONG], "ask who ruled Normandy then", False),
        (
            [{"question": "who ruled Normandy"}, LONG],
            "ask who ruled Normandy then",
            True,
        ),
        (
            [{"answer": "who ruled Normandy"}, LONG],
            "ask who ruled Normandy then",
            False,
        ),
        (
            [["a54e-11-22-33-44", "b9c1-55-66-77-88"]],
            '"a54e-11-22-33-44": "b9c1-55-66-77-88"',
            True,
        ),
        (
            [["a54e-11-22-33-44", "b9c1-55-66-77-88"]],
            '"a54e-11-22-33-44": "c000-55-66-77-88"',
            False,
        ),
    ],
)
def test_which_texts_are_looked_for(tmp_path, evaluation, document, found):
    assert is_found(tmp_path, evaluation, document) is found


@pytest.mark.parametrize(("ngram", "found"), [(5, True), (6, False)])
def test_the_length_of_a_run_is_a_choice(tmp_path, ngram, found):
    assert is_found(tmp_path, LONG, "jumps over the lazy dog", ngram=ngram) is found


def test_a_run_of_two_words(tmp_path):
    assert is_found(tmp_path, "red fox", "a red fox", ngram=2)
    assert not is_found(tmp_path, "red fox", "a red hen", ngram=2)


# Where


def test_a_run_that_the_chunker_cut_marks_every_chunk_it_lies_in(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(LONG), encoding="utf-8")
    words = LONG.split(" ")
    cut = [" ".join(words[:6]) + " ", " ".join(words[6:9]) + " ", " ".join(words[9:])]
    documents = [["First. ", "Second. ", *cut, ". Last."], cut[:2], cut[2:]]
    found, counts = decontaminate(tmp_path, [path], documents)
    assert found == [[False, False, True, True, True, False], [False, False], [False]]
    assert counts.files == {str(path): 3}


def test_a_run_in_several_files_counts_for_each(tmp_path):
    for name, texts in {
        "a": [LONG, QUESTION],
        "b": [LONG],
        "c": ["not a word of it is anywhere to be found"],
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(texts), encoding="utf-8")
    files = [tmp_path / f"{name}.json" for name in "abc"]
    found, counts = decontaminate(
        tmp_path, files, [[LONG], [QUESTION], ["clean"], [QUESTION + "\n", LONG]]
    )
    assert found == [[True], [True], [False], [True, True]]
    assert list(counts.files.values()) == [4, 2, 0]


def test_documents_without_chunks_are_passed_over(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(LONG), encoding="utf-8")
    assert decontaminate(tmp_path, [path], [[], [LONG], [], [], ["clean"]])[0] == [
        [],
        [True],
        [],
        [],
        [False],
    ]


@settings(deadline=None)
@given(
    evaluation=st.lists(
        st.lists(st.sampled_from("abcd"), min_size=3, max_size=8),
        min_size=1,
        max_size=4,
    ),
    documents=st.lists(
        st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6), max_size=4),
        min_size=1,
        max_size=5,
    ),
    ngram=st.integers(2, 7),
)
def test_the_chunks_found_are_those_of_a_plain_loop(
    tmp_path_factory, evaluation, documents, ngram
):
    folder = tmp_path_factory.mktemp("loop")
    path = folder / "a.jsonl"
    path.write_text(
        "\n".join(json.dumps(" ".join(text) + "?") for text in evaluation),
        encoding="utf-8",
    )
    runs = set()
    for text in evaluation:
        size = min(len(text), ngram)
        runs |= {tuple(text[at : at + size]) for at in range(len(text) - size + 1)}
    expected = []
    for chunks in documents:
        words = [
            (word, number) for number, chunk in enumerate(chunks) for word in chunk
        ]
        met = [False] * len(chunks)
        for run in runs:
            for at in range(len(words) - len(run) + 1):
                if tuple(word for word, _ in words[at : at + len(run)]) == run:
                    for _, number in words[at : at + len(run)]:
                        met[number] = True
        expected.append(met)
    texts = [[" ".join(chunk) + " " for chunk in chunks] for chunks in documents]
    assert decontaminate(folder, [path], texts, ngram=ngram)[0] == expected


# The chunks that stay


def test_clean_chunks_are_the_others_in_their_order(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([QUESTION]))
    documents = [["one\n", QUESTION, "\nthree"], [QUESTION], [QUESTION, "\nsix"]]
    _, counts = decontaminate(tmp_path, [tmp_path / "a.json"], documents)
    assert (counts.documents, counts.chunks, counts.chars) == (2, 3, 4 + 6 + 4)
    kept = read_chunks(tmp_path / "0.chunks.arrow")
    size = len(QUESTION)
    assert {name: column.tolist() for name, column in kept.items()} == {
        "doc_row": [0, 0, 2],
        "start": [0, 4 + size, size],
        "end": [4, 10 + size, size + 4],
        "separator": [False, False, False],
    }


@pytest.mark.parametrize("documents", [[[QUESTION], [QUESTION]], []])
def test_a_shard_of_which_nothing_stays_is_empty(tmp_path, documents):
    (tmp_path / "a.json").write_text(json.dumps([QUESTION]))
    _, counts = decontaminate(tmp_path, [tmp_path / "a.json"], documents)
    assert (counts.documents, counts.chunks, counts.chars) == (0, 0, 0)
    assert len(read_chunks(tmp_path / "0.chunks.arrow")["start"]) == 0


HARBOUR = "Which of the seven captains of the northern harbour kept a brass telescope beside the tide tables in winter?"


@pytest.fixture(scope="module")
def contaminated(recipe_for, small_corpus, tmp_path_factory):
    """A recipe whose corpus holds a question in the middle of three documents and alone in a fourth, and a clean run of it."""
    tmp_path = tmp_path_factory.mktemp("contaminated")
    rows = [row for row in rows_of(small_corpus) if len(row["text"]) > 600][:60]
    for row in rows[:3]:
        lines = row["text"].split("\n")
        row["text"] = "\n".join([*lines[:3], HARBOUR, *lines[3:]])
    sources = write_source(
        tmp_path / "corpus", [*rows, {"id": "alone", "text": HARBOUR}]
    )
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": HARBOUR}) + "\n")
    return recipe_for(
        tmp_path / "run",
        sources,
        f"decontaminate=[{tmp_path / 'eval.jsonl'}]",
        "compose.sequences=all",
        "compose.target_tokens=1024",
    )


def test_chunks_with_evaluation_text_are_nowhere(contaminated):
    (evaluation,) = contaminated.decontaminate.files
    run = nextlong.run(contaminated)
    assert not any("brass telescope" in sequence.text for sequence in run.sequences())
    name = Path(evaluation).name
    assert measure(run).corpus.contaminated == {name: 4}
    told = dict(summary.lines(Exported(run.recipe, [run], run.steps)))["contaminated"]
    assert told == f"4 chunks filtered out (4 of them with {name})"
    assert breaches(Path(contaminated.run_dir)) == {}


def test_a_document_that_lost_a_chunk_is_no_meta_document(contaminated):
    run = nextlong.run(contaminated)
    clean = nextlong.run(
        contaminated.model_copy(update={"decontaminate": Decontaminate()})
    )
    metas = [
        {
            s.source_id
            for sequence in found.sequences()
            for s in sequence.spans
            if s.role == "meta"
        }
        for found in (run, clean)
    ]
    assert len(metas[1] - metas[0]) >= 3
    assert metas[0] < metas[1]


@pytest.mark.parametrize(
    "method", ["standard", *thorough("quest")]
)  # documents, and keywords of chunks
def test_other_methods_never_see_them_either(contaminated, method):
    changed = {"method": method, "sequences": 3}
    compose = contaminated.compose.model_copy(update=changed)
    run = nextlong.run(contaminated.model_copy(update={"compose": compose}))
    assert len(run) > 0
    assert not any("brass telescope" in sequence.text for sequence in run.sequences())


def test_an_evaluation_file_that_changed_is_read_again(contaminated, tmp_path):
    evaluation, run_dir = tmp_path / "eval.jsonl", tmp_path / "run"
    changed = {
        "run_dir": str(run_dir),
        "decontaminate": Decontaminate(files=(str(evaluation),)),
    }
    for text, contaminated_chunks in (
        (HARBOUR, [4]),
        ("Nothing of this kind stands in any document here.", [0, 4]),
    ):
        evaluation.write_text(json.dumps({"question": text}))
        with pipeline.session(contaminated.model_copy(update=changed)) as session:
            session.run_before("tokenizer")
        done = [
            open_done("decontaminate", folder)
            for folder in run_dir.glob("*-decontaminate-*")
        ]
        assert (
            sorted(total(step, "contaminated") for step in done) == contaminated_chunks
        )


def test_evaluation_files_are_the_same_from_every_working_directory(
    tmp_path, monkeypatch
):
    for name in ("a/test.txt", "b/test.txt", "c.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(f"{LONG} {name}")
    corpus = Step("ingest", 1, {}, (), lambda done: [])

    def step_of(*files):
        return decontaminate_steps(Decontaminate(files=files), corpus, corpus)[0]

    monkeypatch.chdir(tmp_path)
    from_above = step_of("in/a/test.txt", "in/b/test.txt", "in/c.txt")
    alone = step_of("in/c.txt")
    monkeypatch.chdir(tmp_path / "in" / "a")
    from_inside = step_of("test.txt", "../b/test.txt", "../c.txt")
    assert from_inside.fingerprint == from_above.fingerprint
    assert (
        alone.fingerprint == step_of("../c.txt").fingerprint != from_above.fingerprint
    )
    names = [name for name, _ in from_inside.config["files"]]
    assert names == ["a/test.txt", "b/test.txt", "in/c.txt"]


def test_an_evaluation_file_that_is_missing_is_told_before_anything_runs(
    contaminated, tmp_path
):
    missing = Decontaminate(files=(str(tmp_path / "eval.jsonl"),))
    changed = {"run_dir": str(tmp_path / "run"), "decontaminate": missing}
    with pytest.raises(CorpusError) as refused:
        pipeline.run(contaminated.model_copy(update=changed))
    assert refused.value.where == "decontaminate"
    assert refused.value.value == str(tmp_path / "eval.jsonl")
    assert not [*(tmp_path / "run").glob("[0-9]*")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b""),
        ("a", b""),
        ("a.json", b'{"x": '),
        ("a.jsonl", b'{"x": 1}\n{'),
        ("a.txt", b"\xff\xfe"),
        ("a.txt.gz", b"no gzip"),
        ("a.json", b'["short text"]'),
        ("a.csv", b""),
        ("missing.json", None),
    ],
)
def test_a_file_that_cannot_serve_is_refused(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusError) as refused:
        _evaluation_grams(tmp_path / "grams", files=[str(path)], ngram=13)
    assert (refused.value.where, refused.value.value) == ("decontaminate", str(path))
