"""Real documents as a corpus: no text is trained on and held out, and every question of a probe has one answer."""

import json

import numpy as np
import pytest

from nextlong.errors import CorpusError
from nextlong.replicate import documents
from nextlong.replicate.documents import Documents, HeldOut
from nextlong.replicate.invented import FACTS
from nextlong.rng import rng_for

NEWLINE = "\n"


@pytest.fixture(scope="module")
def corpus(small_corpus):
    return Documents(
        sources=({"path": str(small_corpus), "name": "made up"},),
        held_out=0.3,
        vocabulary=900,
        long_chars=1000,
        echoes=20,
    )


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    made = tmp_path_factory.mktemp("documents")
    corpus.write(made)
    return made


def texts(folder, name):
    return [json.loads(row)["text"] for row in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_each_document_goes_to_one_part_and_the_counts_are_those_of_the_files(corpus, folder, tmp_path):
    counts = corpus.write(tmp_path)
    for name in ("train", "held-out", "long", "long-gzip", "first-echoes", "echoes"):
        assert counts[name] == len(texts(folder, name)) > 0
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (folder / f"{name}.jsonl").read_bytes()
    assert not set(texts(folder, "train")) & set(texts(folder, "held-out"))
    assert set(texts(folder, "long")) == {text for text in texts(folder, "train") if len(text) >= 1000}


@pytest.mark.parametrize(("name", "is_at_once"), [("first-echoes", True), ("echoes", False)])
def test_an_echo_repeats_a_span_of_a_training_document(folder, name, is_at_once):
    train = [" ".join(text.split()) for text in texts(folder, "train")]
    for text in texts(folder, name):
        lines = text.splitlines()
        assert lines.count(lines[0]) >= 2
        assert lines[-1] == lines[0]
        assert all(any(line in document for document in train) for line in lines)
        assert (set(lines) == {lines[0]}) or not is_at_once
    if not is_at_once:
        assert any(len(set(text.splitlines())) > 1 for text in texts(folder, name))


def test_the_compression_ratio_filters_both_ends():
    rng = rng_for(0, "noise", 0)
    words = ["".join(chr(97 + one) for one in rng.integers(26, size=5)) for _ in range(150)]
    ordinary = [" ".join(rng.choice(words, 400)) for _ in range(3)]
    plain, random = "all the same " * 300, "".join(chr(33 + one) for one in rng.integers(90, size=3000))
    assert documents._of_middling_compression([plain, *ordinary, random]) == ordinary
    assert documents._of_middling_compression([]) == []


@pytest.mark.parametrize("kind", ["hard", "random"])
def test_a_question_is_answered_once_before_it_and_nowhere_else(folder, kind):
    made = HeldOut(folder)
    newline = made.tokenizer.encode(NEWLINE).ids
    for place in range(5):
        ids, places = made.probe(kind, 6, rng_for(1, kind, place))
        assert len(places) == FACTS
        for at in places:
            key, value = ids[at - 1 : at + 1]
            assert [ids[one + 1] for one in range(at - 1) if ids[one] == key] == [value]
            assert ids[at + 1 : at + 1 + len(newline)] == newline
            assert ids.count(value) == 2
            assert {key, value} <= set(made.words.tolist())


def test_hard_negatives_hold_a_fact_and_all_have_the_same_length(folder):
    made = HeldOut(folder)
    lengths = {
        (kind, count): len(made.probe(kind, count, rng_for(0, kind, count))[0])
        for kind in ("hard", "random")
        for count in (0, 5)
    }
    assert lengths["hard", 0] == lengths["random", 0]
    assert {lengths[kind, 5] - lengths[kind, 0] for kind in ("hard", "random")} == {5 * documents.NEGATIVE_TOKENS}
    words = set(made.words.tolist())
    newline = made.tokenizer.encode(NEWLINE).ids[0]

    def facts(kind):
        ids, _ = made.probe(kind, 5, rng_for(2, kind, 0))
        return sum(
            ids[at] == newline == ids[at + 3] and ids[at + 1] in words and ids[at + 2] in words
            for at in range(len(ids) - 3)
        )

    assert facts("hard") >= 2 * FACTS + 5
    assert facts("random") < 2 * FACTS + 5


def test_too_few_words_for_a_probe_are_told(folder):
    made = HeldOut(folder)
    made.words = np.arange(300, 310)
    with pytest.raises(CorpusError, match="raise corpus.vocabulary, or lower measure.negatives"):
        made.probe("hard", 20, rng_for(0, "x", 0))


def test_records_without_a_document_are_told_by_reason(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"txt": "a"}\n{"text": ""}\n{"text": " "}\n')
    with pytest.raises(CorpusError, match="rejected: 2 × empty, 1 × no text column; add documents, correct"):
        Documents(sources=({"path": str(tmp_path / "a.jsonl")},)).write(tmp_path / "out")
    with pytest.raises(CorpusError, match=r"corpus.sources is empty; name files"):
        Documents().write(tmp_path / "out")


def test_other_files_are_another_corpus(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n')
    corpus = Documents(sources=({"path": str(path)},))
    before = corpus.identity()
    assert before == corpus.identity()
    path.write_text('{"text": "another"}\n')
    assert corpus.identity() != before
