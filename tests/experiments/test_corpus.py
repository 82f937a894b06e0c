"""The corpus: facts that need two words, look-alikes, and a tokenizer that loses nothing."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from experiments.replicate import corpus
from experiments.replicate.corpus import VOCABULARY, Corpus

from nextlong.retrieval.encoders.lsa import _cut_ascii_words
from nextlong.rng import rng_for


@pytest.fixture(scope="module")
def documents():
    made = []
    for number in range(128):
        rng = rng_for(1, "test", number)
        subject = VOCABULARY.subjects[number]
        made.append(corpus._document(rng, number % corpus.TOPICS, subject))
    return made


def statements(document, paragraph):
    """Return the relations and values that a paragraph states behind its subject."""
    words = paragraph.split()
    return [
        (words[place + 1], words[place + 2])
        for place, word in enumerate(words)
        if word == document.subject
    ]


def facts(document):
    relations = VOCABULARY.relations[document.topic]
    return set(zip(relations, document.values, strict=True))


def test_the_first_paragraph_states_every_fact_once_and_later_ones_restate_them(
    documents,
):
    for document in documents:
        first, *later = [statements(document, line) for line in document.paragraphs]
        assert Counter(first) == Counter(facts(document))
        for stated in later:
            assert len(stated) == corpus.FACTS
            assert set(stated) <= facts(document)
        assert 1 <= len(later) <= 5


def shared_words(one, other):
    first, second = [set(" ".join(each.paragraphs).split()) for each in (one, other)]
    return first & second - {"."}


def test_look_alikes_share_all_relations_a_family_two_and_unrelated_documents_no_word(
    documents,
):
    first, of_family, unrelated = documents[0], documents[1], documents[8]
    look_alike = documents[corpus.TOPICS]
    relations = set(VOCABULARY.relations[0])
    assert relations <= shared_words(first, look_alike)
    shared = shared_words(first, of_family) & relations
    assert shared == set(VOCABULARY.relations[0][corpus.TOPIC_RELATIONS :])
    assert not shared_words(first, unrelated)


def test_a_relation_alone_does_not_tell_the_value(documents):
    values = {}
    for document in documents:
        for relation, value in facts(document):
            values.setdefault(relation, set()).add(value)
    assert all(len(known) > 1 for known in values.values())


def test_no_word_has_two_meanings_and_the_encoder_reads_no_subject():
    groups = [VOCABULARY.subjects, *VOCABULARY.values, *VOCABULARY.fillers]
    groups += [own[: corpus.TOPIC_RELATIONS] for own in VOCABULARY.relations]
    groups += [
        own[corpus.TOPIC_RELATIONS :]
        for own in VOCABULARY.relations[:: corpus.TOPICS_PER_FAMILY]
    ]
    words = [word for group in groups for word in group]
    assert sorted(words) == VOCABULARY.words
    assert len(set(VOCABULARY.subjects)) == corpus.SUBJECTS
    read, _ = _cut_ascii_words([" ".join(VOCABULARY.subjects)])
    assert len(read) == 0


def test_a_paragraph_is_a_chunk_and_a_word_is_a_token(documents):
    tokenizer = corpus.word_tokenizer()
    sizes = []
    for document in documents:
        for line in document.paragraphs:
            ids = tokenizer.encode(line).ids
            assert len(ids) == len(line.split())
            assert 0 not in ids
            assert tokenizer.decode(ids) == line
            sizes.append(len(ids))
            assert len(line) <= corpus.CHUNK_CHARS["train"] < 2 * len(line)
    assert np.mean(sizes) == pytest.approx(corpus.PARAGRAPH_TOKENS, abs=0.3)


def test_an_echo_fills_a_row_with_repeated_spans_over_small_alphabets():
    tokenizer = corpus.word_tokenizer()
    shares = []
    for number in range(200):
        echo = corpus._echo(rng_for(0, "echo", number))
        assert len(tokenizer.encode(echo).ids) == corpus.ECHO_TOKENS
        assert len(echo) <= corpus.CHUNK_CHARS["echoes"]
        words = echo.split()
        triples = list(zip(words, words[1:], words[2:], strict=False))
        shares.append(1 - len(set(triples)) / len(triples))
    # A span stands there two or three times, and some are cut.
    assert 0.3 < np.mean(shares) < 0.6


def test_a_span_is_repeated_verbatim_and_a_word_has_several_successors():
    successors = []
    for number in range(200):
        pieces = corpus._repeated_span(rng_for(0, "span", number))
        size = pieces.index(".\n") + 1
        assert pieces == pieces[:size] * (len(pieces) // size)
        assert len(pieces) // size in (2, 3)
        pairs = set(pairwise(pieces))
        successors.append(len(pairs) / len(set(pieces)))
    assert np.mean(successors) > 1.5


def test_files_are_the_same_for_a_seed_and_subjects_are_unique_within_a_topic(tmp_path):
    sizes = Corpus(documents=640, held_out=10, echoes=10)
    for name in ("a", "b"):
        sizes.write(tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["echoes.jsonl", "held-out.jsonl", "tokenizer.json", "train.jsonl"]
    for name in names:
        one = (tmp_path / "a" / name).read_bytes()
        assert one == (tmp_path / "b" / name).read_bytes()
    lines = (tmp_path / "a" / "train.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert len(texts) == 640
    pairs = set()
    for text in texts:
        words = text.split()
        subject = next(word for word in words if word in VOCABULARY.subjects)
        topic = next(
            topic
            for topic, relations in enumerate(VOCABULARY.relations)
            if set(relations) <= set(words)
        )
        pairs.add((topic, subject))
    assert len(pairs) == 640


def test_candidates_are_twice_the_chunks_of_a_topic():
    assert Corpus().candidates == 2 * 4 * 128
