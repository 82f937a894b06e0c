"""Every task gives the maximum to a model that knows the answers, as a base model and as a chat model writes them, and nothing to
a blind one."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.evaluation_data import (
    word_tokenizer,
    write,
    write_data,
    write_helmet,
)
from tests.support.oracles import scores

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import TaskRequest, TextTokenizer
from nextlong.evaluate.tasks import nolima, openai

pytestmark = pytest.mark.heavy  # RULER's words and sentences
TASKS = all_tasks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_helmet(write_data(tmp_path_factory.mktemp("data")))
    for number, file in enumerate([*openai._MRCR.values()]):
        for part in file:
            write_rows(folder / part, [conversation(2 << number)])
    needle = {
        "id": "0401",
        "needle": "{CHAR} has a flat beside the Sagrada Família.",
        "questions": {"onehop": "Which character lives in Spain?"},
        "tests": {"T1": {}},
        "character_set": ["Amara", "Bastian"],
    }
    write(folder / nolima._NEEDLES, json.dumps([needle]))
    for book in nolima._BOOKS:
        write(folder / book, "\n".join(f"Line {n} of a book." for n in range(400)))
    return folder


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)


def conversation(needles):
    """Return a conversation of OpenAI's form that asks for the second of its poems."""
    turns = []
    for number in range(needles):
        turns.append(("user", "Write a poem about tapirs."))
        turns.append(("assistant", f"poem {number}\n\n" + "tapir " * (4500 // needles)))
    asked = "Prepend aYooSG8CQg to the 2nd (1 indexed) poem about tapirs. Do not include it."
    turns.append(("user", asked))
    return {
        "prompt": json.dumps([{"role": role, "content": text} for role, text in turns]),
        "answer": f"aYooSG8CQg{turns[3][1]}",
        "random_string_to_prepend": "aYooSG8CQg",
    }


def request(task, folder, run):
    length = 3072 if task.reads == "run" else 8192
    tokenizer = TextTokenizer(word_tokenizer())
    return TaskRequest(length, tokenizer, DataFiles(folder), samples=3, run=run)


@pytest.mark.parametrize("kind", ["base", "chat", "blind", "blind base"])
@pytest.mark.parametrize("name", TASKS)
def test_a_model_that_knows_the_answers_scores_all_and_a_blind_one_nothing(
    name, kind, folder, shared_run
):
    task = TASKS[name]
    found = scores(task, request(task, folder, shared_run), kind)
    if name == "mrcr_mined_8":  # the run has no document of eight meta-chunks
        return
    assert found
    expected = 0.0 if "blind" in kind else 1.0
    assert found == [expected] * len(found)
