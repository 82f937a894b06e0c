"""The words of the errors of tasks and probes: where, what is wrong, and what to do."""

from types import SimpleNamespace

import pytest
from tests.support.evaluation_data import word_tokenizer

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import TaskRequest, TextTokenizer
from nextlong.evaluate.tasks import openai, probes
from nextlong.evaluate.tasks.haystack import haystack_text

TOKENIZER = TextTokenizer(word_tokenizer())


def test_a_chat_prompt_of_the_probe_of_attention():
    model = SimpleNamespace(reads_whole=False, prompts=SimpleNamespace(format="chat"))
    with pytest.raises(EvaluateError) as error:
        probes._check_plain(model, None)
    assert str(error.value) == (
        "attention: the probe finds the context only in plain prompts; remove "
        "--prompt-format chat, or this probe"
    )


def test_an_empty_haystack(tmp_path):
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle/haystack.txt").write_text("  \n")
    with pytest.raises(EvaluateError) as error:
        haystack_text(DataFiles(tmp_path))
    assert str(error.value).endswith(
        "haystack.txt: it is empty; write a long text to it"
    )


@pytest.mark.heavy
def test_a_length_without_room(tmp_path):
    request = TaskRequest(512, TOKENIZER, DataFiles(tmp_path))
    with pytest.raises(EvaluateError) as error:
        all_tasks()["vt"].make(request)
    assert str(error.value) == (
        "--lengths: vt needs at least 1,024 tokens, not 512; leave the length or the "
        "task out"
    )


@pytest.mark.heavy
def test_a_run_without_so_many_meta_chunks(shared_run):
    request = TaskRequest(4096, TOKENIZER, DataFiles(None), run=shared_run)
    with pytest.raises(EvaluateError) as error:
        list(openai._mined_samples(request, 99))
    assert str(error.value) == (
        f"mrcr_mined_99: no sequence of {shared_run} has 99 meta-chunks of 100 "
        "characters; leave the task out"
    )
