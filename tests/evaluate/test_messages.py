"""The words of the errors of an evaluation: where, what is wrong, and what to do."""

from pathlib import Path

import pytest
from tests.support.evaluation_data import word_tokenizer

from nextlong.errors import EvaluateError
from nextlong.evaluate import required, results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.probe import local_model
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.registry import chosen, registered
from nextlong.evaluate.settings import EvaluationSettings, check
from nextlong.evaluate.task import TaskRequest, TextTokenizer, parse_lengths

MEASURED = [task.name for task in chosen([], [])]
TOKENIZER = TextTokenizer(word_tokenizer())


def settings(*names, lengths=(8192,), folder=None):
    tasks = [registered()[name] for name in names]
    return EvaluationSettings(
        tasks, lengths, Path("results"), DataFiles(folder), ModelOptions("model")
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ModelOptions("m", prompt_format="messages"),
            "--prompt-format messages: it is for a server (--url); give chat, or "
            "completion for a base model",
        ),
        (
            lambda: ModelOptions("m", tokenizer="t.json"),
            "--tokenizer t.json: it is for a server (--url); remove it: m has a tokenizer "
            "of its own",
        ),
        (
            lambda: Prompts(TOKENIZER, "completion", thinking=9),
            "--thinking: a base model does not reason before it answers; give "
            "--prompt-format chat",
        ),
        (
            lambda: settings("nq", lengths=[4096]).pairs(),
            "nq: its benchmark has only the lengths 8,192, 16,384, 32,768, 65,536, "
            "131,072; add one of them to --lengths, or leave the task out",
        ),
        (
            lambda: check(settings("vt"), context=4096),
            "--lengths 8,192: the model's context is 4,096 tokens; remove the length, "
            "or use a model with a longer context (--context sets another limit, at your "
            "own risk)",
        ),
        (
            lambda: check(settings("dependency"), context=None),
            "dependency: it reads the sequences of a run; add --run RUN",
        ),
        (
            lambda: local_model(None, registered()["attention"]),
            "attention: a server gives no access to the inside of its model; name the "
            "model's folder or hub name, without --url, or leave the probe out",
        ),
        (
            lambda: TaskRequest(512, TOKENIZER, DataFiles(None)).require(
                "vt", tokens=512, min_tokens=1024
            ),
            "--lengths: vt needs at least 1,024 tokens, not 512; leave the length or the "
            "task out",
        ),
        (
            lambda: parse_lengths("64k..8k"),
            "--lengths 64k..8k: the second is smaller than the first; write 8k..128k",
        ),
        (
            lambda: chosen([], ["vts"]),
            f"--tasks vts: unknown task; did you mean 'vt'? Or choose from {', '.join(MEASURED)}",
        ),
        (
            lambda: chosen(["longbench-v2"], []),
            "--suite longbench-v2: nextlong reads its results, but LongBench's pred.py "
            "measures it; docs/evaluate/import.md has the commands",
        ),
        (
            lambda: required("no_such_package"),
            "no_such_package: the package is not installed; run: pip install "
            "'nextlong[evaluate]'",
        ),
        (
            lambda: results.read_results(Path("no-such-folder")),
            "no-such-folder: it is not a folder; give a folder that `nextlong evaluate "
            "run MODEL --out FOLDER` wrote",
        ),
    ],
)
def test_a_mistake_is_told_in_these_words(call, words):
    with pytest.raises(EvaluateError) as error:
        call()
    assert str(error.value) == words


def test_missing_files_of_one_origin_are_told_together():
    missing = DataFiles(None).missing(["ruler/squad.json", "other.json"])
    where = "(in the folder that --data names)"
    assert str(missing).splitlines()[1] == (
        f"other.json {where}: it is missing; add the file"
    )


def test_a_damaged_file_is_told_with_its_source(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(EvaluateError) as error:
        list(DataFiles(tmp_path).json_lines("a.jsonl"))
    assert str(error.value) == (
        f"{tmp_path / 'a.jsonl'}, line 2: not JSON (Expecting value: line 1 column 10 "
        "(char 9)); fix it, or download it again: add the file"
    )
