"""Real documents as a corpus: facts are restated among their words, no text is trained on and held out, a probe has one answer."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from experiments.replicate.corpora import (
    FACTS,
    REAL_NAMES,
    RealDocuments,
    _of_middling_compression,
)
from tokenizers import Tokenizer

from nextlong.errors import CorpusError
from nextlong.rng import rng_for


@pytest.fixture(scope="module")
def corpus(small_corpus):
    return RealDocuments(
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
    return [
        json.loads(row)["text"]
        for row in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_each_document_goes_to_one_part_and_the_counts_are_those_of_the_files(
    corpus, folder, tmp_path
):
    counts = corpus.write(tmp_path)
    for name in ("train", "held-out", "held-out-text", "long", "long-gzip", "echoes"):
        assert counts[name] == len(texts(folder, name)) > 0
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (
            folder / f"{name}.jsonl"
        ).read_bytes()
    assert not set(texts(folder, "train")) & set(texts(folder, "held-out"))
    assert {len(stated(text.splitlines()[-1])) for text in texts(folder, "long")} == {
        FACTS
    }


def stated(line):
    """Return the facts that a paragraph states."""
    return [tuple(pair.split()) for pair in re.findall(r"([A-Z]{4} [a-z]+)\.", line)]


def test_a_document_states_each_fact_first_and_restates_them_among_its_own_words(
    folder,
):
    plain = [text.split() for text in texts(folder, "held-out-text")]
    for made in texts(folder, "held-out"):
        first, *later = map(stated, made.splitlines())
        assert 2 <= len(later) <= 5
        assert (
            len({name for name, _ in first})
            == len({value for _, value in first})
            == len(first)
            == FACTS
        )
        assert all(len(facts) == FACTS and set(facts) <= set(first) for facts in later)
        words = re.sub(r"[A-Z]{4} [a-z]+\.", "", made).split()
        assert any(
            words == whole[at : at + len(words)]
            for whole in plain
            for at in range(len(whole))
        )


def test_documents_cut_from_one_share_its_values_and_not_its_names(folder):
    by_pool = Counter(
        frozenset(name for name, _ in stated(made.splitlines()[0]))
        for made in texts(folder, "train")
    )
    assert max(by_pool.values()) == 1
    assert set(REAL_NAMES) >= {name for names in by_pool for name in names}


def test_an_echo_repeats_words_and_begins_anywhere_in_them(folder):
    begun = []
    for text in texts(folder, "echoes"):
        first, *lines = text.splitlines()
        assert all(line.startswith(" ") for line in (first, *lines))
        assert lines.count(lines[-1]) >= 2
        assert lines[0].endswith(first) or lines[0] == lines[-1]
        begun.append(len(first.split()) < len(lines[0].split()))
    assert 0.3 < np.mean(begun) <= 1


def test_the_compression_ratio_filters_both_ends():
    rng = rng_for(0, "noise", 0)
    words = [
        "".join(chr(97 + one) for one in rng.integers(26, size=5)) for _ in range(150)
    ]
    ordinary = [" ".join(rng.choice(words, 400)) for _ in range(3)]
    plain, random = (
        "all the same " * 300,
        "".join(chr(33 + one) for one in rng.integers(90, size=3000)),
    )
    assert _of_middling_compression([plain, *ordinary, random]) == ordinary
    assert _of_middling_compression([]) == []


@pytest.mark.parametrize("kind", ["hard", "random"])
def test_a_question_is_answered_once_before_it_and_nowhere_else(corpus, folder, kind):
    make, tokenizer = (
        corpus.probe(folder),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
    )
    for place in range(5):
        ids, places = make(kind, 6, rng_for(1, kind, place))
        assert len(places) == FACTS
        for at in places:
            name, value = ids[at - 1 : at + 1]
            assert tokenizer.decode([name]).strip() in REAL_NAMES
            assert tokenizer.decode([value]).strip().islower()
            assert [ids[one + 1] for one in range(at - 1) if ids[one] == name] == [
                value
            ]


def test_hard_negatives_share_the_values_of_what_is_asked_for(corpus, folder):
    make, tokenizer = (
        corpus.probe(folder),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
    )
    shared = dict.fromkeys(("hard", "random"), 0.0)
    for kind in shared:
        for place in range(8):
            ids, places = make(kind, 6, rng_for(2, kind, place))
            facts = stated(tokenizer.decode(ids))
            assert len(facts) == FACTS * 8, (
                "those asked for twice, and those of six negatives"
            )
            asked = {tokenizer.decode([ids[at]]).strip() for at in places}
            shared[kind] += np.mean(
                [value in asked for _, value in facts[FACTS:-FACTS]]
            )
    assert shared["hard"] > 2 * shared["random"]


def test_too_few_documents_for_probes_are_told(corpus, folder, tmp_path):
    for name in ("tokenizer.json", "words.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "held-out-text.jsonl").write_text(json.dumps({"text": "too short"}))
    with pytest.raises(CorpusError) as error:
        corpus.probe(tmp_path)
    assert error.value.where == "corpus"


def test_records_without_a_document_are_told_by_reason(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"txt": "a"}\n{"text": ""}\n{"text": " "}\n')
    with pytest.raises(CorpusError) as error:
        RealDocuments(sources=({"path": str(tmp_path / "a.jsonl")},)).write(
            tmp_path / "out"
        )
    assert error.value.where == "corpus"
    assert "2 × empty, 1 × no text" in error.value.problem
    with pytest.raises(CorpusError) as error:
        RealDocuments().write(tmp_path / "out")
    assert error.value.where == "corpus.sources"


def test_other_files_are_another_corpus(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n')
    corpus = RealDocuments(sources=({"path": str(path)},))
    before = corpus.identity()
    assert before == corpus.identity()
    path.write_text('{"text": "another"}\n')
    assert corpus.identity() != before
