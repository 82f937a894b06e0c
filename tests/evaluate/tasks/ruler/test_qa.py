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


def test_a_missing_file_is_named_with_its_source(tmp_path):
    with pytest.raises(
        EvaluateError, match=r"ruler/squad\.json is missing; it comes from SQuAD 2\.0's dev-v2\.0\.json"
    ):
        made("qa_1", DataFiles(tmp_path), word_tokenizer(), length=4096)
