import itertools
import json
import re

import numpy as np
import pytest
from tests.support import check_names
from tests.support.damage import (
    breaches,
    change_array,
    change_recipe,
    change_rows,
    change_sequence,
    end_process,
    files,
    first_sequence,
    outcomes,
    read_batches,
    rehash,
    spans_of,
)
from tests.support.larger_cases import thorough

from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.schemas import META, NEGATIVE, ROW_MASK, SHARD_BITS
from nextlong.verify import checks
from nextlong.verify.checks import verify

ALL = 100_000  # a sample of everything


LISTS = ("chunk_id", "role", "group", "token_start", "token_end", "score")


def test_checks_side_by_side_find_what_they_find_one_by_one(finished, monkeypatch):
    one_by_one = list(verify(finished))
    monkeypatch.setattr(checks, "_WORTH_PROCESSES_BYTES", 0)
    told = []
    assert list(verify(finished, workers=2, starting=told.append)) == one_by_one
    assert told == ["hashes", *checks.CHECKS]


def test_a_sound_run_passes_every_check(finished):
    outcomes = {outcome.check: outcome for outcome in verify(finished, sample=ALL)}
    assert {
        name: outcome.examples
        for name, outcome in outcomes.items()
        if outcome.result != "pass"
    } == {}
    assert outcomes["parquet rows"].checked == outcomes["jsonl rows"].checked == 4
    assert outcomes["documents"].checked == 260
    assert (
        outcomes[check_names.CANDIDATES].checked
        == outcomes[check_names.NEAREST].checked
        >= 12
    )
    assert (
        outcomes[check_names.VECTORS_AGAIN].checked
        == outcomes[check_names.TILES].checked
    )


@pytest.mark.parametrize(
    "override", ["compose.method=standard", "compose.negatives=self-repeat"]
)
def test_a_run_of_another_kind_passes_what_applies_to_it(
    recipe_for, started, tmp_path, override
):
    pipeline.run(recipe_for(started(tmp_path / "run"), "compose.sequences=4", override))
    outcomes = list(verify(tmp_path / "run"))
    assert {
        outcome.check: outcome.examples for outcome in outcomes if outcome.breaches
    } == {}
    assert {outcome.check for outcome in outcomes if outcome.not_needed} >= {
        check_names.COPIES
    }


def test_a_shifted_border_between_spans(run):
    def alter(row):
        lengths = [
            end - start
            for start, end in zip(row["token_start"], row["token_end"], strict=True)
        ]
        span = next(span for span in spans_of(row, NEGATIVE) if lengths[span + 1] > 1)
        row["token_end"][span] += 1
        row["token_start"][span + 1] += 1

    change_sequence(run, alter)
    assert "is longer" in breaches(run, "sequences")[check_names.SPANS]


def test_a_gap_between_spans(run):
    def alter(row):
        row["token_start"][3] += 1

    change_sequence(run, alter)
    assert "sequence 0 span 3 " in breaches(run, "sequences")[check_names.SPANS]


def test_a_sequence_that_is_too_short(run):
    def alter(row):
        for name in LISTS:
            row[name].pop()

    change_sequence(run, alter)
    found = breaches(run, "sequences")
    assert (
        "sequence 0 has 1,023 tokens, compose.target_tokens is 1,024"
        in found[check_names.SPANS]
    )
    assert "eos at" in found[check_names.SEPARATORS]


def test_a_sequence_whose_lists_are_not_of_one_length(run):
    change_sequence(run, lambda row: row["score"].pop())
    for group in ("sequences", "search", "exports"):
        assert "different lengths" in breaches(run, group)[group]


def test_a_separator_that_is_missing(run):
    def alter(row):
        span = row["role"].index(3)
        for name in LISTS:
            row[name].pop(span)
        row["token_end"][span - 1] += 1

    change_sequence(run, alter)
    assert "no separator" in breaches(run, "sequences")[check_names.SEPARATORS]


