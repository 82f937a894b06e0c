"""Each kind of damage, one at a time, is found by the check that is there for it, hashes in order or not."""

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from damage import (
    change_array,
    change_recipe,
    change_rows,
    change_sequence,
    files,
    first_sequence,
    read_batches,
    rehash,
    spans_of,
)
from exported_runs import record_of
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.schemas import META, NEGATIVE, ROW_MASK, SHARD_BITS
from nextlong.verify import checks
from nextlong.verify.checks import verify

ALL = 100_000  # a sample of everything
LISTS = ("chunk_id", "role", "group", "token_start", "token_end", "score")


@pytest.fixture(scope="module")
def finished(recipe_for, tmp_path_factory):
    """A run whose candidates are fewer than its chunks; read-only."""
    run_dir = tmp_path_factory.mktemp("verify") / "run"
    overrides = ["mine.fetch=100", "compose.sequences=4", "compose.target_tokens=1024", "compose.min_meta_chunks=3"]
    pipeline.run(recipe_for(run_dir, *overrides, "tokenizer.eos=<|endoftext|>"))
    return run_dir


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def breaches(run, **options):
    """Return what each check that found a breach says first."""
    return {outcome.check: outcome.examples[0] for outcome in verify(run, **options) if outcome.breaches}


def test_checks_side_by_side_find_what_they_find_one_by_one(finished, monkeypatch):
    one_by_one = list(verify(finished))
    monkeypatch.setattr(checks, "_WORTH_PROCESSES_BYTES", 0)
    told = []
    assert list(verify(finished, workers=2, starting=told.append)) == one_by_one
    assert told == ["hashes", *checks._CHECKS]


def test_a_sound_run_passes_every_check(finished):
    outcomes = {outcome.check: outcome for outcome in verify(finished, sample=ALL)}
    assert {name: outcome.examples for name, outcome in outcomes.items() if outcome.result != "pass"} == {}
    assert outcomes["parquet rows"].checked == outcomes["jsonl rows"].checked == 4
    assert outcomes["documents"].checked == 260
    assert outcomes["candidates searched again"].checked == outcomes["negatives are the nearest free"].checked >= 12
    assert outcomes["vectors encoded again"].checked == outcomes["chunks tile documents"].checked


@pytest.mark.parametrize("override", ["compose.method=standard", "compose.negatives=self-repeat"])
def test_a_run_of_another_kind_passes_what_applies_to_it(recipe_for, tmp_path, override):
    pipeline.run(recipe_for(tmp_path / "run", "compose.sequences=4", override))
    outcomes = list(verify(tmp_path / "run"))
    assert {outcome.check: outcome.examples for outcome in outcomes if outcome.breaches} == {}
    assert {outcome.check for outcome in outcomes if outcome.skipped} >= {"near-copies among negatives"}


