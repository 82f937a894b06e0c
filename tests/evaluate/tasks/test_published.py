"""Scores against cases worked out by hand, and against the references' own tools."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Sample
from nextlong.evaluate.tasks import ruler
from nextlong.evaluate.tasks.helmet import published


def scored(task, answer, *references, **details):
    return all_tasks()[task].score(answer, Sample("", references, 1, details=details))


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
    assert ruler.string_match_all(answer, references) == share
    assert scored("qa_1", answer, *references) == {"string_match_part": any_found}


def test_helmet_normalises_case_punctuation_articles_and_spaces():
    assert (
        published.normalize_answer("  The U.S.  President, a\nman!")
        == "us president man"
    )
    assert published.normalize_answer("theatre") == "theatre"
    assert published.exact_match("The Beatles.", ["beatles"]) == 1.0
    assert (
        published.substring_exact_match(
            "It was, I think, the Eiffel-Tower!", ["Eiffel Tower"]
        )
        == 0.0
    )
    assert (
        published.substring_exact_match(
            "It was the Eiffel Tower, I think", ["An Eiffel Tower."]
        )
        == 1.0
    )


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
    assert published.parsed_answer(answer) == parsed


def test_the_better_of_raw_and_parsed_counts():
    answer = "Answer: Paris\nQuestion: something else entirely"
    assert published.exact_match(answer, ["Paris"]) == 0.0
    score = published.best_of(exact_match=published.exact_match)
    assert score(answer, Sample("", ("Paris",), 1)) == {"exact_match": 1.0}


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Ranking: ID3 > ID1 > ID2", 1.0),
        ("[ID: 3] > [ID: 1] > [ID: 3]", 1.0),
        ("2 > 3, then 3 > 1 > 2", 1.0),
        ("2 > 3", 3 / math.log2(3) / (3 + 1 / math.log2(3))),
        ("nothing", 0.0),
    ],
)
def test_the_longest_chain_of_numbers_is_scored_by_ndcg(answer, score):
    assert scored("msmarco", answer, judged={"3": "3", "1": "1", "2": "0"})[
        "NDCG@10"
    ] == pytest.approx(score)


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=30),
    st.randoms(use_true_random=False),
)
def test_ndcg_is_best_in_order_of_relevance(labels, draw):
    relevance = {str(number): label for number, label in enumerate(labels)}
    ranking = list(relevance)
    draw.shuffle(ranking)
    best = sorted(ranking, key=relevance.__getitem__, reverse=True)
    drawn, ideal = (
        scored("msmarco", " > ".join(one), judged=relevance)["NDCG@10"]
        for one in (ranking, best)
    )
    assert 0.0 <= drawn <= ideal + 1e-12
    assert ideal == pytest.approx(1.0 if any(labels) else 0.0)


@pytest.mark.heavy
def test_rouge_l_by_hand():
    # Longest common subsequence of 2 in 3 and 2 words: precision 2/3, recall 1.
    assert scored("narrativeqa", "the cat sat", "cat sat")[
        "rougeL_f1"
    ] == pytest.approx(0.8)
    assert (
        scored("narrativeqa", "cats sitting", "dogs", "cat sit")["rougeL_f1"] == 1.0
    )  # stems
