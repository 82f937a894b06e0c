"""The numbers of a real run against the same numbers counted span by span in plain Python, and the page that shows them."""

import io
import json
import shutil
from collections import Counter
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from rich.console import Console
from tests.support.changed_stats import changed
from tests.support.counted import counts_of, total
from tests.support.exported_runs import exported
from tests.support.larger_cases import thorough

import nextlong
from nextlong import pipeline
from nextlong.artifacts import variant_records
from nextlong.errors import RunError
from nextlong.report import compare
from nextlong.runs import export as runs_export
from nextlong.runs.card import card_numbers
from nextlong.runs.statistics import measure as statistics
from nextlong.runs.statistics.compute import compute
from nextlong.runs.statistics.measure import measure, read
from nextlong.schemas import DropReason
from nextlong.verify.files import check_files
from nextlong.verify.run_files import StoredRun


def test_yield(run, measured):
    told = measured.yields
    (drawn,) = counts_of(run.steps["meta_documents"])
    assert (told.asked, told.kept, measured.sequences, measured.tokens.total) == (
        12,
        12,
        12,
        12 * 2048,
    )
    assert (told.documents, told.eligible, told.drawn) == (
        drawn["documents"],
        drawn["eligible"],
        12 + 3 + 8,
    )
    assert (
        told.drafts
        == told.drawn
        == told.kept + told.spare + told.untried + sum(told.dropped.values())
    )
    assert told.kept + told.spare == total(run.steps["compose"], "sequences") == 16
    assert told.untried == 7


def test_every_document_of_the_corpus_is_measured(run, measured, small_corpus):
    texts = [
        json.loads(line)["text"]
        for path in small_corpus.iterdir()
        for line in path.read_text().splitlines()
    ]
    lengths = sorted(map(len, dict.fromkeys(texts)))
    assert (
        measured.corpus.document_chars.count,
        measured.corpus.document_chars.max,
    ) == (
        len(lengths),
        lengths[-1],
    )
    assert measured.corpus.document_chars.mean == pytest.approx(fmean(lengths))
    assert sum(own.count for own in measured.corpus.document_chars.histogram) == len(
        lengths
    )


def test_leaks(measured):
    assert (measured.negatives.from_own_document, measured.chunks.repeated) == (0, 0)


def test_mix(run, measured, sequences):
    roles = Counter()
    for sequence in run.sequences():
        for span in sequence.spans:
            roles[span.role] += span.token_end - span.token_start
    assert measured.tokens.by_role == roles
    assert measured.tokens.meta_share == roles["meta"] / measured.tokens.total
    assert measured.tokens.by_source == {"small": roles["meta"] + roles["negative"]}
    per_sequence = [len({span.doc_id for span in spans}) for spans in sequences]
    assert measured.documents.per_sequence.mean == pytest.approx(fmean(per_sequence))
    assert measured.documents.per_sequence.max == max(per_sequence)
    assert measured.documents.distinct == len(
        {span.doc_id for spans in sequences for span in spans}
    )


def test_characters_per_token_of_whole_chunks(run, measured, sequences):
    chars = tokens = 0
    for spans in sequences:
        for span in spans:
            (text,) = run.corpus.texts(np.array([span.chunk_id]))
            length = len(run.tokenizer.encode(text, add_special_tokens=False).ids)
            if length == span.token_end - span.token_start:
                chars += len(text)
                tokens += length
    assert measured.tokens.chars_per_token == pytest.approx(chars / tokens)


def test_sources_are_told_apart_the_largest_first(few_recipe, small_corpus, tmp_path):
    sources = [
        {"path": str(small_corpus / f"{number}.jsonl"), "name": name}
        for number, name in enumerate("abcd")
    ]
    recipe = few_recipe(tmp_path / "run", f"ingest.sources={json.dumps(sources)}")
    pipeline.run(recipe)
    run = nextlong.open(tmp_path / "run")
    letters = {
        json.loads(line)["id"]: name
        for number, name in enumerate("abcd")
        for line in (small_corpus / f"{number}.jsonl").read_text().splitlines()
    }
    tokens = Counter()
    for sequence in run.sequences():
        for span in sequence.spans:
            if span.doc_id >= 0:
                tokens[letters[span.source_id]] += span.token_end - span.token_start
    measured = measure(run)
    assert list(measured.tokens.by_source.items()) == tokens.most_common()
    cosines = {
        name: [] for name in "abcd"
    }  # of the negatives of each source's meta-documents
    for sequence in run.sequences():
        (owner,) = {span.source_id for span in sequence.spans if span.role == "meta"}
        cosines[letters[owner]] += [
            span.score for span in sequence.spans if span.role == "negative"
        ]
    told = {
        name: (one.mean, one.count)
        for name, one in measured.similarity.by_source.items()
    }
    assert told == {
        name: (pytest.approx(fmean(own), abs=1e-4), len(own))
        for name, own in cosines.items()
        if own
    }


