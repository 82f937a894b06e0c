"""The index: what it holds, and that files appear only when complete, whoever makes them, and wherever that is possible."""

import shutil
import signal
import time
from multiprocessing import get_context

import numpy as np
import pytest

import nextlong
from nextlong.runs.variants import SEARCH_INDEX
from nextlong.view import index, words
from nextlong.view.documents import Query
from nextlong.view.index import SORTS, RunIndex
from nextlong.view.sequences import SequenceSearch

NAMES = ["chunks.arrow", "sequences.arrow", "words.arrow"]


@pytest.fixture
def own(own_run):
    """A run whose sequences have not been read by a viewer."""
    shutil.rmtree(own_run / SEARCH_INDEX, ignore_errors=True)
    return nextlong.open(own_run)


@pytest.fixture
def small_steps(monkeypatch):
    """Blocks of two sequences and of 50 texts."""
    monkeypatch.setattr(index, "_BLOCK_TOKENS", 2 * 2048)
    monkeypatch.setattr(words, "MAX_TEXTS", 50)


def forever():
    return time.monotonic() + 600


def lead(sequence):
    return next(span for span in sequence.spans if span.role == "meta")


def made(run):
    made = RunIndex(run)
    assert made.read_words(forever()) is None
    return made


def files(run):
    return sorted(path.name for path in (run.path / SEARCH_INDEX).glob("*/*"))


def check_whole(run_index, run):
    """The index holds what a look at every sequence holds."""
    for number, sequence in enumerate(run.sequences()):
        chunks = [span for span in sequence.spans if span.doc_id >= 0]
        of_lead = [
            span.token_end - span.token_start
            for span in chunks
            if span.doc_id == lead(sequence).doc_id
        ]
        scores = [span.score for span in chunks if span.role == "negative"]
        assert dict(zip(SORTS, run_index.values[:, number], strict=True)) == {
            "cosine": pytest.approx(np.mean(scores)),
            "chunks": len(chunks),
            "documents": len({span.doc_id for span in chunks}),
            "share": sum(of_lead) / 2048,
        }
        assert (run_index.leads[number], run_index.first_chunks[number]) == (
            lead(sequence).doc_id,
            lead(sequence).chunk_id,
        )
        own_chunks = [span.chunk_id for span in chunks]
        assert run_index.chunks_of(number).tolist() == own_chunks
        for chunk in set(own_chunks):
            assert run_index.containing(run_index.chunk_ids == chunk)[number]


def test_what_is_known_of_a_sequence_is_what_it_holds(own):
    check_whole(made(own), own)
    assert files(own) == NAMES
    check_whole(made(own), own)  # read from the files


def test_one_sequence_is_known_without_the_others(own, small_steps):
    run_index = RunIndex(own)
    run_index.know(5)
    assert run_index.leads[5] == lead(own.sequence(5)).doc_id
    assert not (own.path / SEARCH_INDEX).exists()


def test_a_chunk_names_each_sequence_that_contains_it_once(own):
    run_index = made(own)
    sequences = list(own.sequences())
    total = 0
    for chunk in run_index.chunk_ids.tolist():
        contains = run_index.containing(run_index.chunk_ids == chunk)
        expected = [
            any(span.chunk_id == chunk for span in sequence.spans)
            for sequence in sequences
        ]
        assert contains.tolist() == expected
        total += contains.sum()
    assert total == len(run_index._chunk_column("sequences").values)


def test_the_chunks_of_a_document_are_those_of_its_spans(own):
    run_index = made(own)
    spans = [span for sequence in own.sequences() for span in sequence.spans]
    for doc_id in {span.doc_id for span in spans if span.doc_id >= 0}:
        chunks = run_index.chunk_ids[run_index.of_document(doc_id)].tolist()
        expected = {span.chunk_id for span in spans if span.doc_id == doc_id}
        assert chunks == sorted(expected)
    for doc_id in (-1, 1 << 40):
        assert not run_index.of_document(doc_id).any()


