"""Near-duplicates: words and the rule in any texts, against plain Python and the run's own code, and faults planted in a run."""

import json
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import plain_rule
from tests.support.damage import (
    change_array,
    change_sequence,
    files,
    first_sequence,
    outcomes,
    rehash,
    spans_of,
)
from tests.support.invented import GAPS, SCRIPTS, Corpus

import nextlong
from nextlong.retrieval.near_duplicates.shingles import hash_words, ngrams
from nextlong.schemas import META, NEGATIVE
from nextlong.verify import near_duplicates
from nextlong.verify.checks import verify
from nextlong.verify.near_duplicates import _repeats as repeats
from nextlong.verify.near_duplicates import _words_in as words_of
from nextlong.verify.run_files import StoredRun

COPIES, WEIGHTS, NEAREST = (
    "near-duplicates among negatives",
    "word weights counted again",
    "negatives are the nearest unused",
)


@pytest.fixture(scope="module")
def finished(recipe_for, small_corpus, tmp_path_factory):
    """A run over a corpus of which every document stands there again, one word changed; read-only."""
    folder = tmp_path_factory.mktemp("copies")
    rows = [
        json.loads(line)
        for path in sorted(small_corpus.iterdir())
        for line in path.read_text().splitlines()
    ]
    copies = [
        row
        | {
            "id": f"{row['id']}-copy",
            "text": row["text"].replace(" the ", " thy ", 1) + " x",
        }
        for row in rows
    ]
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, *copies])
    )
    source = json.dumps([{"path": str(folder / "rows.jsonl"), "name": "copies"}])
    nextlong.run(
        recipe_for(
            folder / "run",
            f"ingest.sources={source}",
            "compose.sequences=4",
            "compose.target_tokens=1024",
            "compose.min_meta_chunks=3",
            "export.formats=[parquet]",
        )
    )
    return folder / "run"


def found(run, name):
    """Return what the checks of one group say of each breach."""
    checked = outcomes(run, name, sample=100_000)
    return {
        check: outcome.examples
        for check, outcome in checked.items()
        if outcome.breaches
    }


def test_chunks_too_short_for_a_run_of_words_weigh_nothing_and_pass(
    recipe_for, small_corpus, tmp_path
):
    few = (
        f"ingest.sources.0.path={small_corpus}/0.jsonl",
        "compose.sequences=2",
        "compose.target_tokens=256",
    )
    nextlong.run(recipe_for(tmp_path / "run", "chunk.max_chars=24", *few))
    assert {
        outcome.check: outcome.examples
        for outcome in verify(tmp_path / "run")
        if outcome.breaches
    } == {}


def copies_of_metas(run):
    """Return the chunks of the first sequence's meta-document, and those of its copy."""
    artefacts = StoredRun(run)
    (block,) = artefacts.blocks()
    meta = int(block[0].doc[spans_of(first_sequence(run), META)[0]])
    documents = np.concatenate(
        [
            np.unique(artefacts.chunks(shard)["doc_row"]).astype(np.int64) | shard << 32
            for shard in range(len(artefacts.shards))
        ]
    )
    names = artefacts.names_of(documents, "source_id")
    other = (
        names[meta].removesuffix("-copy")
        if names[meta].endswith("-copy")
        else names[meta] + "-copy"
    )
    (copy,) = (doc for doc, name in names.items() if name == other)
    shard = copy >> 32
    rows = np.flatnonzero(artefacts.chunks(shard)["doc_row"] == copy & 0xFFFFFFFF)
    return (rows | shard << 32).tolist()


def test_a_sound_run_passes(finished):
    outcomes = {outcome.check: outcome for outcome in verify(finished, sample=100_000)}
    assert {name: own.examples for name, own in outcomes.items() if own.breaches} == {}
    assert outcomes[COPIES].checked > 20
    assert outcomes[WEIGHTS].checked == 1 << 22
    assert not outcomes[NEAREST].not_needed