def test_two_negatives_swapped(run):
    def alter(row):
        one, other = next(
            (one, other)
            for one, other in itertools.combinations(spans_of(row, NEGATIVE), 2)
            if row["group"][one] == row["group"][other]
            and row["score"][one] > row["score"][other] + 0.01
        )
        for name in ("chunk_id", "score"):
            row[name][one], row[name][other] = row[name][other], row[name][one]

    change_sequence(run, alter)
    assert "precedes a" in breaches(run, "search")[check_names.SCORES]


def test_a_negative_of_the_meta_document(run):
    def alter(row):
        row["chunk_id"][spans_of(row, NEGATIVE)[0]] = row["chunk_id"][
            spans_of(row, META)[1]
        ]

    change_sequence(run, alter)
    found = breaches(run, "sequences")
    assert "part of" in found[check_names.OTHER_DOCUMENTS]
    assert "sequence 0 holds " in found[check_names.UNREPEATED]


def test_a_negative_that_stands_twice(run):
    def alter(row):
        first, *_, last = spans_of(row, NEGATIVE)
        row["chunk_id"][first] = row["chunk_id"][last]

    change_sequence(run, alter)
    found = breaches(run, "sequences")
    assert "sequence 0 holds " in found[check_names.UNREPEATED]
    assert check_names.OTHER_DOCUMENTS not in found


def test_meta_chunks_out_of_order(run):
    def alter(row):
        first, second = spans_of(row, META)[:2]
        row["chunk_id"][first], row["chunk_id"][second] = (
            row["chunk_id"][second],
            row["chunk_id"][first],
        )

    change_sequence(run, alter)
    assert re.search(
        "is in the place of .* · chunk 1$",
        breaches(run, "sequences")[check_names.ORDER],
    )


def test_a_meta_chunk_that_is_missing(run):
    def alter(row):
        row["role"][spans_of(row, META)[-1]] = NEGATIVE

    change_sequence(run, alter)
    assert "its meta-document" in breaches(run, "sequences")[check_names.ORDER]


def test_a_meta_document_that_stands_in_two_sequences(run):
    paths = files(run, "compose", ".sequences.arrow")
    change_rows(paths[1], lambda rows: rows.__setitem__(0, first_sequence(run)))
    assert "already in" in breaches(run, "sequences")[check_names.DOCUMENTS_ONCE]


def test_a_sequence_under_a_false_name(run):
    change_sequence(
        run, lambda row: row.update(sequence_id="nextlong-0123456789abcdef")
    )
    assert "nextlong-0123456789abcdef" in breaches(run, "sequences")[check_names.KEYS]


def test_a_chunk_used_more_often_than_allowed(run):
    change_recipe(run, "compose", "max_uses", 4)
    assert check_names.USES not in breaches(run, "sequences")
    change_recipe(run, "compose", "max_uses", 1)
    assert "is a negative in" in breaches(run, "sequences")[check_names.USES]


def test_an_altered_jsonl_row_and_a_missing_one(run):
    path = files(run, "jsonl", ".jsonl")[0]
    first, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    row = json.loads(first)
    row["text"] = row["text"][:7] + "§" + row["text"][8:]
    path.write_text("".join([json.dumps(row) + "\n", *others]), encoding="utf-8")
    rehash(path)
    ((check, example),) = breaches(run).items()
    assert check == "jsonl rows"
    assert "at character 7" in example
    path.write_text("".join(others), encoding="utf-8")
    rehash(path)
    assert breaches(run, "exports").keys() == {"jsonl rows"}


def plant_copy(run, *, changed_words):
    """Make one negative the beginning of the meta-document, every n-th word changed."""
    row = first_sequence(run)
    documents, chunks = (
        files(run, "ingest", ".documents.arrow"),
        files(run, "chunk", ".chunks.arrow"),
    )
    tables = [
        [row for batch in read_batches(path)[0] for row in batch.to_pylist()]
        for path in chunks
    ]

    def chunk(span):
        name = row["chunk_id"][span]
        return name >> SHARD_BITS, tables[name >> SHARD_BITS][name & ROW_MASK]

    shard, meta = chunk(spans_of(row, META)[0])
    texts = [
        own["text"]
        for batch in read_batches(documents[shard])[0]
        for own in batch.to_pylist()
    ]
    words = texts[meta["doc_row"]].split()
    words[changed_words - 1 :: changed_words] = ["changed"] * len(
        words[changed_words - 1 :: changed_words]
    )
    shard, negative = next(
        found
        for found in map(chunk, spans_of(row, NEGATIVE))
        if found[1]["end"] - found[1]["start"] > 120
    )

    def alter(rows):
        own = rows[negative["doc_row"]]
        copy = " ".join(words)[: negative["end"] - negative["start"]]
        own["text"] = (
            own["text"][: negative["start"]]
            + copy
            + own["text"][negative["start"] + len(copy) :]
        )

    change_rows(documents[shard], alter)


