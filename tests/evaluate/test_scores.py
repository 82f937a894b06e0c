"""Scores against cases worked out by hand, and against the references' own tools."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.evaluate import scores


@pytest.mark.parametrize(
    ("answer", "references", "share", "any_found"),
    [
        ("It is 4839201 and 17", ["4839201"], 1.0, 1.0),
        ("apple, Pear", ["APPLE", "pear", "fig", "plum"], 0.5, 1.0),
        ("none", ["x", "y"], 0.0, 0.0),
        ("the answer is no", ["no", "yes"], 0.5, 1.0),
    ],
)
def test_ruler_looks_for_lower_case_substrings(answer, references, share, any_found):
    assert scores.string_match_all(answer, references) == share
    assert scores.string_match_part(answer, references) == any_found


def test_helmet_normalises_case_punctuation_articles_and_spaces():
    assert scores.normalize_answer("  The U.S.  President, a\nman!") == "us president man"
    assert scores.normalize_answer("theatre") == "theatre"
    assert scores.exact_match("The Beatles.", ["beatles"]) == 1.0
    assert scores.substring_exact_match("It was, I think, the Eiffel-Tower!", ["Eiffel Tower"]) == 0.0
    assert scores.substring_exact_match("It was the Eiffel Tower, I think", ["An Eiffel Tower."]) == 1.0


@pytest.mark.parametrize(
    ("answer", "parsed"),
    [
        ("Answer: Paris\nQuestion: next", "Paris"),
        ("I say. answer: Paris", "Paris"),
        ("Paris\nLondon", "Paris"),
        ("Answer: answer: twice", "twice"),
        ("", ""),
    ],
)
def test_the_line_behind_the_prefix_is_parsed_else_the_first(answer, parsed):
    assert scores.parsed_answer(answer) == parsed


def test_the_better_of_raw_and_parsed_counts():
    answer = "Answer: Paris\nQuestion: something else entirely"
    assert scores.exact_match(answer, ["Paris"]) == 0.0
    assert scores.best_of_raw_and_parsed(scores.exact_match, answer, ["Paris"]) == 1.0


@pytest.mark.parametrize(
    ("answer", "ranking"),
    [
        ("Ranking: ID3 > ID1 > ID2", ["3", "1", "2"]),
        ("[ID: 12] > [ID: 7] > [ID: 12]", ["12", "7"]),
        ("1 > 2, then 5 > 4 > 3", ["5", "4", "3"]),
        ("nothing", []),
    ],
)
def test_rankings_are_the_longest_chain_of_numbers(answer, ranking):
    assert scores.parsed_ranking(answer) == ranking


def test_ndcg_by_hand():
    relevance = {"1": 3, "2": 0, "3": 1}
    ideal = 3 / math.log2(2) + 1 / math.log2(3)
    assert scores.ndcg(["1", "3", "2"], relevance) == 1.0
    assert scores.ndcg(["2", "1"], relevance) == pytest.approx((3 / math.log2(3)) / ideal)
    assert scores.ndcg([], relevance) == 0.0
    assert scores.ndcg(["1"], {"1": 0}) == 0.0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_ndcg_is_best_in_order_of_relevance(labels, draw):
    relevance = {str(number): label for number, label in enumerate(labels)}
    ranking = list(relevance)
    draw.shuffle(ranking)
    best = sorted(ranking, key=relevance.__getitem__, reverse=True)
    assert 0.0 <= scores.ndcg(ranking, relevance) <= scores.ndcg(best, relevance) + 1e-12
    assert scores.ndcg(best, relevance) == pytest.approx(1.0 if any(labels) else 0.0)


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("The correct answer is (B).", "B"),
        ("**The correct answer is C**", "C"),
        ("The correct answer is A, not (B). The correct answer is (D)", "D"),
        ("B", None),
        ("the correct answer is (B)", None),
    ],
)
def test_longbench_reads_its_own_phrase_only(answer, letter):
    assert scores.chosen_letter(answer) == letter


@pytest.mark.heavy
def test_rouge_l_by_hand():
    # Longest common subsequence of 2 in 3 and 2 words: precision 2/3, recall 1.
    assert scores.rouge_l_f1("the cat sat", ["cat sat"]) == pytest.approx(0.8)
    assert scores.rouge_l_f1("cats sitting", ["dogs", "cat sit"]) == 1.0  # stems
