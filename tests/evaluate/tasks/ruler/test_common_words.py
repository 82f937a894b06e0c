from itertools import islice

import pytest

from evaluation_data import word_tokenizer
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks

pytestmark = pytest.mark.heavy


def made(name, data, backend, *, length, samples=3):
    request = Request(length, TextTokenizer(backend), data, samples)
    return list(islice(all_tasks()[name].make(request), samples))


def test_cwe_needs_its_word_list_where_wonderwords_end(tmp_path):
    with pytest.raises(
        EvaluateError, match=r"cwe at 200,000 tokens needs more than 8,\d+ different words, and ruler/english_words"
    ):
        made("cwe", DataFiles(tmp_path), word_tokenizer(), length=200_000)
