"""LongBench v2: the official prompt, cut in its middle between tokens, and its table by difficulty and length."""

from itertools import islice

import pytest

from evaluation_data import bpe_tokenizer
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks

TASK = all_tasks()["longbench_v2"]


def made(data_folder, length):
    tokenizer = TextTokenizer(bpe_tokenizer())
    return tokenizer, list(islice(TASK.make(Request(length, tokenizer, DataFiles(data_folder))), 8))


def test_a_prompt_that_fits_is_whole(data_folder):
    _, samples = made(data_folder, 131_072)
    assert len(samples) == 8
    sample = samples[0]
    assert sample.input_ids is None
    assert sample.prompt.startswith("Please read the following text and answer the question below.\n\n<text>\n")
    assert sample.prompt.endswith('Format your response as follows: "The correct answer is (insert answer here)".')


def test_a_longer_one_is_cut_in_its_middle_between_tokens(data_folder):
    tokenizer, samples = made(data_folder, 4096)
    cut = [sample for sample in samples if sample.details["middle_cut"]]
    assert len(cut) == sum(sample.details["length"] == "long" for sample in samples) == 4
    whole = {sample.prompt[-200:]: sample for sample in made(data_folder, 131_072)[1]}
    for sample in cut:
        ids = tokenizer.encode(whole[sample.prompt[-200:]].prompt)
        half = (4096 - 128) // 2
        assert list(sample.input_ids) == ids[:half] + ids[-half:]
        assert len(sample.input_ids) + sample.max_new_tokens == 4096
        assert tokenizer.backend.decode(ids[:half]) + tokenizer.backend.decode(ids[-half:]) == sample.prompt


@pytest.mark.parametrize(
    ("answer", "accuracy", "parsed"),
    [("The correct answer is ({})", 1, 1), ("{}", 0, 0), ("The correct answer is (E)", 0, 0)],
)
def test_an_answer_without_a_letter_is_wrong(answer, accuracy, parsed, data_folder):
    _, (sample, *_) = made(data_folder, 131_072)
    assert TASK.score(answer.format(sample.references[0]), sample) == {"accuracy": accuracy, "parsed": parsed}
