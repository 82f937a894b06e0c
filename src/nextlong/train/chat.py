"""Chat: conversations as rows, with a loss on the answers alone.

In:  JSON lines with `messages` (role and content each), as UltraChat has them; the chat template of the model's tokenizer.
Out: rows of `data.pack` tokens with whole conversations end to end; each attends to itself alone.

The tokens of an answer are found by rendering the conversation up to each turn: they are what the template adds for an
answer. A template that renders earlier turns differently later on is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.train.recipe import Data
from nextlong.train.rows import SourceRow, is_on_side

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatRows:
    """Conversations of at most `data.pack` tokens, packed into rows in order; longer ones are dropped and counted."""

    def __init__(self, data: Data, *, split: str, tokenizer: PreTrainedTokenizerBase | None) -> None:
        assert data.chat is not None, "the recipe names it"
        assert data.pack is not None, "the recipe requires it"
        if tokenizer is None or not getattr(tokenizer, "chat_template", None):
            raise TokenizerError(
                "data.chat needs a chat template, and the model's tokenizer has none; use a model that has one"
            )
        self.row_tokens = self.sequence_tokens = data.pack
        self.dropped = 0
        self._rows: list[list[tuple[NDArray[np.int64], NDArray[np.bool_]]]] = [[]]
        room = data.pack
        for number, messages in enumerate(_conversations(Path(data.chat).expanduser())):
            if not is_on_side(np.array([number]), data, split=split)[0]:
                continue
            ids, is_answer = render(messages, tokenizer)
            if len(ids) > data.pack:
                self.dropped += 1
                continue
            # Next fit in file order: conversations stay whole, and the order of rows is that of the file.
            if len(ids) > room:
                self._rows.append([])
                room = data.pack
            self._rows[-1].append((ids, is_answer))
            room -= len(ids)
        if not self._rows[0]:
            raise CorpusError(
                f"data.chat={data.chat!r} leaves no conversation for {split}; check data.validation and data.pack"
            )
        state = hashlib.blake2b(digest_size=8)
        for row in self._rows:
            for ids, is_answer in row:
                state.update(ids.tobytes() + is_answer.tobytes())
        self.fingerprint: str = state.hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> SourceRow:
        """Return a row; its answers are to be predicted."""
        ids, is_answer = zip(*self._rows[row], strict=True)
        lengths = np.array([len(one) for one in ids])
        return SourceRow(np.concatenate(ids), lengths, is_target=np.concatenate(is_answer))


def render(
    messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return a conversation's ids, and which of them belong to an answer of the assistant."""
    ids: list[int] = []
    is_answer: list[bool] = []

    def extend(turns: int, *, target: bool, prompt: bool = False) -> None:
        text = tokenizer.apply_chat_template(messages[:turns], tokenize=False, add_generation_prompt=prompt)
        longer = tokenizer(text, add_special_tokens=False)["input_ids"]
        if longer[: len(ids)] != ids:
            raise TokenizerError(
                "the chat template renders earlier turns differently once there are later ones, so answers cannot be located; use "
                "a template that only appends"
            )
        is_answer.extend([target] * (len(longer) - len(ids)))
        ids[:] = longer

    for turn, message in enumerate(messages):
        is_assistant = message["role"] == "assistant"
        if is_assistant:
            extend(turn, target=False, prompt=True)
        extend(turn + 1, target=is_assistant)
    return np.array(ids), np.array(is_answer)


def _conversations(path: Path) -> Iterator[list[dict[str, str]]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    messages = json.loads(line)["messages"]
                    roles = {message["role"] for message in messages if isinstance(message["content"], str)}
                except (ValueError, KeyError, TypeError):
                    raise CorpusError(
                        f'{path}:{number}: not a conversation; write {{"messages": [{{"role": …, "content": …}}, …]}}'
                    ) from None
                if "assistant" not in roles:
                    raise CorpusError(
                        f"{path}:{number}: a conversation without an answer (role assistant); remove the line"
                    )
                yield list(messages)
    except OSError as error:
        raise RecipeError(f"data.chat: {path} cannot be read: {error.strerror}; name a JSON Lines file") from None
