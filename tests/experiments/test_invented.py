"""The invented corpus: facts are known from their own document alone, and the tokenizer loses nothing."""

import json
from collections import Counter

import numpy as np
import pytest
from experiments.replicate.corpora import (
    _WORDS,
    NAMES,
    TOPICS,
    Invented,
    _invented_document,
    _word_tokenizer,
    _words_of,
)

from nextlong.rng import rng_for


@pytest.fixture(scope="module")
def documents():
    return [_invented_document(rng_for(1, "test", place)) for place in range(200)]


def statements(paragraph):
    """Return the facts that a paragraph states: two words before each full stop."""
    words = paragraph.split()
    return [
        tuple(words[place - 2 : place])
        for place, word in enumerate(words)
        if word == "."
    ]


def test_the_first_paragraph_states_every_fact_once_and_later_ones_restate_them(
    documents,
):
    for made in documents:
        facts = set(made.facts)
        first, *later = map(statements, made.paragraphs)
        assert Counter(first) == Counter(facts)
        assert all(len(stated) == 4 and set(stated) <= facts for stated in later)
        assert 3 <= len(later) <= 7


def test_a_name_has_one_value_and_a_topic_few(documents):
    for made in documents:
        names, values = map(set, zip(*made.facts, strict=True))
        assert len(names) == len(values) == 4
        assert values <= set(_words_of(made.topic)[0])


def test_values_cannot_be_known_from_a_name_or_its_place(documents):
    by_name, by_place = {}, Counter()
    for made in documents:
        for place, (name, value) in enumerate(made.facts):
            by_name.setdefault((name, made.topic), set()).add(value)
            by_place[made.topic, place, value] += 1
    twice = [values for values in by_name.values() if len(values) > 1]
    assert twice, "a name has other values in other documents"
    assert max(by_place.values()) <= 9  # of some 17 documents of a topic, 12 values


def test_no_word_has_two_meanings():
    assert len(set(_WORDS)) == len(_WORDS)
    parts = [
        _WORDS[:NAMES],
        *(part for topic in range(TOPICS) for part in _words_of(topic)),
    ]
    assert sorted(word for part in parts for word in part) == sorted(_WORDS)


def test_a_word_is_a_token_and_nothing_is_lost(documents):
    tokenizer = _word_tokenizer()
    for made in documents[:20]:
        text = "".join(made.paragraphs)
        ids = tokenizer.encode(text).ids
        assert len(ids) == len(text.split())
        assert 0 not in ids
        assert tokenizer.decode(ids) == text


def test_the_same_seed_writes_the_same_files_and_held_out_documents_are_others(
    tmp_path,
):
    sizes = Invented(documents=30, held_out=10, echoes=10, long=20)
    for name in ("a", "b"):
        sizes.write(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == [
        f"{name}.jsonl" for name in ("echoes", "held-out", "long-gzip", "long")
    ] + [
        "tokenizer.json",
        "train.jsonl",
    ]
    assert all(
        (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        for name in files
    )
    texts = {
        name: {
            json.loads(row)["text"]
            for row in (tmp_path / "a" / f"{name}.jsonl").read_text().splitlines()
        }
        for name in ("train", "held-out", "echoes")
    }
    assert {name: len(rows) for name, rows in texts.items()} == {
        "train": 30,
        "held-out": 10,
        "echoes": 10,
    }
    assert not texts["train"] & texts["held-out"]
    for text in texts["echoes"]:
        lines = text.splitlines()
        assert len(lines) >= 2
        assert len(set(lines)) == 1


def test_names_to_avoid_are_avoided():
    taken = frozenset(_WORDS[: NAMES - 4])
    made = _invented_document(np.random.default_rng(0), avoid=taken)
    assert {name for name, _ in made.facts} == set(_WORDS[NAMES - 4 : NAMES])
