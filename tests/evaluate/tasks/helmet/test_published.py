from hypothesis import given
from hypothesis import strategies as st

from nextlong.evaluate.tasks.helmet.published import QUESTIONS, SHOTS, drawn_examples, drawn_questions, shuffled

ROWS = [{"id": number // 3, "depth": number % 3, "of": number % 7} for number in range(450)]


@given(seed=st.integers(0, 2**32 - 1))
def test_a_hundred_questions_are_drawn_with_all_their_depths(seed):
    drawn = drawn_questions(ROWS, "id", seed=seed)
    assert len({row["id"] for row in drawn}) == QUESTIONS
    assert len(drawn) == 3 * QUESTIONS
    assert drawn == drawn_questions(ROWS, "id", seed=seed)


def test_fewer_questions_are_all_taken():
    assert drawn_questions(ROWS[:30], "id", seed=1) == ROWS[:30]


@given(question=st.text(st.characters(codec="utf-8")))
def test_a_question_has_two_examples_always_the_same(question):
    examples = drawn_examples(ROWS, "id", question, keep=lambda row: row["of"] != 3)
    assert examples == drawn_examples(ROWS, "id", question, keep=lambda row: row["of"] != 3)
    assert len({row["id"] for row in examples}) == len(examples) == SHOTS
    assert all(row["of"] != 3 for row in examples)


def test_shuffling_is_a_permutation():
    order = shuffled(ROWS, seed=3)
    assert order != ROWS
    assert sorted(order, key=lambda row: (row["id"], row["depth"])) == ROWS
