from itertools import islice

import pytest

from evaluation_data import bpe_tokenizer, word_tokenizer
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = Request(length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples)
    return list(islice(all_tasks()[name].make(request), samples))


def scored(name, sample, answer):
    task = all_tasks()[name]
    return task.score(answer, sample)[task.metric]


@pytest.mark.parametrize("name", ["narrativeqa", "infbench_qa", "infbench_mc"])
def test_long_stories_are_cut_to_the_length_and_say_so(name, data_folder):
    backend = bpe_tokenizer()
    tokenizer = TextTokenizer(backend)
    for length in (2048, 65_536):
        samples = made(name, data_folder, length=length, backend=backend)
        assert len(samples) == 6
        for sample in samples:
            is_truncated = "[the rest of the text is omitted]" in sample.prompt
            assert is_truncated == sample.details["story_cut"] == (length == 2048)
            assert tokenizer.count(sample.text) + sample.max_new_tokens <= length
            if is_truncated:
                assert tokenizer.count(sample.text) + sample.max_new_tokens > length - 40
            story = sample.text[sample.details["chars_before"] : len(sample.text) - sample.details["chars_behind"]]
            assert "Question:" not in story


def test_multiple_choice_by_letter_or_whole_option(data_folder):
    (sample,) = made("infbench_mc", data_folder, length=65_536, samples=1)
    letter, option = sample.references
    for answer, score in ((f" {letter}\n", 1.0), (f" {option}", 1.0), (" none", 0.0), (f"Answer: {letter}", 1.0)):
        assert scored("infbench_mc", sample, answer) == score
