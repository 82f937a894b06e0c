"""CSV, `filter` and `metadata` from a file to the spans of an export, as the commands do it."""

import csv
import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nextlong
from nextlong import checks
from nextlong.cli import main as cli_main
from tests.conftest import write_corpus
from tests.support.larger_cases import thorough


def write_table(folder):
    """Write a CSV of 260 documents, half of them English; return its path."""
    folder.mkdir(exist_ok=True)
    write_corpus(folder / "corpus")
    lines = [
        json.loads(line)
        for path in sorted((folder / "corpus").iterdir())
        for line in path.read_text().splitlines()
    ]
    with (folder / "docs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["doc_id", "content", "lang", "score"])
        writer.writerows(
            (row["id"], row["text"], "de" if n % 2 else "en", n / 260)
            for n, row in enumerate(lines)
        )
    return folder / "docs.csv"


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path)


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    """The run directory of the English documents with two columns of theirs; read-only."""
    table = write_table(tmp_path_factory.mktemp("english"))
    source = {"filter": "lang = 'en'", "metadata": ["lang", "score"]}
    assert (
        cli_main.main(["run", str(recipe_of(table, method="nextlong", **source))]) == 0
    )
    return table.parent / "run"


def call(capfd, *arguments):
    capfd.readouterr()
    code = cli_main.main([str(argument) for argument in arguments])
    return code, *capfd.readouterr()


def recipe_of(table, *, method="standard", **source):
    """Write a recipe; how its sequences are made is no matter here, so they are made in the cheapest way."""
    path = table.parent / "r.yaml"
    plain = {
        "run_dir": str(table.parent / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [
                {
                    "path": str(table),
                    "name": "t",
                    "text": "content",
                    "id": "doc_id",
                    **source,
                }
            ],
            "shard_mb": 0.03,
        },
        "chunk": {"max_chars": 256},
        "encoder": {"lsa": {"dimensions": 16}},
        "tokenizer": {"train": 512},
        "compose": {"method": method, "sequences": 6, "target_tokens": "1k"},
        "export": {"formats": ["parquet", "jsonl"]},
    }
    path.write_text(json.dumps(plain))
    return path


def test_kept_columns_travel_into_spans_and_verify_agrees(english, capfd):
    run = nextlong.open(english)
    spans = [
        span
        for sequence in run.sequences()
        for span in sequence.spans
        if span.doc_id >= 0
    ]
    assert {span.role for span in spans} == {"meta", "negative"}
    assert {span.metadata["lang"] for span in spans} == {"en"}
    assert all(float(span.metadata["score"]) < 1 for span in spans)
    rows = pq.read_table(run.exported("parquet")[0]).to_pylist()
    exported = [
        json.loads(span["metadata"])
        for row in rows
        for span in row["spans"]
        if span["metadata"]
    ]
    assert exported == [span.metadata for span in spans]
    code, out, _ = call(capfd, "verify", english)
    assert code == 0, out
    _, out, _ = call(capfd, "peek", english, 0)
    assert "lang=en, score=" in out


def test_verify_notices_documents_that_keep_other_columns(english, tmp_path, capfd):
    shutil.copytree(english, tmp_path / "run")
    (record,) = (tmp_path / "run/variants").glob("*.json")
    plain = json.loads(record.read_text())
    plain["recipe"]["ingest"]["sources"][0]["metadata"] = ["score"]
    record.write_text(json.dumps(plain))
    code, out, _ = call(capfd, "verify", tmp_path / "run")
    assert code == 1
    assert "['lang', 'score']" in out


