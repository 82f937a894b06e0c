"""Every kind of task on invented pieces: places, answers by a naive reader, words, and planted faults."""

import re
from importlib.util import find_spec

import numpy as np
import pytest

from nextlong.plugins import KNOWN_ANSWERS
from nextlong.sequences.tasks import base, coreference, counting, key_value
from nextlong.sequences.tasks.base import KnownTask, Piece

KINDS = sorted(KNOWN_ANSWERS.built_in)
TASKS = [KNOWN_ANSWERS.load(name, KnownTask) for name in KINDS]
NAMES = (
    "Alberta",
    "Clojure",
    "Montana",
    "Hawaii",
    "Zagreb",
    "Oregon",
    "Lisbon",
    "Athens",
)


def pieces_of(count, *, seed=0, sentences=12):
    """Return pieces of prose, with names that occur often."""
    draw = np.random.default_rng(seed)
    plain = [
        "the",
        "river",
        "of",
        "stone",
        "and",
        "winter",
        "was",
        "in",
        "a",
        "candle",
        "market",
        "near",
        "it",
    ]
    pieces = []
    for number in range(count):
        lines = [
            " ".join([*draw.choice(plain, 9), str(draw.choice(NAMES))]) + "."
            for _ in range(sentences)
        ]
        pieces.append(Piece(number, " ".join(lines) + "\n"))
    return pieces


def inserted(task, pieces, seed):
    return task.insert(pieces, np.random.default_rng(seed))


def texts_with(pieces, insertions):
    """Return the finished text in parts: (text, whether it was inserted)."""
    parts = []
    for place, piece in enumerate(pieces):
        parts += [(one.text, True) for one in insertions if one.place == place]
        parts.append((piece.text, False))
    return parts


def answers_of(task, parts):
    answers = []
    before = ""
    for text, is_inserted in parts:
        if is_inserted:
            answers += task.solve(before, text)
        before += text
    return answers


@pytest.mark.parametrize("task", TASKS, ids=KINDS)
@pytest.mark.parametrize("count", [8, 40])
def test_texts_are_between_the_first_and_the_last_piece_in_order(task, count):
    pieces = pieces_of(count, sentences=40)
    for seed in range(20):
        insertions = inserted(task, pieces, seed)
        places = [one.place for one in insertions]
        assert places
        assert places == sorted(places)
        assert places[0] >= 1
        assert places[-1] <= count - 1
        assert all(one.text.endswith("\n") for one in insertions)


@pytest.mark.parametrize("task", TASKS, ids=KINDS)
def test_every_answer_follows_from_the_text_before(task):
    pieces = pieces_of(30)
    questions = []
    for seed in range(30):
        answers = answers_of(task, texts_with(pieces, inserted(task, pieces, seed)))
        assert answers
        assert all(given == recomputed for given, recomputed in answers)
        questions.append(len(answers))
    least = counting._MIN_QUESTIONS if task.name == "counting" else 1
    assert min(questions) >= least


@pytest.mark.parametrize("task", TASKS, ids=KINDS)
def test_a_changed_text_before_the_question_gives_another_answer(task):
    pieces = pieces_of(30)
    parts = texts_with(pieces, inserted(task, pieces, 3))
    answers = answers_of(task, parts)
    given = {answer.given for answer in answers}
    if task.name == "counting":
        altered = [
            (text.replace("Athens", "Athens Athens"), own) for text, own in parts
        ]
        altered = [
            (text.replace("Athens Athens", "Athens") if own else text, own)
            for text, own in altered
        ]
    else:
        first = next(iter(given))
        altered = [(text, own) for text, own in parts]
        place = next(
            number for number, (text, own) in enumerate(parts) if own and first in text
        )
        altered[place] = (parts[place][0].replace(first, "bwabwabwabwa"), True)
    assert any(given != recomputed for given, recomputed in answers_of(task, altered))


@pytest.mark.parametrize(
    ("task", "wordings"),
    [
        (key_value.TASK, key_value.WORDINGS),
        (coreference.TASK, coreference.WORDINGS),
        (counting.TASK, counting.WORDINGS),
    ],
)
def test_all_wordings_are_used(task, wordings):
    pieces = pieces_of(30)
    seen = set()
    for seed in range(40):
        text = "".join(one.text for one in inserted(task, pieces, seed))
        for number, (statement, *_) in enumerate(wordings):
            if any(base.found(statement, text)):
                seen.add(number)
    assert seen == set(range(len(wordings)))
    assert len(wordings) >= 3


@pytest.mark.parametrize("task", TASKS, ids=KINDS)
def test_the_fewest_pieces_give_room_for_a_task(task):
    pieces = pieces_of(base.MIN_PIECES, sentences=40)
    places = {one.place for seed in range(5) for one in inserted(task, pieces, seed)}
    assert places == {1, 2}


