"""RULER: an oracle scores 100 and a blind model 0, at every length and for any
tokenizer."""

from itertools import islice

import pytest

from answering_models import Blind, Oracle
from evaluation_data import TOKENIZERS, word_tokenizer, write_data
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks

pytestmark = pytest.mark.heavy


RULER = [name for name, task in all_tasks().items() if task.suite == "ruler"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return DataFiles(write_data(tmp_path_factory.mktemp("data")))


def made(name, data, backend, *, length, samples=3):
    request = Request(length, TextTokenizer(backend), data, samples)
    return list(islice(all_tasks()[name].make(request), samples))


@pytest.mark.parametrize(("kind", "length"), [("bytes", 24_576), ("unigram", 8192), ("bpe", 8192), ("bpe", 20_000)])
@pytest.mark.parametrize("name", RULER)
def test_an_oracle_scores_all_and_a_blind_model_nothing(name, length, kind, data):
    backend = TOKENIZERS[kind]()
    task, oracle, blind = all_tasks()[name], Oracle(backend), Blind(backend)
    samples = made(name, data, backend, length=length, samples=2)
    assert len(samples) == 2
    for sample in samples:
        tokens = oracle.tokenizer.count(sample.text)
        assert tokens + sample.max_new_tokens <= length
        assert sample.max_new_tokens == task.max_new_tokens
        assert task.score(oracle.read(sample.text), sample)[task.metric] == 1.0
        assert task.score(blind.read(sample.text), sample)[task.metric] == 0.0


@pytest.mark.parametrize("name", ["niah_single_1", "vt", "cwe", "fwe", "niah_multikey_3"])
def test_the_length_is_used(name, data):
    """The context is the largest that fits, so that a longer question is a longer context."""
    tokenizer = TextTokenizer(TOKENIZERS["bpe"]())
    for length in (12_000, 24_000):
        (sample,) = made(name, data, tokenizer.backend, length=length, samples=1)
        assert tokenizer.count(sample.text) + sample.max_new_tokens > 0.75 * length


def test_a_length_without_room_is_refused(data):
    with pytest.raises(EvaluateError, match="vt needs at least 1024 tokens, not 512"):
        made("vt", data, word_tokenizer(), length=512)
