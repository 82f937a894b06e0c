"""Answers are located in the text of a conversation, and a line that cannot be trained on is named."""

import json

import pytest

from nextlong.errors import CorpusError, TokenizerError

pytestmark = pytest.mark.heavy

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# As Qwen's: content may be null, and calls and tools are rendered.
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CALL = {"type": "function", "function": {"name": "tide", "arguments": {"hour": 3}}}
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {}}}


@pytest.fixture(params=[True, False], ids=["offsets trimmed", "offsets whole"])
def tokenizer(request):
    """A byte-level tokenizer that joins line breaks and spaces, as Llama 3's does."""
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=request.param)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["\n\n\n assistant\n\n  the   harbour\n\n"] * 50, trainer)
    special = ["<|im_start|>", "<|im_end|>"]
    made.add_special_tokens([AddedToken(name, special=True) for name in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=made)
    fast.chat_template = CHATML
    return fast


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def rendered(tokenizer, messages, **more):
    """Return a conversation's text, and the text of the tokens to be predicted."""
    from nextlong.train.conversations import Conversation, render

    given = {"where": "chat.jsonl:1", "messages": messages, "tools": (), **more}
    ids, is_answer = render(Conversation(**given), tokenizer)
    plain = {"clean_up_tokenization_spaces": False}
    return tokenizer.decode(ids, **plain), tokenizer.decode(ids[is_answer], **plain)


@pytest.mark.parametrize(
    "answer",
    [
        "a harbour",
        "\n\na harbour",
        "\n",
        "",
        "  two spaces",
        "ends in spaces   ",
        "ends in line breaks\n\n",
        "⚓ harbour ⚓",
        "\r\nthe harbour",
        "\tharbour",
        "<|im_start|>",
    ],
)
def test_an_answer_is_predicted_whole_whatever_it_begins_and_ends_with(
    tokenizer, answer
):
    messages = [turn("user", "the sea"), turn("assistant", answer)]
    messages += [turn("user", "the bread"), turn("assistant", "an oven")]
    whole, predicted = rendered(tokenizer, messages)
    expected = f"{answer}<|im_end|>\nan oven<|im_end|>\n"
    # A token may hold the line break of the prompt before the answer's own.
    assert predicted in (expected, f"\n{expected}")
    assert whole.endswith("<|im_start|>assistant\nan oven<|im_end|>\n")


def test_what_follows_the_last_answer_is_read_and_not_predicted(tokenizer):
    messages = [turn("user", "the sea"), turn("assistant", "a harbour")]
    messages.append(turn("user", "thank you"))
    whole, predicted = rendered(tokenizer, messages)
    assert predicted == "a harbour<|im_end|>\n"
    assert whole.endswith("<|im_start|>user\nthank you<|im_end|>\n")


def test_calls_of_tools_are_predicted_and_tools_are_rendered(tokenizer):
    tokenizer.chat_template = WITH_TOOLS
    messages = [
        turn("user", "the tide"),
        turn("assistant", None, tool_calls=[CALL]),
        turn("tool", "high"),
        turn("assistant", "It is high."),
    ]
    whole, predicted = rendered(tokenizer, messages, tools=[TOOL])
    assert "parameters" in whole
    assert json.loads(predicted.split("<|im_end|>")[0])["function"]["name"] == "tide"
    assert predicted.endswith("It is high.<|im_end|>\n")


@pytest.mark.parametrize(
    ("template", "messages", "more", "told"),
    [
        (
            CHATML,
            [turn("user", "a"), turn("assistant", None, tool_calls=[CALL])],
            {},
            "has tool_calls",
        ),
        (
            CHATML,
            [turn("user", "a"), turn("assistant", "b")],
            {"tools": [TOOL]},
            "has tools,",
        ),
        (
            CHATML + "{# tool_calls #}",
            [turn("user", "a"), turn("assistant", None, tool_calls=[CALL])],
            {},
            "first 2 messages",
        ),
        (
            "{{ raise_exception('roles must alternate') }}",
            [turn("user", "a"), turn("assistant", "b")],
            {},
            "(roles must alternate)",
        ),
        (
            CHATML,
            [turn("user", [{"type": "text", "text": "a"}]), turn("assistant", "b")],
            {},
            "first 1 messages",
        ),
    ],
)
def test_what_a_template_cannot_render_names_the_line(
    tokenizer, template, messages, more, told
):
    tokenizer.chat_template = template
    with pytest.raises(CorpusError) as error:
        rendered(tokenizer, messages, **more)
    assert error.value.where == "chat.jsonl:1"
    assert told in error.value.problem


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (
            "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}",
            "earlier turns",
        ),
        (
            CHATML.replace("assistant\\n'", "assistant\\n<think>'"),
            "<think>'",
        ),
    ],
)
def test_templates_whose_answers_cannot_be_located(tokenizer, template, told):
    messages = [turn("user", "a"), turn("assistant", "b")]
    messages += [turn("user", "c"), turn("assistant", "d")]
    tokenizer.chat_template = template
    with pytest.raises(TokenizerError) as error:
        rendered(tokenizer, messages)
    assert error.value.where == "chat.jsonl:1"
    assert told in error.value.problem


def read(path, content):
    from nextlong.train.conversations import read_conversations

    path.write_bytes(content)
    return list(read_conversations(path))


GOOD = json.dumps({"messages": [turn("user", "the sea"), turn("assistant", "a")]})


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path):
    content = f"\ufeff{GOOD}\n\n  \r\n{GOOD}\n".encode()
    found = read(tmp_path / "chat.jsonl", content)
    assert [one.where.rpartition(":")[2] for one in found] == ["1", "4"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{}", "not a conversation"),
        (b"[1]", "not a conversation"),
        (b"\xff\xfe", "not a conversation"),
        (b'{"messages": null}', "not a conversation"),
        (b'{"messages": ["a"]}', "not a conversation"),
        (b'{"messages": []}', "without an answer"),
        (
            json.dumps({"messages": [turn("user", "a")]}).encode(),
            "without an answer",
        ),
        (
            json.dumps(
                {"messages": [turn("user", "a"), turn("assistant", None)]}
            ).encode(),
            "message 1",
        ),
        (
            json.dumps(
                {"messages": [{"role": "user"}, turn("assistant", "a")]}
            ).encode(),
            "message 0",
        ),
    ],
)
def test_lines_that_are_no_conversation_are_named(tmp_path, line, told):
    with pytest.raises(CorpusError) as error:
        read(tmp_path / "chat.jsonl", GOOD.encode() + b"\n" + line)
    assert error.value.where == f"{tmp_path / 'chat.jsonl'}:2"
    assert told in error.value.problem


def test_a_tokenizer_without_offsets_is_refused(tokenizer):
    class Slow:
        is_fast = False
        get_chat_template = tokenizer.get_chat_template
        apply_chat_template = tokenizer.apply_chat_template

    with pytest.raises(TokenizerError) as error:
        rendered(Slow(), [turn("user", "a"), turn("assistant", "b")])
    assert error.value.where == "data.chat"
    assert "Slow" in error.value.problem