def test_a_copy_of_the_meta_document_that_was_placed(run):
    copies = copies_of_metas(run)
    span = spans_of(first_sequence(run), NEGATIVE)[1]
    change_sequence(run, lambda row: row["chunk_id"].__setitem__(span, copies[0]))
    assert any(
        "the meta-document" in problem
        for problem in found(run, "near-duplicates")[COPIES]
    )


def test_a_copy_of_another_negative_that_was_placed(run):
    first, second = spans_of(first_sequence(run), NEGATIVE)[:2]
    change_sequence(
        run, lambda row: row["chunk_id"].__setitem__(second, row["chunk_id"][first])
    )
    assert any(
        f"span {second}" in problem for problem in found(run, "near-duplicates")[COPIES]
    )


def test_a_chunk_that_was_passed_over_without_cause(run):
    row = first_sequence(run)
    negatives = spans_of(row, NEGATIVE)
    of_group = [
        [span for span in negatives if row["group"][span] == group]
        for group in set(row["group"])
    ]
    nearest, *others = max(of_group, key=len)
    assert others
    far = next(chunk for chunk in range(100) if chunk not in row["chunk_id"])
    change_sequence(run, lambda row: row["chunk_id"].__setitem__(nearest, far))
    assert any("is unused" in problem for problem in found(run, "search")[NEAREST])


def test_only_what_a_sequence_holds_explains_that_a_chunk_was_passed_over(
    finished, monkeypatch
):
    artefacts = StoredRun(finished)
    (block,) = artefacts.blocks()
    sequence = block[0]
    placed = int(sequence.chunk[np.flatnonzero(sequence.role == NEGATIVE)[0]])
    free = np.setdiff1d(np.arange(100), [*sequence.chunk, *copies_of_metas(finished)])[
        :4
    ]
    texts = artefacts.texts_of(np.array([placed]))
    passage = texts[placed]

    def texts_of(names):
        """Four chunks: a copy of the next, its original, one that a negative repeats, and one like no other."""
        found = StoredRun.texts_of(artefacts, names)
        words = " ".join(f"word{number}" for number in range(40))
        found[free[0]], found[free[1]] = (
            words,
            words + " " + " ".join(f"other{number}" for number in range(200)),
        )
        found[free[2]] = (
            passage + " " + " ".join(f"more{number}" for number in range(200))
        )
        found[free[3]] = " ".join(f"alone{number}" for number in range(40))
        return {name: found[name] for name in found}

    monkeypatch.setattr(artefacts, "texts_of", texts_of)
    left = near_duplicates.without_cause(artefacts, {sequence.number: free})
    assert left[sequence.number].tolist() == free[[0, 1, 3]].tolist()


@pytest.mark.parametrize("weight", [1, 512])
def test_a_weight_that_was_altered(run, weight):
    (path,) = files(run, "weights", ".weights.npy")
    change_array(path, lambda weights: weights.__setitem__(7, weight))
    assert found(run, "weights")[WEIGHTS] == [
        f"slot 7 has the weight {weight}, its word runs are in 0 documents, which gives 1024"
    ]


def test_a_document_that_was_not_counted(run):
    (path,) = files(run, "weights", ".counted.npy")
    np.save(path, np.load(path)[1:])
    rehash(path)
    assert any("of 520" in problem for problem in found(run, "weights")[WEIGHTS])


