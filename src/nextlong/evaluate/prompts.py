"""Prompts: the token ids of a sample, equal for every engine, and the part of the generated text that is the answer.

    completion   the prompt and the answer's prefix, as one text; the tokenizer's BOS precedes it once
    chat         the model's chat template, applied here: the prompt is the user's turn, the answer's prefix begins the assistant's
    messages     turns for a server's own template, which cannot begin an answer

With `thinking` a chat template is told to let the model reason: it gets that many more tokens, its answer has no prefix, and its
reasoning is removed before a stop string is looked for and the answer is scored.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.task import Sample, TextTokenizer
from nextlong.text import Json, first_sentence, why_no_model

_PromptFormat = Literal["completion", "chat", "messages"]
_UNKNOWN_TEMPLATE: Final = (
    64  # tokens kept free for a template that only the server knows
)
_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class ModelOptions:
    """Which model is evaluated, where it runs, and how it is prompted.

    With `url` it runs on a server, whose prompts are counted by `tokenizer` (default: `name`). `thinking` is the number of tokens
    to reason in; `context` replaces the context of the model's configuration; vLLM splits a model over `gpus`.
    """

    name: str
    prompt_format: _PromptFormat = "completion"
    thinking: int = 0
    context: int | None = None
    revision: str | None = None
    engine: Literal["transformers", "vllm"] = "transformers"
    gpus: int = 1
    device: str = "auto"
    dtype: str = "auto"
    attention: str = "sdpa"
    chunk_tokens: int = 2048
    batch_tokens: int = 16_384
    url: str | None = None
    tokenizer: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 8
    max_attempts: int = 8
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise EvaluateError for options that contradict each other, and for a name that is not a model's."""
        mistake = None
        if self.url is not None:
            is_web = self.url.startswith(("http://", "https://"))
            mistake = (
                None
                if is_web
                else f"--url {self.url}: give http://HOST:PORT/v1 or https://…"
            )
        elif why := why_no_model(self.name):
            mistake = f"{self.name} {why}, or the --url of a server"
        elif self.prompt_format == "messages":
            mistake = "--prompt-format messages is for a server (--url); give chat, or completion for a base model"
        elif self.tokenizer is not None:
            mistake = f"--tokenizer {self.tokenizer} is for a server (--url); {self.name} brings its own"
        elif self.engine != "vllm" and self.gpus > 1:
            mistake = f"--gpus {self.gpus} is for --engine vllm; --device sharded spreads a model of transformers"
        if mistake:
            raise EvaluateError(mistake)


