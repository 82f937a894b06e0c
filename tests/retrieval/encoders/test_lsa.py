"""The built-in encoder: equal to scikit-learn where they overlap, sensible on tiny corpora and without spaces."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong.retrieval.encoders.lsa import Lsa, _cut_ascii_words, _cut_words, _fit_lsa

TOPICS = {
    "cooking": "simmer onion garlic butter stir pan oven bake dough flour",
    "sailing": "harbour mast sail rudder anchor tide wind knot keel crew",
    "algebra": "matrix vector kernel proof lemma theorem basis field ring group",
    "gardens": "soil compost prune seedling mulch rose hedge lawn spade bulb",
}


def topic_texts(count: int) -> list[str]:
    rng = np.random.default_rng(7)
    topics = [words.split() for words in TOPICS.values()]
    return [
        f"The {' '.join(rng.choice(topics[number % 4], 12))} of naïve_{number % 9} “Ångström”, v{number % 5}"
        for number in range(count)
    ]


def test_tfidf_equals_scikit_learn():
    texts = topic_texts(200)
    lsa = _fit_lsa(texts, dimensions=8, max_terms=1000, seed=0)
    vocabulary = {term: column for column, term in enumerate(lsa.terms)}
    # Here and below, because it takes longer to import than all these tests, and each
    # test process imports each file.
    from sklearn.feature_extraction.text import TfidfVectorizer

    theirs = TfidfVectorizer(
        vocabulary=vocabulary, sublinear_tf=True, dtype=np.float32
    ).fit(texts)
    ascii_only = [
        "",
        "nothing known here",
        "sail sail SAIL, a sail_mast of naive_1",
        "The\x00Mast\tv1",
    ]
    np.testing.assert_allclose(lsa.idf, theirs.idf_, rtol=1e-6)
    for fresh in ([*topic_texts(50)[::-1], *ascii_only], ascii_only):
        np.testing.assert_allclose(
            lsa.tfidf(fresh).toarray(), theirs.transform(fresh).toarray(), atol=1e-6
        )


def test_terms_follow_the_document_frequency_rule_and_frequency():
    texts = [
        "common rare1 twice twice twice",
        "common twice three",
        "common three",
        "common three",
        "common odd",
    ]
    texts += ["common five five"] * 2 + ["common"] * 3
    lsa = _fit_lsa(texts, dimensions=2, max_terms=2, seed=0)
    # common is in all texts, rare1 and odd in one; twice and five occur 4 times, three
    # 3 times.
    assert list(lsa.terms) == ["five", "twice"]
    np.testing.assert_allclose(lsa.idf, np.log(11 / 3) + 1, rtol=1e-6)


def test_space_is_that_of_scikit_learns_exact_svd():
    texts = topic_texts(120)
    lsa = _fit_lsa(texts, dimensions=6, max_terms=1000, seed=3)
    weights = lsa.tfidf(texts).toarray()
    from sklearn.decomposition import TruncatedSVD

    exact = TruncatedSVD(6, algorithm="arpack", random_state=0).fit(weights)
    mine = np.linalg.norm(weights @ lsa.components, axis=0)
    # Four topics, four strong directions; the flat tail behind them is where a
    # randomized SVD approximates.
    np.testing.assert_allclose(mine[:4], exact.singular_values_[:4], rtol=1e-3)
    np.testing.assert_allclose(mine[4:], exact.singular_values_[4:], rtol=0.05)
    np.testing.assert_allclose(lsa.components.T @ lsa.components, np.eye(6), atol=1e-4)


def test_texts_of_one_topic_are_nearest_to_each_other():
    texts = topic_texts(400)
    lsa = _fit_lsa(texts[:200], dimensions=8, max_terms=1000, seed=0)
    vectors = lsa.encode(texts[200:])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    cosines = vectors @ vectors.T - 2 * np.eye(200)
    topics = np.arange(200) % 4
    assert (topics[cosines.argmax(axis=1)] == topics).mean() > 0.95


def test_same_bits_whatever_the_batch_and_after_a_round_trip(tmp_path: Path):
    texts = [*topic_texts(90), "日本語の文章です", "!!!", ""]
    lsa = _fit_lsa(texts, dimensions=8, max_terms=1000, seed=0)
    whole = lsa.encode(texts)
    one_by_one = np.concatenate([lsa.encode([text]) for text in texts])
    stem = tmp_path / "part.0001"
    _fit_lsa(texts, dimensions=8, max_terms=1000, seed=0).save(stem)
    loaded = Lsa.load(stem)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "part.0001.components.npy",
        "part.0001.idf.npy",
        "part.0001.terms.json",
    ]
    assert whole.tobytes() == one_by_one.tobytes() == loaded.encode(texts).tobytes()
    assert not loaded.components.flags.owndata


def test_unknown_texts_get_their_own_direction():
    lsa = _fit_lsa(topic_texts(200), dimensions=24, max_terms=1000, seed=0)
    assert lsa.dimensions == 24
    vectors = lsa.encode(["???", "zzzz", "???", "", *topic_texts(4)])
    cosines = vectors @ vectors.T
    assert cosines[0, 2] == pytest.approx(1)
    assert np.abs(cosines[[0, 0, 1, 0, 1, 3], [1, 3, 3, 4, 5, 6]]).max() < 0.8
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "dimensions"),
    [
        (["one single document"], 1),
        (["the same words"] * 5, 1),
        (["first text", "second text", "first text"], 2),
        (["知識は力なり", "力は正義なり", "海は広い"], 3),
        (["?", "!"], 16),
        ([], 16),
    ],
)
def test_small_samples_shrink_the_dimensions(texts, dimensions):
    lsa = _fit_lsa(texts, dimensions=16, max_terms=100, seed=0)
    vectors = lsa.encode([*texts, "quite another"])
    assert vectors.shape == (len(texts) + 1, dimensions)
    assert lsa.dimensions == dimensions
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_chinese_texts_that_share_words_are_nearer():
    sea = ["海上的风浪很大渔船回港", "渔船在海上遇到风浪", "风浪大渔船不出海"]
    code = ["编译器优化循环代码", "循环代码由编译器展开", "编译器检查代码类型"]
    lsa = _fit_lsa(sea + code, dimensions=4, max_terms=100, seed=0)
    cosines = lsa.encode(sea + code) @ lsa.encode(sea + code).T
    assert cosines[:3, :3].min() > cosines[:3, 3:].max()


def words_of(text: str) -> list[str]:
    words, bounds = _cut_words([text])
    assert bounds.tolist() == [0, len(words)]
    return [word.decode("utf-32-le") for word in words.to_pylist()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The CAT's hat_2, a 42nd!", ["the", "cat", "hat_2", "42nd"]),
        ("naïve – “Ångström” ΣΊΣΥΦΟΣ", ["naïve", "ångström", "σίσυφοσ"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("自然言語。処理", ["自然", "然言", "言語", "処理"]),
        ("Python3入門書 and 東x京都", ["python3", "入門", "門書", "and", "京都"]),
        ("한국어", ["한국", "국어"]),
        ("ไทย", ["ไท", "ทย"]),
        (
            "\U00020000\U00020001\U00020002",
            ["\U00020000\U00020001", "\U00020001\U00020002"],
        ),
        ("a b — \n\x00 😀", []),
        ("", []),
    ],
)
def test_words_are_cut_as_written_by_hand(text, words):
    assert words_of(text) == words


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(st.sampled_from("ab 日本。é\n_x"), max_size=12), min_size=1, max_size=6
    )
)
def test_words_of_a_batch_are_the_words_of_its_texts(texts):
    words, bounds = _cut_words(texts)
    flat = [word.decode("utf-32-le") for word in words.to_pylist()]
    parts = [flat[first:last] for first, last in pairwise(bounds)]
    assert parts == [words_of(text) for text in texts]


@given(
    st.lists(
        st.text(st.characters(max_codepoint=127), max_size=12), min_size=1, max_size=6
    )
)
def test_ascii_words_are_the_same_but_for_single_characters(texts):
    words, bounds = _cut_ascii_words(texts)
    flat = [word.decode("ascii") for word in words.to_pylist()]
    for text, (first, last) in zip(texts, pairwise(bounds), strict=True):
        assert [word for word in flat[first:last] if len(word) > 1] == words_of(text)
    assert bounds[-1] == len(flat)