def test_time_that_is_up_stops_and_the_next_call_continues(own, small_steps):
    run_index = RunIndex(own)
    told = []
    while (progress := run_index.read_words(0.0)) is not None:
        told.append(progress)
        assert not set(files(own)) >= set(NAMES)
    chunks = len(run_index.chunk_ids)
    read = [one for one in told if one.what == "sequences read"]
    assert len(read) >= 6
    assert [one.done for one in read] == sorted({one.done for one in read})
    assert read[-1] == ("sequences read", 12, 12)
    assert [one.done for one in told if one.what == "chunks indexed"] == [
        *range(0, chunks, 50),
    ]
    check_whole(run_index, own)


def test_two_viewers_that_make_an_index_at_once_do_not_disturb_each_other(
    own, small_steps
):
    one, other = RunIndex(own), RunIndex(nextlong.open(own.path))
    waiting = [one, other]
    while waiting:
        waiting = [viewer for viewer in waiting if viewer.read_words(0.0) is not None]
    assert files(own) == NAMES
    answers = []
    for viewer in (one, other, made(own)):
        check_whole(viewer, own)
        answers.append(SequenceSearch(own, viewer).find(Query(text='"sail reef"')))
    assert answers[0] == answers[1] == answers[2]
    assert 0 < answers[0].matches < 12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 100])
def test_a_damaged_file_is_made_again(own, name, size):
    expected = made(own).values.copy()
    (path,) = (own.path / SEARCH_INDEX).glob(f"*/{name}")
    whole = path.read_bytes()
    path.unlink()  # a map of the old file stays whole
    path.write_bytes(whole[:size])
    np.testing.assert_array_equal(made(own).values, expected)
    assert path.read_bytes() == whole


def index_until_killed(run_dir, step):
    run_index = RunIndex(nextlong.open(run_dir))
    while (progress := run_index.read_words(0.0)) is not None:
        if progress.what == step:
            signal.raise_signal(signal.SIGKILL)


@pytest.mark.parametrize("step", ["sequences read", "chunks indexed"])
def test_a_killed_viewer_leaves_no_broken_index(own, step):
    process = get_context("spawn").Process(
        target=index_until_killed, args=(own.path, step)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert "words.arrow" not in files(own)
    check_whole(made(own), own)
    assert set(files(own)) >= set(NAMES)


def test_what_a_killed_viewer_left_is_removed_later(own, monkeypatch):
    run_index = RunIndex(own)
    run_index.read_words(0.0)
    left = run_index._folder / ".words.arrow.1.tmp"
    left.write_bytes(b"left")
    RunIndex(own).read_sequences(0.0)
    assert left.exists()  # another viewer may be writing it
    monkeypatch.setattr(index, "_ABANDONED_SECONDS", -1)
    RunIndex(own).read_sequences(0.0)
    assert not left.exists()


def test_where_nothing_can_be_written_the_index_lasts_as_long_as_the_viewer(own):
    (own.path / SEARCH_INDEX).write_text("a file, in which no folder can be made")
    run_index = RunIndex(own)
    assert not run_index.is_temporary
    assert run_index.read_words(forever()) is None
    assert run_index.is_temporary
    check_whole(run_index, own)
    folder = run_index._folder
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    del run_index
    assert not folder.exists()


def test_fewer_of_the_same_sequences_have_an_index_of_their_own(own):
    assert made(own).values.shape == (len(SORTS), 12)
    fewer = nextlong.open(own.path)
    fewer.sequences_per_part = [1, *[0] * (len(own.sequences_per_part) - 1)]
    assert made(fewer).values.shape == (len(SORTS), 1)
    check_whole(made(own), own)


def test_another_variant_has_an_index_of_its_own(own, few_recipe):
    made(own)
    nextlong.run(few_recipe(own.path, "name=few"))
    few = nextlong.open(f"{own.path}@few")
    assert made(few).values.shape == (len(SORTS), len(few))
    assert len(list((own.path / SEARCH_INDEX).iterdir())) == 2
