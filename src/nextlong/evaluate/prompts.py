"""Prompts: the token ids of a sample, equal for every engine.

In:  samples. Out: what an engine is sent, and the part of a generated text that is the
answer.

    completion   the prompt and the answer's prefix, as one text; the tokenizer's BOS
                 precedes it once
    chat         the model's chat template, applied here: the prompt is the user's turn,
                 the answer's prefix begins the assistant's
    messages     turns for a server's own template, which cannot begin an answer

Which of a model's formats a task uses is the task's own protocol (`Task.chat`): HELMET
asks instruction-tuned models most questions as plain text.

With `thinking` a chat template is told to let the model reason: it gets that many more
tokens, its answer is never begun, and its reasoning is removed before the answer is
scored.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import tokenizers

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.task import ChatProtocol, Sample, TextTokenizer
from nextlong.text import Json, first_sentence, why_no_model

_PromptFormat = Literal["completion", "chat", "messages"]
# Tokens kept free for a template that only the server knows.
_UNKNOWN_TEMPLATE: Final = 64
_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
# What replaces `strftime_now`: the date that Llama 3's template has without it.
_TEMPLATE_DATE: Final = datetime(2024, 7, 26, tzinfo=UTC)
_DATE_CALL: Final = re.compile(r"""strftime_now\(\s*(["'])(?P<format>.*?)\1\s*\)""")
_SHORTEST: Final = Sample("a", (), 1)


@dataclass(frozen=True)
class ModelOptions:
    """Which model is evaluated, where it runs, and how it is prompted.

    url: the server that it runs on, None for this machine
    tokenizer: counts the prompts of a server (default: `name`)
    thinking: the number of tokens to reason in
    context: replaces the context of the model's configuration
    """

    name: str
    prompt_format: _PromptFormat = "completion"
    thinking: int = 0
    context: int | None = None
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    attention: str | None = None
    chunk_tokens: int = 2048
    batch_tokens: int = 16_384
    url: str | None = None
    tokenizer: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 8
    max_attempts: int = 8
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise EvaluateError for options that contradict each other.

        And for a name that is not a model's.
        """
        if self.url is None:
            self._check_local()
        elif not self.url.startswith(("http://", "https://")):
            raise EvaluateError(
                where=f"--url {self.url}",
                problem="it is not the URL of a server",
                fix="give http://HOST:PORT/v1 or https://…",
            )

    def _check_local(self) -> None:
        no_model = why_no_model(self.name)
        if no_model is not None:
            raise EvaluateError(
                where=self.name,
                problem=f"it {no_model.problem}",
                fix=f"{no_model.fix}, or the --url of a server",
            )
        if self.prompt_format == "messages":
            raise EvaluateError(
                where="--prompt-format messages",
                problem="it is for a server (--url)",
                fix="give chat, or completion for a base model",
            )
        if self.tokenizer is not None:
            raise EvaluateError(
                where=f"--tokenizer {self.tokenizer}",
                problem="it is for a server (--url)",
                fix=f"remove it: {self.name} has a tokenizer of its own",
            )


@dataclass(frozen=True)
class Prompts:
    """How samples become prompts.

    template: a tokenizer of transformers with a chat template, needed for `chat`;
        `tokenizer` then adds no special tokens, for the template has them
    begins_answer: whether the prefix of an answer is a part of the prompt
    plain: for `chat`, the tokenizer that puts a BOS before plain text
    """

    tokenizer: TextTokenizer
    format: _PromptFormat = "completion"
    thinking: int = 0
    template: Any = None
    begins_answer: bool = True
    plain: TextTokenizer | None = None

    def __post_init__(self) -> None:
        if self.thinking and self.format == "completion":
            raise EvaluateError(
                where="--thinking",
                problem="a base model does not reason before it answers",
                fix="give --prompt-format chat",
            )
        if self._is_reasoning_open and not self.thinking:
            raise EvaluateError(
                where="--prompt-format chat",
                problem=f"the model's template ends in an open {_OPEN}, so that its "
                "answers would begin inside the reasoning",
                fix="give --thinking N, the tokens to reason in",
            )

    @cached_property
    def _is_reasoning_open(self) -> bool:
        """Whether the template begins the reasoning itself."""
        return self.format == "chat" and self.text(_SHORTEST).rstrip().endswith(_OPEN)

    @classmethod
    def read(cls, options: ModelOptions) -> Prompts:
        """Read a model's tokenizer, and for `chat` its template.

        Raises EvaluateError where one is missing.
        """
        source = options.name
        if options.url and options.tokenizer:
            source = options.tokenizer
        if options.prompt_format != "chat":
            tokenizer = TextTokenizer.read(source)
            return cls(tokenizer, options.prompt_format, options.thinking)
        return cls.of(load_tokenizer(source, options), options)

    @classmethod
    def of(cls, template: Any, options: ModelOptions) -> Prompts:
        """Return the prompts of a tokenizer of transformers."""
        plain = TextTokenizer(template.backend_tokenizer)
        tokenizer = plain
        if options.prompt_format == "chat":
            tokenizer = TextTokenizer(_without_special_tokens(plain.backend))
            template.chat_template = _with_fixed_date(template.get_chat_template())
        return cls(
            tokenizer=tokenizer,
            format=options.prompt_format,
            thinking=options.thinking,
            template=template,
            plain=plain,
        )

    def under(self, protocol: ChatProtocol) -> Prompts:
        """Return the prompts of a task whose benchmark asks a chat model in this way.

        A base model is asked in one way, and a server's or a reasoning model's template
        cannot be left out.
        """
        if self.format == "completion":
            return self
        if protocol == "plain text" and self.format == "chat" and not self.thinking:
            plain = self.plain or self.tokenizer
            return replace(self, format="completion", tokenizer=plain)
        begins_answer = protocol == "begun answer" and not self.thinking
        return replace(self, begins_answer=begins_answer)

    def asked(self, sample: Sample) -> Sample:
        """Return a sample with what a model of this format reads and stops at."""
        if self.format == "completion":
            return sample
        prefix = sample.answer_prefix if self.begins_answer else ""
        return replace(sample, answer_prefix=prefix, stop=None)

    @cached_property
    def overhead(self) -> int:
        """The tokens that a template adds to a prompt, without BOS."""
        if self.format == "completion":
            return 0
        if self.format == "messages":
            return _UNKNOWN_TEMPLATE
        # The tokens around a prompt of one letter: a template adds the same to every
        # prompt.
        without_template = self.tokenizer.count(_SHORTEST.prompt)
        ids = self.ids(_SHORTEST)
        special = (self.plain or self.tokenizer).prefix
        if tuple(ids[: len(special)]) == special:
            ids = ids[len(special) :]
        return len(ids) - without_template

    @property
    def template_options(self) -> dict[str, bool]:
        """Whether to reason, by both names that templates have for it."""
        return dict.fromkeys(("enable_thinking", "thinking"), bool(self.thinking))

    def text(self, sample: Sample) -> str:
        """Return the text that the model continues.

        It has no BOS, unless a template writes one.
        """
        if self.format != "chat":
            return sample.text
        text: str = self.template.apply_chat_template(
            _turns(sample),
            add_generation_prompt=True,
            tokenize=False,
            **self.template_options,
        )
        # A template ends in its own line break, so the prefix loses its own.
        return text + sample.answer_prefix.lstrip()

    def ids(self, sample: Sample) -> list[int]:
        """Return the ids that the model is fed, BOS once."""
        ids = self.tokenizer.encode(self.text(sample))
        return self.tokenizer.with_prefix(ids)

    def sent(self, sample: Sample) -> str | list[dict[str, str]]:
        """Return a prompt as text, or as messages."""
        return _turns(sample) if self.format == "messages" else self.text(sample)

    def least_tokens(self, sample: Sample) -> int:
        """Return the tokens of a prompt, without the template of a server."""
        if self.format != "messages":
            return len(self.ids(sample))
        return sum(self.tokenizer.count(turn["content"]) for turn in _turns(sample))

    def hash_of(self, sample: Sample) -> str:
        """Return the SHA-256, in hex, of what is sent, messages as JSON."""
        sent = self.sent(sample)
        text = sent if isinstance(sent, str) else json.dumps(sent, ensure_ascii=False)
        content = text.encode("utf-8", "surrogatepass")
        return hashlib.sha256(content).hexdigest()

    def budget(self, sample: Sample) -> int:
        """Return the most tokens that are generated, reasoning included."""
        return sample.max_new_tokens + self.thinking

    def answer(self, text: str, sample: Sample) -> str:
        """Return the answer in a generated text: up to the first stop.

        It follows the reasoning; it is "" if the reasoning does not end.
        """
        if self.thinking:
            text = self._after_reasoning(text)
        return text if sample.stop is None else text.split(sample.stop, 1)[0]

    def _after_reasoning(self, text: str) -> str:
        # Everything up to the last closing tag is reasoning; a text that never closes
        # it has no answer.
        if _CLOSE in text:
            return text.rpartition(_CLOSE)[2].lstrip()
        if _OPEN in text:
            return ""
        return "" if self._is_reasoning_open else text

    def identity(self) -> Json:
        """Return the part of a model's identity that is the same for every task."""
        return {"tokenizer": (self.plain or self.tokenizer).hash}

    def protocol(self) -> Json:
        """Return how the model is prompted, for the results of a task."""
        template = None
        if self.format == "chat":
            template = getattr(self.template, "chat_template", None)
        template_hash = None
        if template is not None:
            content = str(template).encode()
            template_hash = hashlib.sha256(content).hexdigest()[:32]
        return {
            "format": self.format,
            "begins_answer": self.begins_answer,
            "template": template_hash,
            "thinking": self.thinking,
        }


def _without_special_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer like `backend` that puts no special tokens around a text."""
    values = json.loads(backend.to_str())
    processor = values["post_processor"]
    if processor is not None:
        # ByteLevel only sets the characters of a token.
        parts = processor.get("processors", [processor])
        kept = [part for part in parts if part["type"] == "ByteLevel"]
        values["post_processor"] = {"type": "Sequence", "processors": kept}
    return tokenizers.Tokenizer.from_str(json.dumps(values))


def _with_fixed_date(template: str) -> str:
    """Return a template that writes the same date every day.

    With the date of the day a resumed task would mix two prompts.
    """
    return _DATE_CALL.sub(
        lambda call: repr(_TEMPLATE_DATE.strftime(call["format"])), template
    )


def _turns(sample: Sample) -> list[dict[str, str]]:
    turns = sample.turns or (("user", sample.prompt),)
    return [{"role": role, "content": content} for role, content in turns]


def load_tokenizer(name: str, options: ModelOptions) -> Any:
    """Return a fast tokenizer of transformers.

    Raises EvaluateError if it is missing, or lacks the chat template of the format.
    """
    path = Path(name).expanduser()
    # The user may name the tokenizer.json itself; transformers needs its folder.
    source = path.parent if path.is_file() else path
    transformers = required("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(source), revision=options.revision
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EvaluateError(
            where=name,
            problem="it has no tokenizer that transformers can read: "
            f"{first_sentence(error)}",
            fix="save the tokenizer beside the model",
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        raise EvaluateError(
            where=name,
            problem="its tokenizer has no tokenizer.json",
            fix="write one with `AutoTokenizer.from_pretrained(…).save_pretrained(…)`",
        )
    if options.prompt_format == "chat" and not tokenizer.chat_template:
        raise EvaluateError(
            where="--prompt-format chat",
            problem=f"{name} has no chat template",
            fix="leave the option out for a base model, or name the folder of an "
            "instruction-tuned one (of a server: --tokenizer FOLDER, or "
            "--prompt-format messages)",
        )
    return tokenizer