def test_what_a_sequence_shows_of_its_cut_negative_is_judged(finished, monkeypatch):
    row = first_sequence(finished)
    artefacts = StoredRun(finished)
    metas = np.array([row["chunk_id"][span] for span in spans_of(row, META)])
    texts = artefacts.texts_of(metas)
    shown = SimpleNamespace(
        visible=lambda _: "".join(texts[chunk] for chunk in metas.tolist())
    )
    monkeypatch.setattr(
        near_duplicates,
        "texts_of_cuts",
        lambda _, block: dict.fromkeys(
            np.concatenate([one.chunk for one in block]).tolist(), shown
        ),
    )
    assert any(
        ", as cut," in problem and "the meta-document" in problem
        for problem in found(finished, "near-duplicates")[COPIES]
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9))
def test_invented_texts_are_judged_by_the_rule(seed):
    draw = random.Random(seed)
    size = draw.choice([40, 200, 1000])
    pieces = [
        text[first : first + size]
        for text in Corpus(seed).documents
        for first in range(0, len(text), size)
    ]
    texts = draw.sample(pieces, min(len(pieces), 12))
    weights = np.full(1 << 6, 1024, np.uint16)
    weights[: draw.choice([0, 30])] = 37
    threshold = draw.choice([0.3, 0.8, 0.95, 1.0])
    first = draw.randrange(len(texts))
    words = words_of(texts)
    assert {
        (a, b)
        for a, b, _ in repeats(words, first, weights=weights, threshold=threshold)
    } == {
        (a, b)
        for a in range(first, len(texts))
        for b in range(len(texts))
        if a != b
        and plain_rule.repeats(texts[a], texts[b], weights.tolist(), threshold)
    }


def test_texts_without_runs_repeat_nothing_but_the_same_words():
    words = words_of(["", "?!", "one two", "One, two.", "one"])
    found = repeats(words, 0, weights=None, threshold=0.8)
    assert {(a, b) for a, b, _ in found} == {(2, 3), (3, 2)}


LETTERS = "".join(SCRIPTS) + "".join(GAPS) + "İıẞßΣςσǅŉﬁ\n\r\x00"


def assert_same_words(text):
    (words,) = words_of([text])
    assert words.tolist() == hash_words(text).hashes.tolist()
    assert words.tolist() == [
        plain_rule.word_number(word) for word in plain_rule.words_of(text)
    ]
    runs, _ = near_duplicates._runs_of(
        [np.tile(words, 10)]
    )  # of fewer than ten words there are none
    assert runs.tolist() == ngrams(np.tile(words, 10), 3).tolist()
    assert runs.tolist() == [
        plain_rule.run_number(run)
        for run in plain_rule.runs_of(plain_rule.words_of(text) * 10)
    ]


@settings(deadline=None)
@given(st.text(max_size=80) | st.text(alphabet=LETTERS, max_size=80))
def test_both_sides_find_the_same_words_in_any_text(text):
    assert_same_words(text)


def test_both_sides_find_the_same_words_whatever_the_letter():
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    text = " ".join(f"a{chr(code)}b" for code in codes)
    assert np.array_equal(words_of([text])[0], hash_words(text).hashes)
    cased = "".join(
        f"a{chr(code)}b "
        for code in codes
        if chr(code).lower() != chr(code) or code % 97 == 0
    )
    assert_same_words(cased)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("ÄPFEL", "äpfel", True),
        ("İstanbul", "istanbul", False),
        ("İstanbul", "İSTANBUL", True),
        ("ΟΔΟΣ", "οδοσ", True),
        ("ΟΔΟΣ", "οδος", False),
        ("ẞ", "ß", True),
        ("ǅ", "ǆ", True),
    ],
)
def test_every_letter_is_lower_cased_by_itself(one, other, equal):
    first, second = words_of([one, other])
    assert (first.tolist() == second.tolist()) is equal


def test_texts_are_numbered_side_by_side_as_each_by_itself():
    texts = [
        "",
        "one two" * 9_000,
        "",
        "?!",
        "漢字 end",
        "begin" * 15_000,
        "a" * 65_536,
        "b",
        "",
    ]
    assert [*map(np.ndarray.tolist, words_of(texts))] == [
        words_of([text])[0].tolist() for text in texts
    ]


@pytest.mark.parametrize(
    "text", ["x" * 300_000, "ab,\tc" * 60_000, "漢字" * 80_000, "y" * 131_072 + "z w"]
)
def test_no_word_is_parted_however_long(text):
    assert np.array_equal(words_of([text])[0], hash_words(text).hashes)
