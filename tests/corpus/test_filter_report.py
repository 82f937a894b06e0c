"""What the filters of the corpus removed, by reason, and ids that two documents share."""

import json
import tracemalloc
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.web_archives import joined, page_of, response

import nextlong
from nextlong import pipeline, schemas
from nextlong.artifacts.results import ChunkResult, IngestResult
from nextlong.cli import main as cli_main
from nextlong.corpus.deduplicate import NearDuplicatesResult
from nextlong.corpus.filter_report import LeftOutResult, _same_ids, filter_report_step
from nextlong.corpus.ingest import content_hash
from nextlong.engine.step import Step
from nextlong.reading.listing import input_files
from nextlong.recipe import Recipe
from nextlong.report.plan.amounts import Amounts
from nextlong.report.plan.estimates import estimates_of
from nextlong.runs.statistics.measure import measure
from nextlong.runs.statistics.warnings import warnings

WORDS = (
    "harbour",
    "tide",
    "anchor",
    "sail",
    "current",
    "reef",
    "vessel",
    "captain",
    "storm",
    "rope",
    "deck",
)


def text_of(number, length=60):
    """A text that shares few runs of words with those of other numbers."""
    return " ".join(
        WORDS[(number * 7 + place * (number % 11 + 1)) % len(WORDS)] + str(number)
        for place in range(length)
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run over 80 documents of which some are wrong, left out by `filter`, copies, near-duplicates, contaminated or too many."""
    tmp_path = tmp_path_factory.mktemp("left_out")
    rows = [{"id": f"d{n}", "text": text_of(n), "lang": "en"} for n in range(80)]
    rows.insert(9, {"id": "copy", "text": text_of(3), "lang": "en"})
    rows.insert(20, {"id": "near", "text": f"{text_of(8)} more", "lang": "en"})
    rows += [
        {"id": f"foreign{n}", "text": text_of(900 + n), "lang": "de"} for n in range(4)
    ]
    rows += [{"id": "blank", "text": " ", "lang": "en"}]
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows) + "{\n"
    )
    (tmp_path / "q.json").write_text(json.dumps({"question": text_of(40, 14)}))
    source = {
        "path": str(tmp_path / "a.jsonl"),
        "name": "a",
        "filter": "lang = 'en'",
        "max_documents": 78,
    }
    plain = {
        "run_dir": str(tmp_path / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [source],
            "shard_mb": 0.01,
            "max_reject_share": 0.1,
            "dedup": "minhash",
        },
        "chunk": {"max_chars": 120},
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 300},
        "decontaminate": [str(tmp_path / "q.json")],
        "compose": {"sequences": 2, "target_tokens": 1024},
    }
    pipeline.run(Recipe.from_dict(plain))
    return nextlong.open(tmp_path / "run")


def test_every_reason_has_its_count_and_examples(run):
    found = {one.reason: one for one in measure(run).corpus.left_out}
    assert {
        reason: (one.unit, one.count)
        for reason, one in found.items()
        if not reason.startswith("shares")
    } == {
        "rejected: broken JSON": ("records", 1),
        "rejected: empty": ("records", 1),
        "removed by the source filter": ("documents", 4),
        "exact duplicate of another document": ("documents", 1),
        "over max_documents, max_chars or weight": ("documents", 3),
        "near-duplicate of another document": (
            "documents",
            found["near-duplicate of another document"].count,
        ),
    }
    (duplicate,) = found["exact duplicate of another document"].examples
    assert (duplicate.source_id, duplicate.source, duplicate.note) == (
        "copy",
        "a",
        "equals d3",
    )
    assert (
        found["removed by the source filter"]
        .examples[0]
        .source_id.startswith("foreign")
    )
    near = found["near-duplicate of another document"]
    assert {(one.source_id, one.note) for one in near.examples} <= {
        ("d8", "near-duplicate of near"),
        ("near", "near-duplicate of d8"),
    }
    shares = found["shares words with an evaluation text"]
    assert [one.source_id for one in shares.examples] == ["d40"]
    assert shares.examples[0].note.startswith("shares with q.json: ")
    assert found["rejected: broken JSON"].examples[0].source_id == "a.jsonl:88"


def _documents(run, step, kind):
    return sum(part.documents for part in run.steps[step].results(kind))


def test_counts_add_up_to_what_is_missing(run):
    left = {
        one.reason: one.count
        for one in measure(run).corpus.left_out
        if one.unit == "documents"
    }
    missing = _documents(run, "ingest", IngestResult) - _documents(
        run, "chunk", ChunkResult
    )
    assert sum(left.values()) - left["removed by the source filter"] == missing


def test_examples_over_a_cap_are_none_that_were_kept(run):
    (over,) = [
        one for one in measure(run).corpus.left_out if one.reason.startswith("over")
    ]
    kept = {span.source_id for sequence in run.sequences() for span in sequence.spans}
    assert 0 < len(over.examples) <= 5
    assert not kept & {one.source_id for one in over.examples}


def test_stats_show_them_and_the_record_holds_the_same(run, capfd):
    capfd.readouterr()
    assert cli_main.main(["stats", str(run.path), "--all"]) == 0
    out = capfd.readouterr().out
    assert "1 document: exact duplicate of another document" in out
    assert "copy · equals d3" in out
    assert cli_main.main(["stats", str(run.path), "--json"]) == 0
    reasons = json.loads(capfd.readouterr().out)
    reasons = reasons[0] if isinstance(reasons, list) else reasons
    assert reasons["corpus"]["left_out"] == json.loads(
        run.steps["filter_report"].file(".filter_report.json").read_text()
    )
    assert cli_main.main(["verify", str(run.path)]) == 0


def test_ids_of_near_duplicates_that_are_left_out_are_no_two(tmp_path):
    rows = [{"id": f"d{n}", "text": text_of(n)} for n in range(80)]
    rows += [
        {"id": f"d{n}", "text": f"{text_of(n)} more"} for n in (8, 9, 12)
    ]  # of each pair, one goes
    rows[41]["id"] = "d40"
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plain = {
        "run_dir": str(tmp_path / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(tmp_path / "a.jsonl"), "name": "a"}],
            "dedup": "minhash",
        },
        "chunk": {"max_chars": 120},
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 300},
        "compose": {"method": "standard", "sequences": 2, "target_tokens": 1024},
    }
    pipeline.run(Recipe.from_dict(plain))
    run = nextlong.open(tmp_path / "run")
    (told,) = [
        one.message for one in warnings(measure(run), run) if one.name == "same-ids"
    ]
    stay = (
        83 - run.steps["near_duplicates"].result(NearDuplicatesResult).near_duplicates
    )
    assert stay <= 80
    assert told.startswith(
        f"1 of {stay} documents have the id of an earlier one of their source"
    )
    assert "'d40' is the id of" in told


def test_where_nothing_is_left_out_nothing_is_said(shared_run):
    assert measure(nextlong.open(shared_run)).corpus.left_out == ()


def test_duplicates_by_normalized_text_are_counted_under_that_name_and_named_by_the_one_that_stays(
    tmp_path, capfd
):
    program = "def f(rows):\n    for row in rows:\n        use(row)\n    return rows\n"
    other = (
        "def f(rows):\n    for row in rows:\n        use(row)\n        return rows\n"
    )
    rows = [{"id": f"d{n}", "text": text_of(n)} for n in range(40)]
    # The second source has the one whose hash is smaller, but the first source comes
    # first.
    goes, stays = sorted((program, other), key=lambda text: content_hash(text.encode()))
    rows += [{"id": "stays", "text": stays}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows = [{"id": "goes", "text": goes}, {"id": "unwanted", "text": text_of(70)}]
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    sources = [
        {"path": str(tmp_path / "a.jsonl"), "name": "a"},
        {"path": str(tmp_path / "b.jsonl"), "name": "b", "filter": "id <> 'unwanted'"},
    ]
    plain = {
        "executor": "serial",
        "run_dir": str(tmp_path / "run"),
        "ingest": {"sources": sources},
        "chunk": {"max_chars": 120},
        "encoder": {"lsa": {"dimensions": 8}},
        "tokenizer": {"train": 300},
        "compose": {"method": "standard", "sequences": 2, "target_tokens": 512},
    }
    pipeline.run(Recipe.from_dict(plain))
    assert not [
        one
        for one in measure(nextlong.open(tmp_path / "run")).corpus.left_out
        if "duplicate" in one.reason
    ]
    plain["ingest"]["dedup"] = "normalized"
    pipeline.run(Recipe.from_dict(plain | {"run_dir": str(tmp_path / "normalized")}))
    run = nextlong.open(tmp_path / "normalized")
    (one,) = [one for one in measure(run).corpus.left_out if "duplicate" in one.reason]
    assert (one.reason, one.count) == ("normalized duplicate of another document", 1)
    (example,) = one.examples
    told = (example.source_id, example.source, example.note)
    assert told == ("goes", "b", "equals, but for case and white space, stays")
    (filtered,) = [
        one
        for one in measure(run).corpus.left_out
        if one.reason == "removed by the source filter"
    ]
    assert [(one.source_id, one.source) for one in filtered.examples] == [
        ("unwanted", "b")
    ]
    capfd.readouterr()
    assert cli_main.main(["verify", str(run.path)]) == 0


def step(name):
    return Step(name, 1, {}, (), lambda _: [])


@pytest.fixture
def recipe():
    return Recipe.from_dict(
        {
            "run_dir": "r",
            "ingest": {
                "sources": [
                    {"path": "a.jsonl", "name": "one"},
                    {"path": "b.jsonl", "name": "two"},
                ]
            },
            "tokenizer": {"train": 300},
        }
    )


def made(recipe, *others):
    return filter_report_step(
        recipe.ingest,
        [["a", "b"], ["c"]],
        step("ingest"),
        step("select"),
        [step(name) for name in others],
    )


def test_it_reads_what_leaves_documents_out_and_no_other_step(recipe):
    of = made(
        recipe,
        "minhash",
        "similar_pairs",
        "near_duplicates",
        "eval_ngrams",
        "decontaminate",
    )
    assert [one.name for one in of.inputs] == [
        "ingest",
        "select",
        "near_duplicates",
        "decontaminate",
    ]
    assert of.result is LeftOutResult
    assert [one.name for one in made(recipe).inputs] == ["ingest", "select"]
    assert of.fingerprint != made(recipe).fingerprint


def write(folder, shards):
    """Write shards of (source, id, whether it stays); the text says which document it is."""
    documents, id_hashes, keep = [], [], []
    for number, rows in enumerate(shards):
        documents.append(folder / f"{number}.documents.arrow")
        id_hashes.append(folder / f"{number}.id_hashes.npy")
        keep.append(folder / f"{number}.keep.npy")
        plain = [
            {
                "text": f"document {number}.{row}\nof  {name} " + "x" * 90,
                "content_hash": row,
                "source": source,
                "source_id": name,
            }
            for row, (source, name, _) in enumerate(rows)
        ]
        with (
            pa.OSFile(str(documents[-1]), "wb") as sink,
            pa.ipc.new_file(sink, schemas.DOCUMENTS) as writer,
        ):
            writer.write_batch(
                pa.RecordBatch.from_pylist(plain, schema=schemas.DOCUMENTS)
            )
        np.save(
            id_hashes[-1],
            np.array(
                [ord(source[0]) << 8 | ord(name) for source, name, _ in rows], np.uint64
            ),
        )
        np.save(keep[-1], np.array([stays for _, _, stays in rows], np.bool_))
    return documents, id_hashes, keep


def test_a_pair_is_told_with_how_each_begins(tmp_path):
    shards = [
        [("web", "a", True), ("web", "b", True)],
        [("books", "a", True), ("web", "b", True)],
    ]
    count, told = _same_ids(*write(tmp_path, shards))
    assert (count, told[:2]) == (1, ("web", "b"))
    assert [text[: len("document 0.1 of b x")] for text in told[2:]] == [
        "document 0.1 of b x",
        "document 1.1 of b x",
    ]
    assert max(map(len, told[2:])) <= 60


def test_an_id_of_two_sources_is_two_ids_and_one_left_out_is_none(tmp_path):
    shards = [[("web", "a", True), ("books", "a", True)], [("web", "a", False)], []]
    assert _same_ids(*write(tmp_path, shards)) == (0, ())


ROWS = st.lists(
    st.tuples(st.sampled_from("wb"), st.sampled_from("abcd"), st.booleans()), max_size=6
)


@given(st.lists(ROWS, max_size=4))
def test_each_document_after_the_first_of_its_id_counts(tmp_path_factory, shards):
    count, told = _same_ids(*write(tmp_path_factory.mktemp("ids"), shards))
    held = Counter(
        (source, name) for rows in shards for source, name, stays in rows if stays
    )
    assert count == held.total() - len(held)
    assert held[told[:2]] > 1 if told else count == 0


def test_no_more_is_held_than_plan_says(recipe_for, tmp_path):
    shards, rows = 8, 50_000
    paths = [
        (tmp_path / f"{shard}.id_hashes.npy", tmp_path / f"{shard}.keep.npy")
        for shard in range(shards)
    ]
    for shard, (hashes, keep) in enumerate(paths):
        np.save(hashes, np.arange(shard, shards * rows, shards, np.uint64))
        np.save(keep, np.ones(rows, np.bool_))
    recipe = recipe_for(tmp_path)
    (step,) = [
        step
        for step in pipeline.route(recipe, input_files(recipe.ingest))
        if step.name == "filter_report"
    ]
    tracemalloc.start()
    try:
        assert _same_ids([], *zip(*paths, strict=True)) == (0, ())
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    told = estimates_of(recipe, [step])[step.name].memory(
        Amounts(documents=shards * rows)
    )
    assert 0.9 * told < held < 1.3 * told


def test_records_of_an_archive_that_are_no_documents_are_counted_by_reason(
    tmp_path, capfd
):
    pages = [
        response(f"http://a/{number}", page_of(text_of(number, 200)).encode())
        for number in range(30)
    ]
    missing = response("http://a/x", b"gone", status="HTTP/1.1 404 Not Found")
    image = response("http://a/y", b"\x89PNG", headers=["Content-Type: image/png"])
    broken = response("http://a/z", b"\x00", headers=["Content-Encoding: br"])
    archive = tmp_path / "a.warc"
    archive.write_bytes(joined([*pages[:20], missing, broken, image, image]))
    (tmp_path / "b.warc").write_bytes(joined([*pages[20:], image]))
    recipe = {
        "run_dir": str(tmp_path / "run"),
        "executor": "serial",
        "ingest": {
            "sources": [{"path": str(tmp_path / "*.warc")}],
            "max_reject_share": 0.04,
        },
        "tokenizer": {"train": 512},
        "compose": {"method": "standard", "sequences": 2, "target_tokens": "1k"},
    }
    path = tmp_path / "r.json"
    path.write_text(json.dumps(recipe))
    # Three of 35 records are images: only one of 31 counts as a reject.
    assert cli_main.main(["run", str(path)]) == 0
    assert "30 kept of 35" in capfd.readouterr().out
    found = {
        one.reason: (one.count, [example.source_id for example in one.examples])
        for one in measure(nextlong.open(tmp_path / "run")).corpus.left_out
    }
    assert found == {
        "rejected: broken HTTP response": (1, ["a.warc:22"]),
        "skipped: HTTP status 404": (1, ["a.warc:21"]),
        "skipped: content type image/*": (3, ["a.warc:23"]),
    }
    archive.write_bytes(joined([missing, image]))
    (tmp_path / "b.warc").unlink()
    recipe["run_dir"] = str(tmp_path / "none")
    path.write_text(json.dumps(recipe))
    for command in ("run", "plan"):
        assert cli_main.main([command, str(path)]) == 2
        assert "HTTP status 404" in " ".join(capfd.readouterr().err.split())