def test_values_are_those_that_a_reader_notes_down():
    pieces = pieces_of(20)
    for seed in range(12):
        parts = texts_with(pieces, inserted(key_value.TASK, pieces, seed))
        own = [text for text, is_inserted in parts if is_inserted]
        # Each statement has two invented words: which is the key depends on the wording.
        pairs = [set(re.findall(r"[a-z]{12}", text)) for text in own[:-1]]
        asked = re.findall(r"[a-z]{12}", own[-1])
        for one, other in zip(asked[::2], asked[1::2], strict=True):
            assert {one, other} in pairs


def test_similar_keys_differ_in_their_last_letter():
    for seed in range(20):
        keys = key_value._similar_keys(np.random.default_rng(seed))
        assert len(set(keys)) == key_value._PAIRS
        for one, other in zip(keys[::2], keys[1::2], strict=True):
            assert one[:-1] == other[:-1]


def test_the_reply_is_that_of_the_round_that_is_asked_for():
    pieces = pieces_of(20)
    for seed in range(12):
        parts = texts_with(pieces, inserted(coreference.TASK, pieces, seed))
        own = [text for text, is_inserted in parts if is_inserted]
        words = [re.findall(r"[a-z]{12}", text) for text in own]
        *rounds, question = words
        # Form and topic, then the reply, in every wording.
        equal = [one[2:] for one in rounds if one[:2] == question[:2]]
        ordinal = re.search("first|second|third", own[-1])[0]
        place = ("first", "second", "third").index(ordinal)
        assert len(equal) == 3
        assert question[2:] == equal[place]


def count_slowly(word, text):
    return sum(one == word for one in re.split(r"[^a-zA-Z]+", text))


def test_counts_are_those_of_a_reader_who_splits_at_what_is_no_letter():
    pieces = pieces_of(30)
    for seed in range(12):
        opened, closed = inserted(counting.TASK, pieces, seed)
        section = "".join(piece.text for piece in pieces[opened.place : closed.place])
        questions = closed.text.partition("\n")[2]
        asked = []
        for word in NAMES:
            for number in re.findall(rf"\b{word}\b\D*?(\d+)", questions):
                asked.append((word, int(number)))
        assert len(asked) >= 5
        for word, count in asked:
            assert count == count_slowly(word, section)


@pytest.mark.parametrize(("count", "sentences"), [(12, 4), (60, 12), (500, 40)])
def test_a_section_has_a_power_of_two_characters_within_the_bounds(count, sentences):
    pieces = pieces_of(count, sentences=sentences)
    total = sum(len(piece.text) for piece in pieces)
    longest_piece = max(len(piece.text) for piece in pieces)
    low = min(16 * 1024, 0.25 * total)
    high = min(256 * 1024, 0.5 * total)
    exponents = set()
    for seed in range(60):
        section = counting._draw_section(pieces, np.random.default_rng(seed))
        first, last = section
        chars = sum(len(piece.text) for piece in pieces[first:last])
        exponent = int(np.log2(chars))
        # The last chunk that completes the section may make it longer.
        assert chars < 2**exponent + 2 * longest_piece or chars < 2 ** (exponent + 1)
        assert low / 2 <= chars <= high + longest_piece
        exponents.add(exponent)
    if count == 500:
        assert {14, 15, 16, 17} <= exponents, "from 16 Ki to half of the text"


def test_words_that_also_occur_in_lower_case_or_in_other_tasks_are_not_counted():
    own = Piece(
        1, "Rivers Athens Athens Athens rivers Rivers Rivers Clerks Clerks Clerks.\n"
    )
    task = Piece(2, "Clerks: a reply\n", "coreference")
    assert counting._common_words([own, task]) == [("Athens", 3)]
    assert counting._common_words([own]) == [("Athens", 3), ("Clerks", 3)]


def lists_of_words():
    from nextlong.evaluate.tasks import ruler

    return {
        word
        for kind in ("noun", "adjective", "verb")
        for word in ruler._wonderwords(kind)
    }


@pytest.mark.skipif(find_spec("wonderwords") is None, reason="needs wonderwords")
def test_no_word_is_in_the_lists_of_the_evaluation_suites():
    listed = lists_of_words()
    assert len(listed) > 5000
    # Invented words begin as none of the lists does; counted ones have a capital.
    invented = base.invent_words(2000, np.random.default_rng(0))
    assert not listed & set(invented)
    onsets = tuple(base._ONSETS)
    assert not [word for word in listed if word.startswith(onsets)]
    assert all(word.startswith(onsets) for word in invented)
    capitalized = [word for word in listed if word[0].isupper()]
    assert all(len(word) < counting._MIN_LETTERS for word in capitalized)