def test_many_blocks_give_what_one_gives(run, measured, monkeypatch):
    monkeypatch.setattr("nextlong.runs.statistics.spans._BLOCK_SPANS", 1)
    again = measure(run)
    cosine = measured.similarity.cosine
    assert again.similarity.cosine.mean == pytest.approx(cosine.mean, rel=1e-12)
    # Sums of floats, in another order.
    close = {
        "similarity.cosine.mean": cosine.mean,
        "similarity.by_rank": measured.similarity.by_rank,
    }
    assert changed(again, close) == measured


def test_sequences_too_short_are_counted(recipe_for, own_run):
    pipeline.run(
        recipe_for(
            own_run,
            "mine.candidates=12",
            "compose.sequences=all",
            "compose.target_tokens=4096",
        )
    )
    run = nextlong.open(own_run)
    told = measure(run).yields
    assert told.asked == "all"
    assert told.kept == len(run)
    assert told.dropped[DropReason.TOO_FEW_CANDIDATES] > 0
    assert told.kept + sum(told.dropped.values()) == told.drafts == told.drawn
    lines = [
        line.strip() for line in printed(measure(run), terminal=False).splitlines()
    ]
    reason = DropReason.TOO_FEW_CANDIDATES
    place = next(
        place
        for place, line in enumerate(lines)
        if line.startswith(f"dropped: {reason}")
    )
    assert lines[place].split()[-1] == f"{told.dropped[reason]:,}"
    assert lines[place + 1].split() == [
        "example",
        *told.dropped_examples[reason][0].split(),
    ]


def printed(measured, *, terminal):
    file = io.StringIO()
    compare.show_one(measured, Console(file=file, force_terminal=terminal, width=100))
    return file.getvalue()