def test_a_changed_byte_and_a_missing_file_are_found_by_their_hashes(run):
    path = files(run, "draft", ".drafts.arrow")[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert set(breaches(run)) == {"hashes"}
    path.unlink()
    assert "is missing" in breaches(run)["hashes"]


def test_a_file_that_cannot_be_read_is_a_breach_and_no_error(run):
    files(run, "embed", ".vectors.npy")[0].write_bytes(b"not an array")
    found = breaches(run)
    assert "bytes" in found["hashes"]
    assert "could not be checked" in found["vectors"]


@pytest.mark.parametrize("damaged", [b"{", b'{"version": "1.0"}', b""])
def test_a_damaged_tokenizer_is_a_breach_and_no_error(run, capsys, damaged):
    (path,) = files(run, "tokenizer", ".tokenizer.json")
    path.write_bytes(damaged)
    rehash(path)
    assert "is no tokenizer.json" in breaches(run)["tokens"]
    assert main(["verify", str(run), "--sample", "5"]) == 1
    assert "is no tokenizer.json" in capsys.readouterr().out


def test_a_step_that_was_made_from_others_is_found(run):
    path = files(run, "compose", "manifest.json")[0]
    manifest = json.loads(path.read_text())
    manifest["inputs"]["draft"] = "0" * 12
    path.write_text(json.dumps(manifest))
    assert "made from draft 000000000000" in breaches(run)["manifests"]


def test_an_altered_document(run):
    def alter(rows):
        rows[0]["text"] = "Z" + rows[0]["text"][1:]

    change_rows(files(run, "ingest", ".documents.arrow")[0], alter)
    assert "document 0 has the hash" in breaches(run)["documents"]


def test_chunks_with_a_gap(run):
    def alter(rows):
        rows[0]["end"] -= 1

    change_rows(files(run, "chunk", ".chunks.arrow")[0], alter)
    assert "document 0: " in breaches(run)["chunks tile documents"]


def test_a_changed_token(run):
    chunk = first_sequence(run)["chunk_id"][spans_of(first_sequence(run), META)[0]]
    shard, row = chunk >> SHARD_BITS, chunk & ROW_MASK
    place = np.searchsorted(np.load(files(run, "named_chunks", ".rows.npy")[shard]), row)
    at = np.load(files(run, "tokens", ".offsets.npy")[shard])[place] + 2

    def alter(ids):
        ids[at] = 5 if ids[at] != 5 else 6

    change_array(files(run, "tokens", ".ids.npy")[shard], alter)
    found = breaches(run)
    assert f"chunk {chunk}: token 2 is " in found["token ids"]
    assert f"chunk {chunk} at character" in found["decoded text"]
    assert "row 0: input_ids[" in found["parquet rows"]
    assert "hashes" not in found


def test_wrong_joints_of_the_tokenizer(run):
    path = files(run, "tokenizer", "manifest.json")[0]
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["counts"]["joint_ids"] = [7]
    path.write_text(json.dumps(manifest))
    assert "joint_ids is [7]" in breaches(run)["token ids"]


def test_a_shifted_border_between_spans(run):
    def alter(row):
        lengths = [end - start for start, end in zip(row["token_start"], row["token_end"], strict=True)]
        span = next(span for span in spans_of(row, NEGATIVE) if lengths[span + 1] > 1)
        row["token_end"][span] += 1
        row["token_start"][span + 1] += 1

    change_sequence(run, alter)
    assert "is longer than its chunk" in breaches(run)["spans tile the sequence"]


def test_a_gap_between_spans(run):
    def alter(row):
        row["token_start"][3] += 1

    change_sequence(run, alter)
    assert "sequence 0 span 3 " in breaches(run)["spans tile the sequence"]


def test_a_sequence_that_is_too_short(run):
    def alter(row):
        for name in LISTS:
            row[name].pop()

    change_sequence(run, alter)
    found = breaches(run)
    assert "sequence 0 has 1,023 tokens, compose.target_tokens is 1,024" in found["spans tile the sequence"]
    assert "has eos at spans []" in found["joints, bos, eos"]


def test_a_joint_that_is_missing(run):
    def alter(row):
        span = row["role"].index(3)
        for name in LISTS:
            row[name].pop(span)
        row["token_end"][span - 1] += 1

    change_sequence(run, alter)
    assert "has no joint after it" in breaches(run)["joints, bos, eos"]


def test_two_negatives_swapped(run):
    def alter(row):
        one, other = next(
            (one, other)
            for one, other in itertools.combinations(spans_of(row, NEGATIVE), 2)
            if row["group"][one] == row["group"][other] and row["score"][one] > row["score"][other] + 0.01
        )
        for name in ("chunk_id", "score"):
            row[name][one], row[name][other] = row[name][other], row[name][one]

    change_sequence(run, alter)
    assert "stands before one that is nearer" in breaches(run)["scores are cosines"]


def test_a_wrong_score(run):
    def alter(row):
        row["score"][spans_of(row, NEGATIVE)[0]] -= 0.1

    change_sequence(run, alter)
    assert "the cosine is" in breaches(run)["scores are cosines"]


def test_a_negative_of_the_meta_document(run):
    def alter(row):
        row["chunk_id"][spans_of(row, NEGATIVE)[0]] = row["chunk_id"][spans_of(row, META)[1]]

    change_sequence(run, alter)
    found = breaches(run)
    assert "is of the meta-document" in found["negatives of other documents"]
    assert "sequence 0 holds chunk" in found["no chunk twice"]


def test_a_negative_that_stands_twice(run):
    def alter(row):
        first, *_, last = spans_of(row, NEGATIVE)
        row["chunk_id"][first] = row["chunk_id"][last]

    change_sequence(run, alter)
    found = breaches(run)
    assert "sequence 0 holds chunk" in found["no chunk twice"]
    assert "negatives of other documents" not in found


def test_meta_chunks_out_of_order(run):
    def alter(row):
        first, second = spans_of(row, META)[:2]
        row["chunk_id"][first], row["chunk_id"][second] = row["chunk_id"][second], row["chunk_id"][first]

    change_sequence(run, alter)
    assert "stands where meta-chunk 0" in breaches(run)["order and completeness"]


def test_a_meta_chunk_that_is_missing(run):
    def alter(row):
        row["role"][spans_of(row, META)[-1]] = NEGATIVE

    change_sequence(run, alter)
    assert "chunks of its meta-document" in breaches(run)["order and completeness"]


def test_a_meta_document_that_stands_in_two_sequences(run):
    paths = files(run, "compose", ".sequences.arrow")
    change_rows(paths[1], lambda rows: rows.__setitem__(0, first_sequence(run)))
    assert "stands in an earlier one" in breaches(run)["documents across sequences"]


def test_a_sequence_under_a_false_name(run):
    change_sequence(run, lambda row: row.update(sequence_id="nextlong-0123456789abcdef"))
    assert "is called nextlong-0123456789abcdef" in breaches(run)["sequence ids and keys"]


def test_a_chunk_used_more_often_than_allowed(run):
    change_recipe(run, "compose", "max_uses", 4)
    assert "uses of a negative" not in breaches(run)
    change_recipe(run, "compose", "max_uses", 1)
    assert "is a negative in" in breaches(run)["uses of a negative"]


def true_neighbours(run, meta, own):
    """Return ids and cosines of all chunks outside `own`, nearest first."""
    shards = [np.load(path).astype(np.float32) for path in files(run, "embed", ".vectors.npy")]
    vectors = np.concatenate(shards)
    ids = np.concatenate([(shard << SHARD_BITS) + np.arange(len(rows)) for shard, rows in enumerate(shards)])
    scores = vectors @ vectors[np.flatnonzero(ids == meta)[0]]
    order = np.argsort(-scores, kind="stable")
    order = order[~np.isin(ids[order], own)]
    return ids[order], scores[order]


def test_a_candidate_replaced_by_a_farther_one(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    ids, scores = true_neighbours(run, own[0], own)

    def alter(rows):
        (candidates,) = (candidates for candidates in rows if candidates["chunk_id"] == own[0])
        candidates["neighbour_ids"] = [*candidates["neighbour_ids"][1:], int(ids[100])]
        candidates["scores"] = [*candidates["scores"][1:], float(scores[100])]

    for path in files(run, "mine", ".candidates.arrow"):
        if own[0] in [
            candidates for batch in read_batches(path)[0] for candidates in batch.column("chunk_id").to_pylist()
        ]:
            change_rows(path, alter)
    found = breaches(run, sample=ALL)
    assert set(found) == {"candidates searched again"}
    assert f"the nearest by brute force is {ids[0]}" in found["candidates searched again"]


def test_a_negative_that_is_not_the_nearest_free_one(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    span = next(span for span in reversed(spans_of(row, NEGATIVE)) if row["group"][span] == 0)
    ids, scores = true_neighbours(run, own[0], own)

    def alter(row):
        row["chunk_id"][span], row["score"][span] = int(ids[99]), float(scores[99])

    change_sequence(run, alter)
    assert "is free and nearer to meta-chunk" in breaches(run, sample=ALL)["negatives are the nearest free"]


def test_a_vector_that_is_not_the_encoders(run):
    def alter(vectors):
        vectors[3] = -vectors[3]

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    found = breaches(run, sample=ALL)
    assert "the vector of chunk 3 has the cosine -1.0000" in found["vectors encoded again"]
    assert "vectors have unit length" not in found


def test_a_vector_that_is_too_short(run):
    def alter(vectors):
        vectors[3] /= 2

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    (told,) = re.findall(r"chunk 3 has the length ([\d.]+)", breaches(run, sample=0)["vectors have unit length"])
    assert float(told) == pytest.approx(0.5, abs=0.001)


def change_parquet(run, change):
    path = files(run, "parquet", ".parquet")[0]
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows[0])
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    rehash(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row: row["input_ids"].__setitem__(9, row["input_ids"][9] + 1), "row 0: input_ids[9] is "),
        (lambda row: row["input_ids"].pop(), "row 0: 1,023 ids, should be 1,024"),
        (lambda row: row.update(seq_lengths=[1, 1023]), "row 0: seq_lengths is [1, 1023], should be [1024]"),
        (lambda row: row["spans"][2].update(source_id="x"), "row 0: spans[2].source_id is 'x'"),
        (lambda row: row["spans"][0].update(char_end=1), "row 0: spans[0].char_end is 1"),
        (lambda row: row["spans"].pop(), "spans, should be"),
    ],
)
def test_an_altered_parquet_row(run, change, problem):
    change_parquet(run, change)
    found = breaches(run)
    assert set(found) == {"parquet rows"}
    assert problem in found["parquet rows"]