@pytest.mark.parametrize(
    ("changed_words", "is_copy"), [(1000, True), (20, True), (4, False)]
)
def test_a_near_duplicate_is_a_breach_where_the_recipe_asked_for_none(
    run, changed_words, is_copy
):
    plant_copy(run, changed_words=changed_words)
    change_recipe(run, "mine", "near_duplicates", 0.8)
    found = breaches(run, "near-duplicates").get("near-duplicates among negatives", "")
    assert ("the meta-document" in found) == is_copy


def test_near_duplicates_are_counted_where_the_recipe_did_not_ask(run):
    plant_copy(run, changed_words=1000)
    change_recipe(run, "mine", "near_duplicates", None)
    outcome = outcomes(run, "near-duplicates")["near-duplicates among negatives"]
    assert outcome.breaches == 0
    assert outcome.note.startswith("1 found")


@pytest.mark.parametrize("asked", [0.8, *thorough(None)])
def test_processes_find_together_what_one_finds(run, monkeypatch, asked):
    plant_copy(run, changed_words=1000)
    change_recipe(run, "mine", "near_duplicates", asked)
    one_by_one = list(verify(run))
    (copies,) = (
        found
        for found in one_by_one
        if found.check == "near-duplicates among negatives"
    )
    assert (copies.breaches == 1) == (asked is not None)
    monkeypatch.setattr(checks, "_WORTH_PROCESSES_BYTES", 0)
    assert list(verify(run, workers=3)) == one_by_one
    files(run, "weights", ".weights.npy")[0].write_bytes(b"torn")
    torn = {
        outcome.check: outcome.examples
        for outcome in verify(run, workers=2)
        if outcome.unit == "files"
    }
    assert torn == {
        outcome.check: outcome.examples
        for outcome in verify(run)
        if outcome.unit == "files"
    }
    assert ("near-duplicates" in torn) == (asked is not None)


def test_the_same_sample_for_the_same_seed(run):
    change_array(
        files(run, "embed", ".vectors.npy")[0],
        lambda vectors: np.negative(vectors, out=vectors),
    )
    first, again, other = (
        breaches(run, "vectors", sample=9, seed=seed).get("vectors encoded again")
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_no_finished_run_is_the_users_mistake(tmp_path):
    with pytest.raises(RunError, match="finished run"):
        list(verify(tmp_path))
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(RunError, match="the record"):
        list(verify(tmp_path))


def test_the_command_says_what_it_found_and_exits_accordingly(run, capsys):
    assert main(["verify", str(run), "--sample", "5"]) == 0
    assert "no breach" in capsys.readouterr().out
    change_sequence(
        run, lambda row: row["score"].__setitem__(spans_of(row, NEGATIVE)[0], 0.0)
    )
    assert main(["verify", str(run)]) == 1
    assert "sequence 0 span " in capsys.readouterr().out
    assert main(["verify", str(run), "--json", "--sample", "0"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["passed"] is False
    assert {
        check["check"] for check in said["checks"] if check["result"] == "breach"
    } >= {check_names.SCORES}
    assert main(["verify", str(run), "--sample", "-1"]) == 2
    assert main(["verify", str(run / "nowhere")]) == 2


def test_a_killed_process_is_said_with_what_to_do(run, monkeypatch):
    monkeypatch.setattr(checks, "_WORTH_PROCESSES_BYTES", 0)
    monkeypatch.setattr(checks, "_check", end_process)
    with pytest.raises(RunError, match="--workers 1"):
        list(verify(run, workers=2))