def test_another_condition_reads_anew_and_none_leaves_the_rest_as_it_was(table, capfd):
    folders = []
    for source in ({}, {"filter": "lang = 'en'"}, {"filter": "lang = 'de'"}, {}):
        assert (
            call(capfd, "run", recipe_of(table, **source), "--before", "select")[0] == 0
        )
        folders.append(
            {path.name for path in (table.parent / "run").glob("*-ingest-*")}
        )
    assert [len(found) for found in folders] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"filter": "lang = 'fr'"},
            "ingest.sources[].filter: it matches none of 260 documents",
        ),
        (
            {"filter": "lang ="},
            "ingest.sources (t): filter='lang =' is not an SQL condition",
        ),
        (
            {"metadata": ["lan"]},
            "has no column 'lan' that metadata or filter names, only doc_id, content, lang, score; did you",
        ),
        (
            {"text": "text"},
            "has no column 'text' for the text, only doc_id, content, lang, score; set the source's text to the one",
        ),
        (
            {"metadata": ["lang", "lang"]},
            "ingest.sources[0].metadata: names 'lang' twice; name it once",
        ),
    ],
)
def test_mistakes_name_place_value_and_cure(table, capfd, source, message):
    code, _, err = call(capfd, "run", recipe_of(table, **source))
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def _as(suffix, rows, folder):
    """Write rows as a file of a kind."""
    path = folder / f"t{suffix}"
    table = pa.Table.from_pylist(rows)
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".arrow":
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".parquet", *thorough(".jsonl", ".arrow", ".csv")])
def test_an_id_that_no_document_has_is_refused_and_one_that_some_lack_is_told(
    tmp_path, capfd, suffix
):
    write_corpus(tmp_path / "corpus")
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "corpus").iterdir())
        for line in path.read_text().splitlines()
    ]
    rows = [
        {"doc_id": row["id"] if n % 4 else None, "content": row["text"]}
        for n, row in enumerate(lines)
    ]
    path = _as(suffix, rows, tmp_path)
    code, _, err = call(capfd, "run", recipe_of(path, id="docid"))
    assert code == 2
    why = (
        "none of 260 documents of t has a value in this column"
        if suffix == ".jsonl"
        else f"{path} has no such column"
    )
    told = (
        f"ingest.sources[0].id='docid' cannot identify the documents: {why}; columns of the first records: doc_id, "
        "content; did you mean 'doc_id'? Without an id column, documents are named file:line"
    )
    assert told in " ".join(err.split())
    # A table's columns are known before it is read, and so is the mistake; plan says
    # it, too.
    assert bool(list((tmp_path / "run").glob("*-ingest-*"))) is (suffix == ".jsonl")
    if suffix != ".jsonl":
        code, _, err = call(capfd, "plan", recipe_of(path, id="docid"))
        assert (code, told in " ".join(err.split())) == (2, True)
    assert call(capfd, "run", recipe_of(path, id="doc_id"))[0] == 0
    warnings = json.loads(call(capfd, "stats", tmp_path / "run", "--json")[1])[
        "warnings"
    ]
    (told,) = [one for one in warnings if one["name"] == "missing-ids"]
    assert told["message"].startswith("65 of 260 ")
    assert "(doc_id)" in told["message"]
    assert (
        call(capfd, "run", recipe_of(path, id="id"))[0] == 0
    )  # the default: nobody named it, so nothing is amiss
    warnings = json.loads(call(capfd, "stats", tmp_path / "run", "--json")[1])[
        "warnings"
    ]
    assert "missing-ids" not in [one["name"] for one in warnings]


def test_a_table_without_ids_beside_others_that_have_them_is_no_mistake(
    tmp_path, capfd
):
    write_corpus(tmp_path / "corpus")
    lines = [
        json.loads(line)
        for line in next((tmp_path / "corpus").iterdir()).read_text().splitlines()
    ]
    (tmp_path / "many").mkdir()
    for number in range(5):
        rows = [
            {
                **({"doc_id": f"{number}-{n}"} if number in (1, 3) else {}),
                "content": row["text"],
            }
            for n, row in enumerate(lines)
        ]
        pq.write_table(
            pa.Table.from_pylist(rows[number::5]), tmp_path / f"many/{number}.parquet"
        )
    recipe = recipe_of(tmp_path / "x", path=str(tmp_path / "many"), id="doc_id")
    assert call(capfd, "plan", recipe)[0] == 0
    assert call(capfd, "run", recipe)[0] == 0


