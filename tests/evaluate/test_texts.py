from itertools import islice

import pytest

from evaluation_data import word_tokenizer, write
from nextlong.evaluate import texts
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.task import TaskRequest, TextTokenizer, all_tasks


def made(name, data, backend, *, length, samples=3):
    request = TaskRequest(length, TextTokenizer(backend), data, samples)
    return list(islice(all_tasks()[name].make(request), samples))


@pytest.mark.heavy
def test_essays_are_repeated_where_they_are_too_short(tmp_path):
    write(tmp_path / "ruler/essays.txt", "Tide and anchor. " * 300)
    essay = texts.essay_words(DataFiles(tmp_path))
    (sample,) = made("niah_single_2", DataFiles(tmp_path), word_tokenizer(), length=4096, samples=1)
    assert len(sample.text.split()) > 2 * len(essay)


@pytest.mark.heavy
def test_hyphenated_words_are_those_of_a_sorted_set():
    adjectives, nouns = ["self", "self-made", "a", "a-b", "zealous"], ["made-up", "b-c", "c", "c", "up", "made"]
    assert list(texts._Hyphenated(adjectives, nouns)) == sorted({f"{one}-{two}" for one in adjectives for two in nouns})
