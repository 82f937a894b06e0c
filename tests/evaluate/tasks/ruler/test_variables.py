import re
from itertools import islice

import pytest

from evaluation_data import word_tokenizer
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request
from nextlong.evaluate.tasks.ruler.variables import samples


@pytest.mark.parametrize("seed", [1, 42])
def test_the_answers_are_the_variables_that_have_the_value(seed):
    request = Request(1024, TextTokenizer(word_tokenizer()), None, seed=seed)
    for sample in islice(samples(request), 3):
        question = sample.prompt.rpartition("Memorize and track")[2]  # behind the example
        held = {}
        for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", question):
            held[name] = held.get(source, source)
        (value,) = re.findall(r"assigned the value (\d+)", question)
        assert sorted(sample.references) == sorted(name for name, own in held.items() if own == value)
        assert len(sample.references) == 5