def test_an_altered_jsonl_row_and_a_missing_one(run):
    path = files(run, "jsonl", ".jsonl")[0]
    first, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    row = json.loads(first)
    row["text"] = row["text"][:7] + "§" + row["text"][8:]
    path.write_text("".join([json.dumps(row) + "\n", *others]), encoding="utf-8")
    rehash(path)
    assert breaches(run).keys() == {"jsonl rows"}
    assert "at character 7" in breaches(run)["jsonl rows"]
    path.write_text("".join(others), encoding="utf-8")
    rehash(path)
    assert breaches(run).keys() == {"jsonl rows"}


def plant_copy(run, *, changed_words):
    """Make one negative the beginning of the meta-document, every n-th word changed."""
    row = first_sequence(run)
    documents, chunks = files(run, "ingest", ".documents.arrow"), files(run, "chunk", ".chunks.arrow")
    tables = [[row for batch in read_batches(path)[0] for row in batch.to_pylist()] for path in chunks]

    def chunk(span):
        name = row["chunk_id"][span]
        return name >> SHARD_BITS, tables[name >> SHARD_BITS][name & ROW_MASK]

    shard, meta = chunk(spans_of(row, META)[0])
    texts = [own["text"] for batch in read_batches(documents[shard])[0] for own in batch.to_pylist()]
    words = texts[meta["doc_row"]].split()
    words[changed_words - 1 :: changed_words] = ["changed"] * len(words[changed_words - 1 :: changed_words])
    shard, negative = next(
        found for found in map(chunk, spans_of(row, NEGATIVE)) if found[1]["end"] - found[1]["start"] > 120
    )

    def alter(rows):
        own = rows[negative["doc_row"]]
        copy = " ".join(words)[: negative["end"] - negative["start"]]
        own["text"] = own["text"][: negative["start"]] + copy + own["text"][negative["start"] + len(copy) :]

    change_rows(documents[shard], alter)