def test_tables_too_many_to_be_looked_into_are_judged_once_they_are_read(
    tmp_path, capfd, monkeypatch
):
    write_corpus(tmp_path / "corpus")
    lines = [
        json.loads(line)
        for line in next((tmp_path / "corpus").iterdir()).read_text().splitlines()
    ]
    (tmp_path / "many").mkdir()
    for number in range(3):
        rows = [
            {"doc_id": row["id"], "content": row["text"]} for row in lines[number::3]
        ]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"many/{number}.parquet")
    recipe = recipe_of(tmp_path / "x", path=str(tmp_path / "many"), id="docid")
    monkeypatch.setattr(checks, "_MAX_ID_FILES", 3)
    assert "0.parquet" in call(capfd, "run", recipe)[2]
    monkeypatch.setattr(checks, "_MAX_ID_FILES", 2)
    code, _, err = call(capfd, "run", recipe)
    assert code == 2
    assert "documents of t" in err


def test_json_lines_beside_tables_may_have_the_ids(tmp_path, capfd):
    write_corpus(tmp_path / "corpus")
    lines = [
        json.loads(line)
        for line in next((tmp_path / "corpus").iterdir()).read_text().splitlines()
    ]
    (tmp_path / "many").mkdir()
    for number in range(5):
        rows = [{"content": row["text"]} for row in lines[number::5]]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"many/{number}.parquet")
    (tmp_path / "many/1.jsonl").write_text(
        json.dumps({"doc_id": "a", "content": "a text of its own"}) + "\n"
    )
    recipe = recipe_of(tmp_path / "x", path=str(tmp_path / "many"), id="doc_id")
    assert call(capfd, "plan", recipe)[0] == 0
    assert call(capfd, "run", recipe)[0] == 0


def test_ids_that_several_documents_have_are_told(tmp_path, capfd):
    write_corpus(tmp_path / "corpus")
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "corpus").iterdir())
        for line in path.read_text().splitlines()
    ]
    rows = [
        {"doc_id": f"d{n % 100 if n % 13 else n}", "content": row["text"]}
        for n, row in enumerate(lines)
    ]
    path = _as(
        ".jsonl", [*rows, rows[0]], tmp_path
    )  # an equal document under the same id stands for itself no more
    assert call(capfd, "run", recipe_of(path, id="doc_id"))[0] == 0
    ids = [row["doc_id"] for row in rows]
    warnings = json.loads(call(capfd, "stats", tmp_path / "run", "--json")[1])[
        "warnings"
    ]
    (told,) = [one["message"] for one in warnings if one["name"] == "same-ids"]
    assert told.startswith(f"{len(ids) - len(set(ids))} of 260 ")
    shared = re.search(
        r"in source t, '(d\d+)' is the id of “(.*) …” and of “(.*) …”", told
    )
    one, other = [row["content"] for row in rows if row["doc_id"] == shared[1]][:2]
    assert [shared[2], shared[3]] == [
        " ".join(text[:60].split()) for text in (one, other)
    ]
    unique = _as(
        ".csv",
        [{"doc_id": f"d{n}", "content": row["text"]} for n, row in enumerate(lines)],
        tmp_path,
    )
    assert (
        call(
            capfd,
            "run",
            recipe_of(unique, id="doc_id", path=str(unique)),
            "--set",
            "name=unique",
        )[0]
        == 0
    )
    warnings = json.loads(
        call(capfd, "stats", f"{tmp_path / 'run'}@unique", "--json")[1]
    )["warnings"]
    assert "same-ids" not in [one["name"] for one in warnings]


