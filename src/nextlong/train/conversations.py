"""Conversations: from JSON Lines to token ids, and which of them the assistant says.

In:  a file with one conversation per line, `messages` and optionally `tools`, as
     OpenAI and TRL write them; a tokenizer with a chat template.
Out: the ids of each conversation, and which of them are to be predicted.

Answers are located in the rendered text, not in the ids: a tokenizer may join the end
of the template's prompt and the beginning of the answer into one token, such as a line
break before a line break. That token belongs to the answer, as in transformers'
`return_assistant_tokens_mask`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerBase

from nextlong.arrays import Bools, Ints
from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.text import Json

_SHAPE_FIX: Final = 'write {"messages": [{"role": …, "content": …}, …]}'
# What a chat template raises for turns that it was not written for.
_TEMPLATE_ERRORS: Final = (
    jinja2.TemplateError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Conversation:
    """A line of the file: the turns, and the tools that they may call.

    `where` names the line in errors.
    """

    where: str
    messages: Sequence[Json]
    tools: Sequence[Json]


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of a file. Raises CorpusError that names the line."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parsed(line, where=f"{path}:{number}")
    except OSError as error:
        raise RecipeError(
            where="data.chat",
            problem=f"{path} cannot be read: {error.strerror}",
            fix="name a JSON Lines file",
        ) from None


def _parsed(line: bytes, *, where: str) -> Conversation:
    """Return the conversation of a line. Raises CorpusError if it is none."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
        messages = record["messages"]
        tools = record.get("tools") or []
        roles = [message["role"] for message in messages]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CorpusError(
            where=where, problem="it is not a conversation", fix=_SHAPE_FIX
        ) from None
    for number, message in enumerate(messages):
        has_content = isinstance(message.get("content"), str | list)
        if not has_content and not message.get("tool_calls"):
            raise CorpusError(
                where=where,
                problem=f"message {number} has neither content nor tool_calls",
                fix=_SHAPE_FIX,
            )
    if "assistant" not in roles:
        raise CorpusError(
            where=where,
            problem="it is a conversation without an answer of the assistant",
            fix="remove it",
        )
    return Conversation(where, messages, tools)


def render(
    conversation: Conversation, tokenizer: PreTrainedTokenizerBase
) -> tuple[Ints, Bools]:
    """Return a conversation's ids (T,), and which are in the assistant's answers.

    An answer is what the template adds for it to its prompt for an answer.
    Raises CorpusError or TokenizerError that names the line.
    """
    _check_tools(conversation, tokenizer)
    text = ""
    # The first character of each answer in the text, and the one behind its last.
    answers: list[tuple[int, int]] = []
    for turn, message in enumerate(conversation.messages):
        if message["role"] != "assistant":
            continue
        prompt = _text_of(conversation, tokenizer, turns=turn, asks_for_answer=True)
        _check_appended(prompt, text, conversation)
        text = _text_of(conversation, tokenizer, turns=turn + 1)
        if not text.startswith(prompt):
            earlier = _text_of(conversation, tokenizer, turns=turn)
            _check_appended(text, earlier, conversation)
            raise TokenizerError(
                where=conversation.where,
                problem="the chat template begins an answer with "
                f"{prompt[-40:]!r}, and renders answer {len(answers)} otherwise",
                fix="use a template that does not, or write what it adds into the "
                "answers",
            )
        answers.append((len(prompt), len(text)))
    # What the template adds behind the last answer belongs to no answer.
    whole = _text_of(conversation, tokenizer, turns=len(conversation.messages))
    _check_appended(whole, text, conversation)
    return _tokens_of(whole, answers, tokenizer)


def _check_tools(
    conversation: Conversation, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise CorpusError where the template would silently leave out tools or calls."""
    template = tokenizer.get_chat_template(tools=list(conversation.tools) or None)
    calls = any(message.get("tool_calls") for message in conversation.messages)
    for name, is_used in (("tool_calls", calls), ("tools", bool(conversation.tools))):
        if is_used and name not in template:
            raise CorpusError(
                where=conversation.where,
                problem=f"it has {name}, which the model's chat template does not "
                "render",
                fix="remove the conversation, or use a model with a template for tools",
            )


def _text_of(
    conversation: Conversation,
    tokenizer: PreTrainedTokenizerBase,
    *,
    turns: int,
    asks_for_answer: bool = False,
) -> str:
    """Return the first turns as the chat template renders them. Raises CorpusError."""
    try:
        text = tokenizer.apply_chat_template(
            list(conversation.messages[:turns]),
            tools=list(conversation.tools) or None,
            tokenize=False,
            add_generation_prompt=asks_for_answer,
        )
    except _TEMPLATE_ERRORS as error:
        raise CorpusError(
            where=conversation.where,
            problem="the model's chat template cannot render the first "
            f"{turns} messages ({error})",
            fix="change or remove the conversation",
        ) from None
    return str(text)


def _check_appended(longer: str, text: str, conversation: Conversation) -> None:
    """Raise TokenizerError unless a longer text begins with a shorter one."""
    if not longer.startswith(text):
        raise TokenizerError(
            where=conversation.where,
            problem="the chat template renders earlier turns differently once there "
            "are later ones, so answers cannot be located",
            fix="use a template that only appends",
        )


def _tokens_of(
    text: str, answers: Sequence[tuple[int, int]], tokenizer: PreTrainedTokenizerBase
) -> tuple[Ints, Bools]:
    """Return the ids of a text (T,), and which hold a character of an answer."""
    if not tokenizer.is_fast:
        raise TokenizerError(
            where="data.chat",
            problem="it needs to know which characters a token stands for, and "
            f"{type(tokenizer).__name__} does not tell",
            fix="save the model with a fast tokenizer (tokenizer.json)",
        )
    encoded: Any = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True
    )
    # (T,): the first character of each token, and the one behind its last.
    starts, ends = np.array(encoded["offset_mapping"], np.int64).reshape(-1, 2).T
    # Some tokenizers count a token without its spaces: it then begins where the one
    # before ends.
    starts = np.minimum(starts, np.append(0, ends[:-1]))
    is_answer = np.zeros(len(ends), bool)
    for first, last in answers:
        is_answer |= (ends > first) & (starts < last)
    return np.array(encoded["input_ids"], np.int64), is_answer