def with_lists(value):
    """Return plain data with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: with_lists(below) for key, below in value.items()}
    if isinstance(value, tuple):
        return [with_lists(below) for below in value]
    return value


def test_json_is_plain_and_whole(measured):
    plain = measured.as_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == with_lists(plain)
    assert plain["chunks"]["reuse"]["hubs"][0].keys() == {
        "chunk_id",
        "source_id",
        "ordinal",
        "uses",
    }


def test_the_own_document_repeated_is_told_as_such(recipe_for, own_run):
    pipeline.run(recipe_for(own_run, "compose.negatives=self-repeat"))
    repeated = measure(nextlong.open(own_run))
    assert repeated.negatives.from_own_document == repeated.similarity.cosine.count > 0
    assert repeated.chunks.repeated > 0
    of = "negatives from the sequence's own document (by design)"
    assert f"{of} {repeated.negatives.from_own_document:,}" in " ".join(
        printed(repeated, terminal=False).split()
    )


def test_meta_chunks_and_what_follows_the_last_one_are_counted(run, measured):
    counts, after, last = [], 0, []
    for sequence in run.sequences():
        metas = [span for span in sequence.spans if span.role == "meta"]
        counts.append(len(metas))
        after += len(sequence.input_ids) - metas[-1].token_end
        last.append(metas[-1].token_end - metas[-1].token_start)
    assert measured.meta_chunks.per_sequence.count == len(run)
    assert measured.meta_chunks.per_sequence.mean == pytest.approx(fmean(counts))
    told = measured.meta_chunks.after_last
    assert told.tokens == after
    assert told.share == pytest.approx(after / measured.tokens.total)
    assert 1 < told.short_tokens < 64  # the chunks of this run have 256 characters
    assert told.short == sum(tokens < told.short_tokens for tokens in last)
    shown = card_numbers(measured)
    assert shown["tokens after the last meta-chunk"] == f"{told.share:.1%}"
    assert shown["short last meta-chunks"].startswith(f"{told.short} of {len(run)}")
    page = " ".join(printed(measured, terminal=False).split())
    assert f"tokens after the last meta-chunk {told.share:.1%}" in page
    assert compare.row(measured)["after_last_share"] == told.share


@pytest.mark.parametrize("method", ["knn", *thorough("standard")])
def test_methods_of_whole_documents(recipe_for, own_run, method):
    pipeline.run(recipe_for(own_run, f"compose.method={method}"))
    run = nextlong.open(own_run)
    measured = measure(run)
    assert measured.setting.method == method
    setting = measured.setting
    assert (setting.negatives, setting.position, measured.negatives) == (None,) * 3
    assert (
        measured.distance_tokens,
        measured.tokens.meta_share,
        measured.chunks.repeated,
    ) == (None, None, 0)
    assert measured.meta_chunks is None
    assert measured.setting.encoder == ("lsa" if method == "knn" else None)
    assert (measured.similarity is None) == (method == "standard")
    neighbours = sum(
        len({span.group for span in sequence.spans if span.role == "document"}) - 1
        for sequence in run.sequences()
    )
    assert measured.similarity is None or measured.similarity.cosine.count == neighbours
    told = measured.yields
    assert told.drafts == told.kept + told.spare + told.untried + sum(
        told.dropped.values()
    )
    assert f"drafts of a sequence {told.drafts}" in " ".join(
        printed(measured, terminal=False).split()
    )
    json.dumps(measured.as_json(), allow_nan=False)
    page = printed(measured, terminal=False)
    assert "Tokens between" not in page
    assert "negatives from" not in page
    assert "chunks that occur twice" in page
    numbers = compare.row(measured)
    assert {key for key, value in numbers.items() if value is None} >= {
        "distance_mean", "distance_p50", "distance_p90", "distance_max", "meta_share", "own_document_negatives",
    }  # fmt: skip
    assert "negatives from the own document" not in card_numbers(measured)


def test_statistics_are_measured_once_for_a_data_set_and_told_by_every_card(own_run):
    done = exported([own_run], formats=["parquet"])
    told = card_numbers(read(done))
    assert told["sequences"] == "12 of 2,048 tokens"
    again = exported([own_run], formats=["mds"], overrides=["export.pack=4096"])
    assert again["statistics"].folder == done["statistics"].folder
    for name in (".", "parquet", "mds"):
        assert (
            f"| uses of a chunk | {told['uses of a chunk']} |"
            in (own_run / "data" / name / "README.md").read_text()
        )
    assert (
        nextlong.open(own_run).steps["statistics"].folder == done["statistics"].folder
    )


def test_what_the_step_keeps_is_what_a_new_count_gives_and_nothing_is_counted_twice(
    own_run, monkeypatch
):
    exported([own_run], formats=["parquet"])
    run = nextlong.open(own_run)
    computed = compute(run)
    monkeypatch.setattr(statistics, "compute", lambda _: pytest.fail("counted again"))
    told = tuple(
        one.for_run(str(run)) for one in computed.warnings
    )  # `nextlong peek` with this run
    measured = measure(run)
    assert measured == replace(
        computed, run=str(run), steps=measured.steps, warnings=told
    )


def test_a_run_measured_by_an_earlier_version_is_reported_by_the_new_statistics(
    own_run,
):
    written = runs_export.export([own_run], formats=["parquet"])
    folder = written.done["statistics"].folder
    earlier = folder.with_name("99-statistics-000000000000")
    shutil.copytree(folder, earlier)
    variant_records.add_steps(written.runs[0].variant, {"statistics": earlier.name})
    again = runs_export.export([own_run], formats=["parquet"])
    assert again.runs[0].steps["statistics"].folder == folder


def test_statistics_of_another_form_name_the_file(own_run):
    done = exported([own_run], formats=["parquet"])
    (path,) = done["statistics"].files(".statistics.json")
    path.write_text(json.dumps({"method": "nextlong"}))
    with pytest.raises(RunError) as error:
        read(done)
    assert error.value.where == str(path)


def test_a_flipped_card_and_cut_off_statistics_are_noticed(own_run):
    done = exported([own_run], formats=["parquet"])
    manifests, hashes = check_files(StoredRun(own_run))
    assert (manifests.examples, hashes.examples) == ([], [])
    card = own_run / "data" / "parquet" / "README.md"
    card.write_bytes(card.read_bytes().replace(b"12 sequences", b"13 sequences", 1))
    (path,) = done["statistics"].files(".statistics.json")
    path.write_bytes(path.read_bytes()[:-9])
    wrong = check_files(StoredRun(own_run))[1].examples
    assert len(wrong) == 2
    assert any(f"{card.parent.name}/README.md has the hash" in told for told in wrong)
    assert any(f"{path.parent.name}/{path.name} has" in told for told in wrong)


def test_the_card_tells_what_the_run_counts(shared_run):
    measured = measure(nextlong.open(shared_run))
    told = card_numbers(measured)
    assert told["sequences"] == "12 of 2,048 tokens"
    assert told["negatives from the own document"] == "0"
    assert told["share of the meta-documents"].startswith(
        f"{measured.tokens.meta_share:.1%}"
    )
    assert (
        f"{measured.similarity.cosine.mean:.3f} on average"
        in told["cosine of a negative to its meta-chunk"]
    )


def test_what_there_is_none_of_is_left_out(shared_run):
    measured = measure(nextlong.open(shared_run))
    told = card_numbers(
        changed(
            measured,
            {"similarity": None, "tokens.meta_share": 0.0, "setting.encoder": None},
        )
    )
    assert told.keys().isdisjoint(
        {
            "cosine of a negative to its meta-chunk",
            "share of the meta-documents",
            "encoder",
        }
    )