def test_a_column_that_no_json_line_has_is_refused_once_all_are_read(tmp_path, capfd):
    write_corpus(tmp_path / "corpus")
    table = tmp_path / "corpus/*.jsonl"
    recipe = recipe_of(
        tmp_path / "x.csv", path=str(table), text="text", id="id", metadata=["lang"]
    )
    code, _, err = call(capfd, "run", recipe)
    assert code == 2
    assert err.startswith("error: ingest.sources[0].metadata: ")
    assert "'lang'" in err


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".txt"])
def test_hive_partitions_are_filtered_and_kept_as_metadata(tmp_path, capfd, suffix):
    write_corpus(tmp_path / "corpus")
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "corpus").iterdir())
        for line in path.read_text().splitlines()
    ]
    for year in (2022, 2023, 2024):
        folder = tmp_path / f"in/year={year}/lang={'de' if year == 2022 else 'en'}"
        folder.mkdir(parents=True)
        rows = [
            {"doc_id": row["id"], "content": row["text"]}
            for row in lines[year % 3 :: 3]
        ]
        if suffix == ".txt":
            for number, row in enumerate(rows):
                (folder / f"{number}.txt").write_text(row["content"])
        else:
            _as(suffix, rows, folder)
    columns = {} if suffix != ".txt" else {"text": "text", "id": "id"}
    recipe = recipe_of(
        tmp_path / "x",
        path=str(tmp_path / "in"),
        filter="year >= 2023 AND lang = 'en'",
        metadata=["year"],
        **columns,
    )
    assert call(capfd, "plan", recipe)[0] == 0
    assert call(capfd, "run", recipe)[0] == 0
    run = nextlong.open(tmp_path / "run")
    spans = [span for one in run.sequences() for span in one.spans if span.doc_id >= 0]
    assert {span.metadata["year"] for span in spans} == {2023, 2024}
    assert call(capfd, "verify", tmp_path / "run")[0] == 0


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_texts_in_another_encoding_are_noticed_and_read(tmp_path, capfd, encoding):
    folder = tmp_path / "texts"
    folder.mkdir()
    write_corpus(tmp_path / "corpus")
    texts = [
        json.loads(line)["text"]
        for path in sorted((tmp_path / "corpus").iterdir())
        for line in path.read_text().splitlines()
    ]
    for number, text in enumerate(texts):
        content = f"Der Hafen, Größe {number}, ist schön. {text}"
        (folder / f"{number}.txt").write_bytes(content.encode(encoding))
    recipe = tmp_path / "r.yaml"
    code, out, _ = call(capfd, "init", recipe, folder, "--tokenizer", "512")
    assert code == 0
    assert "Größe" in out
    assert f"'{encoding}' was guessed" in " ".join(out.split())
    (source,) = nextlong.Recipe.load(recipe).ingest.sources
    assert source.encoding == encoding
    own = ("--set", "compose.sequences=4", "--set", "compose.target_tokens=1k")
    assert call(capfd, "run", recipe, *own, "--set", "name=x")[0] == 0
    run = nextlong.open(f"{tmp_path / 'runs/r'}@x")
    assert any("Größe" in one.text for one in run.sequences())
    assert call(capfd, "verify", f"{tmp_path / 'runs/r'}@x")[0] == 0


def test_files_that_are_not_utf_8_beside_others_that_are_are_named(tmp_path, capfd):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(30):
        encoding = "cp1252" if number == 7 else "utf-8"
        text = f"Der Hafen, Größe {number}, ist schön. " * 100
        (folder / f"{number}.txt").write_bytes(text.encode(encoding))
    _, out, _ = call(capfd, "init", tmp_path / "r.yaml", folder, "--tokenizer", "512")
    assert "UTF-8: 7.txt" in " ".join(out.split())
    (source,) = nextlong.Recipe.load(tmp_path / "r.yaml").ingest.sources
    assert source.encoding is None
