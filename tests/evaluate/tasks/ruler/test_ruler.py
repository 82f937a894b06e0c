"""RULER: prompts as NVIDIA's generator makes them; an oracle scores 100 and a blind model 0, at every length and for any
tokenizer."""

import hashlib
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


# SHA-256, first half, of the first three prompts and answers that the logic of NVIDIA/RULER's scripts/data/synthetic/*.py (2025)
# gives at 4,096 tokens of `word_tokenizer` with seed 42, the words of wonderwords 3.0.1 and the files of `write_data`; fwe with
# its 50 tokens kept free.
NVIDIA = {
    "niah_single_1": "e01d01877445e9a82f71d14009217707",
    "niah_single_2": "be47ca33d0051ea9f90b9f47d588d066",
    "niah_single_3": "e1b9696cb1f3965e89b78f0a2ab72e8a",
    "niah_multikey_1": "a4c477cebcf7c624de30429dbdc25b8a",
    "niah_multikey_2": "b8dd553746656763dd02abc8dad269d2",
    "niah_multikey_3": "c36f25b4faa4d56064d1b54d8d1488b0",
    "niah_multivalue": "94d086b751d83992726f6785afd7cad7",
    "niah_multiquery": "41aeba554b92686db4c36be5373444cc",
    "vt": "4751bd35b601e9dbbaad4dcbde2c2591",
    "cwe": "83701bdf12b333089b895b70747bcdbe",
    "fwe": "ea6cba77f0b72540fb3ced67010b41cd",
    "qa_1": "4fbb7d7ad1c1af52f53f68b46c6064b5",
    "qa_2": "9b1e804bb1d4fcfec50d5593f63a6c82",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return DataFiles(write_data(tmp_path_factory.mktemp("data")))


def made(name, data, backend, *, length, samples=3):
    request = Request(length, TextTokenizer(backend), data, samples)
    return list(islice(all_tasks()[name].make(request), samples))


def test_there_are_thirteen_tasks():
    assert set(RULER) == set(NVIDIA)


@pytest.mark.parametrize("name", NVIDIA)
def test_prompts_and_answers_are_nvidias(name, data):
    samples = made(name, data, word_tokenizer(), length=4096)
    parts = [sample.text + "\x1e" + "\x1e".join(sample.references) for sample in samples]
    assert hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32] == NVIDIA[name]


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
