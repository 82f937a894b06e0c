import json
from itertools import islice

import pytest

from evaluation_data import bpe_tokenizer, byte_tokenizer, word_tokenizer, write
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks
from nextlong.evaluate.tasks.helmet import longqa


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = Request(length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples)
    return list(islice(all_tasks()[name].make(request), samples))


def scored(name, sample, answer):
    task = all_tasks()[name]
    return task.score(answer, sample)[task.metric]


@pytest.mark.parametrize("name", ["narrativeqa", "infbench_qa", "infbench_mc"])
def test_stories_are_cut_by_llama_2s_tokens_and_then_by_the_models_own(name, data_folder):
    for backend, length in ((bpe_tokenizer(), 2048), (byte_tokenizer(), 4096)):
        tokenizer = TextTokenizer(backend)
        samples = made(name, data_folder, length=length, backend=backend)
        assert len(samples) == 6
        for sample in samples:
            story = sample.text[sample.details["chars_before"] : len(sample.text) - sample.details["chars_behind"]]
            assert sample.details["story_cut"]
            assert "Question:" not in story
            assert len(story.encode()) <= length - sample.max_new_tokens - 199  # Llama 2's are bytes here
            assert tokenizer.count(sample.text) + sample.max_new_tokens <= length
            # Bytes are the model's tokens too, and the examples beside the story leave less room than HELMET keeps.
            is_omitted = story.endswith(" ... [the rest of the text is omitted]")
            assert is_omitted == (backend.get_vocab_size() > 256)


def test_narrativeqa_asks_about_long_stories_only(data_folder, tmp_path):
    for name in ("narrativeqa/train.jsonl", "narrativeqa/test.jsonl", "helmet/llama2/tokenizer.json"):
        write(tmp_path / name, (data_folder / name).read_text(encoding="utf-8"))
    rows = (tmp_path / "narrativeqa/test.jsonl").read_text(encoding="utf-8").splitlines()
    short = [json.loads(row) for row in rows[:4]]
    for row in short:
        row["document"]["text"] = row["document"]["text"][:131_072]
        row["question"]["text"] = "Which short story?"
    write(tmp_path / "narrativeqa/test.jsonl", "\n".join([*map(json.dumps, short), *rows[4:]]) + "\n")
    samples = made("narrativeqa", tmp_path)
    assert len(samples) == len(rows) - 4
    assert not any("short story" in sample.prompt for sample in samples)
    write(tmp_path / "narrativeqa/test.jsonl", json.dumps(short[0]) + "\n")
    with pytest.raises(EvaluateError, match="no story of .* has more than 131,072 tokens of Llama 2"):
        made("narrativeqa", tmp_path)
    write(tmp_path / "helmet/llama2/tokenizer.json", "{}")
    longqa.llama2.cache_clear()
    with pytest.raises(EvaluateError, match=r"llama2/tokenizer\.json is no tokenizer\.json"):
        made("narrativeqa", tmp_path)


def test_multiple_choice_by_letter_or_whole_option(data_folder):
    (sample,) = made("infbench_mc", data_folder, length=65_536, samples=1)
    letter, option = sample.references
    for answer, score in ((f" {letter}\n", 1.0), (f" {option}", 1.0), (" none", 0.0), (f"Answer: {letter}", 1.0)):
        assert scored("infbench_mc", sample, answer) == score