@pytest.mark.parametrize(("changed_words", "is_copy"), [(1000, True), (20, True), (4, False)])
def test_a_near_copy_is_a_breach_where_the_recipe_asked_for_none(run, changed_words, is_copy):
    plant_copy(run, changed_words=changed_words)
    change_recipe(run, "mine", "near_copies", 0.8)
    found = breaches(run).get("near-copies among negatives", "")
    assert ("the meta-document" in found) == is_copy


def test_near_copies_are_counted_where_the_recipe_did_not_ask(run):
    plant_copy(run, changed_words=1000)
    change_recipe(run, "mine", "near_copies", None)
    (outcome,) = (found for found in verify(run) if found.check == "near-copies among negatives")
    assert outcome.breaches == 0
    assert outcome.note.startswith("1 found")


def test_the_same_sample_for_the_same_seed(run):
    change_array(files(run, "embed", ".vectors.npy")[0], lambda vectors: np.negative(vectors, out=vectors))
    first, again, other = (breaches(run, sample=9, seed=seed).get("vectors encoded again") for seed in (1, 1, 2))
    assert first == again != other


def test_a_state_is_verified_by_its_name(run):
    shutil.move(record_of(run), run / "states" / "top.json")
    (run / "run.json").unlink()
    assert all(outcome.result == "pass" for outcome in verify(Path(f"{run}@top")))
    with pytest.raises(RunError, match="holds no finished run"):
        list(verify(Path(f"{run}@tail")))


def test_no_finished_run_is_the_users_mistake(tmp_path):
    with pytest.raises(RunError, match="holds no finished run"):
        list(verify(tmp_path))
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(RunError, match="is not the record of a run"):
        list(verify(tmp_path))


def test_the_command_says_what_it_found_and_exits_accordingly(run, capsys):
    assert main(["verify", str(run), "--sample", "5"]) == 0
    assert "no breach" in capsys.readouterr().out
    change_sequence(run, lambda row: row["score"].__setitem__(spans_of(row, NEGATIVE)[0], 0.0))
    assert main(["verify", str(run)]) == 1
    assert "scores are cosines: sequence 0 span " in capsys.readouterr().out
    assert main(["verify", str(run), "--json", "--sample", "0"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["passed"] is False
    assert {check["check"] for check in said["checks"] if check["result"] == "breach"} >= {"scores are cosines"}
    assert main(["verify", str(run), "--sample", "-1"]) == 2
    assert main(["verify", str(run / "nowhere")]) == 2
