from itertools import islice

import pytest

from evaluation_data import word_tokenizer, write
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = Request(length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples)
    return list(islice(all_tasks()[name].make(request), samples))


def test_a_helmet_file_that_is_missing_is_named_with_its_source(tmp_path):
    with pytest.raises(
        EvaluateError, match=r"nq-dev-multikilt_1000_k50_dep6\.jsonl is missing; it comes with HELMET's data"
    ):
        made("nq", tmp_path)


def test_a_file_of_another_form_is_told(tmp_path):
    write(tmp_path / "icl/banking77/train.csv", "sentence,category\nhello,greeting\n")
    with pytest.raises(
        EvaluateError, match=r"icl/banking77/train\.csv, line 2: no 'text' \(it has sentence, category\)"
    ):
        made("banking77", tmp_path)