@dataclass(frozen=True)
class Prompts:
    """How samples become prompts. `template` is a tokenizer of transformers with a chat template, needed for `chat`."""

    tokenizer: TextTokenizer
    format: _PromptFormat = "completion"
    thinking: int = 0
    template: Any = None

    def __post_init__(self) -> None:
        if self.thinking and self.format == "completion":
            raise EvaluateError(
                "--thinking: a base model does not reason before it answers; give --prompt-format chat"
            )

    @classmethod
    def read(cls, options: ModelOptions) -> Prompts:
        """Read a model's tokenizer, and for `chat` its template. Raises EvaluateError where one is missing."""
        source = (options.url and options.tokenizer) or options.name
        if options.prompt_format != "chat":
            return cls(
                TextTokenizer.read(source), options.prompt_format, options.thinking
            )
        template = load_tokenizer(source, options)
        return cls(
            TextTokenizer(template.backend_tokenizer),
            "chat",
            options.thinking,
            template,
        )

    @cached_property
    def overhead(self) -> int:
        """The tokens that a template adds to a prompt."""
        if self.format != "chat":
            return _UNKNOWN_TEMPLATE if self.format == "messages" else 0
        # The tokens around a prompt of one letter: a template adds the same to every prompt.
        return len(self.ids(Sample("a", (), 1))) - self.tokenizer.count("a")

    def text(self, sample: Sample) -> str:
        """Return the text that the model continues, without a BOS."""
        if self.format != "chat":
            return sample.text
        text: str = self.template.apply_chat_template(
            _turns(sample),
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=bool(self.thinking),
        )
        if self.tokenizer.prefix == (
            self.template.bos_token_id,
        ):  # the tokenizer adds it again
            text = text.removeprefix(self.template.bos_token)
        # A template ends in its own line break, so the prefix loses its own.
        return text if self.thinking else text + sample.answer_prefix.lstrip()

    def ids(self, sample: Sample) -> list[int]:
        """Return the ids that the model is fed, BOS once."""
        cut = sample.input_ids if self.format == "completion" else None
        return self.tokenizer.with_prefix(
            cut or self.tokenizer.encode(self.text(sample))
        )

    def sent(self, sample: Sample) -> str | list[int] | list[dict[str, str]]:
        """Return what a server is sent: the prompt; its messages; or, where it was cut between tokens, its ids."""
        if self.format == "messages":
            return _turns(sample)
        # The text of a prompt that was cut may be tokenized differently at the cut.
        return (
            self.ids(sample)
            if sample.input_ids and self.format == "completion"
            else self.text(sample)
        )

    def hash_of(self, sample: Sample) -> str:
        """Return the SHA-256, in hex, of what is sent, ids or messages as JSON."""
        sent = self.sent(sample)
        text = sent if isinstance(sent, str) else json.dumps(sent, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def budget(self, sample: Sample) -> int:
        """Return the most tokens that are generated, reasoning included."""
        return sample.max_new_tokens + self.thinking

    def stop(self, sample: Sample) -> str | None:
        """Return what an engine may stop at: nothing where it might be a part of the reasoning."""
        return None if self.thinking else sample.stop

    def answer(self, text: str, sample: Sample) -> str:
        """Return the answer in a generated text: after the reasoning, up to the first stop; "" if the reasoning does not end."""
        # Everything up to the last closing tag is reasoning; a text that never closes it has no answer.
        if self.thinking and _CLOSE in text:
            text = text.rpartition(_CLOSE)[2].lstrip()
        elif self.thinking:
            # A template may open the reasoning itself.
            opens = self.format == "chat" and self.text(
                Sample("a", (), 1)
            ).rstrip().endswith(_OPEN)
            text = "" if opens or _OPEN in text else text
        return text if sample.stop is None else text.split(sample.stop, 1)[0]

    def identity(self) -> Json:
        """Return the part of a model's identity in results that says how it is prompted."""
        template = (
            getattr(self.template, "chat_template", None)
            if self.format == "chat"
            else None
        )
        named = (
            None
            if template is None
            else hashlib.sha256(str(template).encode()).hexdigest()[:32]
        )
        about = {
            "tokenizer": self.tokenizer.hash,
            "prompt_format": self.format,
            "template": named,
        }
        return {**about, "thinking": self.thinking}


def _turns(sample: Sample) -> list[dict[str, str]]:
    return [
        {"role": role, "content": content}
        for role, content in sample.turns or (("user", sample.prompt),)
    ]


def load_tokenizer(name: str, options: ModelOptions) -> Any:
    """Return a fast tokenizer of transformers. Raises EvaluateError if it is missing, or lacks the chat template of the format."""
    source, auto = Path(name).expanduser(), required("transformers").AutoTokenizer
    # The user may name the tokenizer.json itself; transformers needs its folder.
    folder = str(source.parent if source.is_file() else source)
    try:
        tokenizer = auto.from_pretrained(folder, revision=options.revision)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EvaluateError(
            f"{name} has no tokenizer that transformers can read: {first_sentence(error)}; save it beside the model"
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        cure = "`AutoTokenizer.from_pretrained(…).save_pretrained(…)` writes one"
        raise EvaluateError(f"{name}: its tokenizer has no tokenizer.json; {cure}")
    if options.prompt_format == "chat" and not tokenizer.chat_template:
        raise EvaluateError(
            f"--prompt-format chat: {name} has no chat template; leave the option out for a base model, or name the folder of "
            "an instruction-tuned one (of a server: --tokenizer FOLDER, or --prompt-format messages)"
        )
    return tokenizer
