import json

import numpy as np
import pytest

from nextlong.errors import CorpusError, TokenizerError

pytestmark = pytest.mark.heavy


TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def chat_tokenizer(shared_run):
    from transformers import PreTrainedTokenizerFast

    (path,) = shared_run.glob("*-tokenizer-*/*.tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def conversation(*turns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]}


def chat_rows(path, tokenizer, **keys):
    from nextlong.train.chat import ChatRows
    from nextlong.train.recipe import Data

    return ChatRows(Data(chat=str(path), pack=80, validation=0.0, **keys), split="train", tokenizer=tokenizer)


def test_only_answers_are_predicted(tmp_path, chat_tokenizer):
    from nextlong.train.rows import TrainingRows

    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(conversation("the sea", "a harbour", "the bread", "an oven")) + "\n")
    row = TrainingRows(chat_rows(path, chat_tokenizer), attention="sequence")[0]
    predicted = chat_tokenizer.decode(row.input_ids[row.labels != -100], clean_up_tokenization_spaces=False)
    assert predicted.replace(" ", "") == "aharbour</s>anoven</s>"
    assert chat_tokenizer.decode(row.input_ids).replace(" ", "").startswith("<user>thesea</s><assistant>aharbour</s>")


def test_conversations_are_packed_whole_and_long_ones_dropped(tmp_path, chat_tokenizer):
    path = tmp_path / "chat.jsonl"
    said = [
        conversation("the sea", "a harbour"),
        conversation("the sea " * 60, "no"),
        conversation("the bread", "an oven"),
    ] * 3
    path.write_text("".join(json.dumps(one) + "\n" for one in said))
    rows = chat_rows(path, chat_tokenizer)
    assert rows.dropped == 3
    assert sum(len(rows.read(row)[1]) for row in range(len(rows))) == 6
    assert all(len(rows.read(row)[0]) <= 80 for row in range(len(rows)))
    assert all(np.sum(rows.read(row).is_target) for row in range(len(rows)))


@pytest.mark.parametrize(
    ("line", "told"),
    [("{}", "chat.jsonl:1: not a conversation"), (json.dumps(conversation("the sea")), "without an answer")],
)
def test_conversations_that_are_none(tmp_path, chat_tokenizer, line, told):
    (tmp_path / "chat.jsonl").write_text(line + "\n")
    with pytest.raises(CorpusError, match=told):
        chat_rows(tmp_path / "chat.jsonl", chat_tokenizer)


def test_templates_that_rewrite_earlier_turns(tmp_path, chat_tokenizer):
    (tmp_path / "chat.jsonl").write_text(
        json.dumps(conversation("the sea", "a harbour", "the bread", "an oven")) + "\n"
    )
    chat_tokenizer.chat_template = (
        "{% for message in messages %}{% if loop.last %}{{ message.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(TokenizerError, match="renders earlier turns differently"):
        chat_rows(tmp_path / "chat.jsonl", chat_tokenizer)
    chat_tokenizer.chat_template = None
    with pytest.raises(TokenizerError, match="needs a chat template"):
        chat_rows(tmp_path / "chat.jsonl", chat_tokenizer)
