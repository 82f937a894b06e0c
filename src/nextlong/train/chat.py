"""Chat: conversations as rows, with a loss on the answers alone.

In:  JSON lines with `messages` (role and content each), as UltraChat has them; the chat template of the model's tokenizer.
Out: rows of `data.pack` tokens with whole conversations end to end; each sees itself alone.

Which tokens are an answer is found by writing the conversation up to each turn: what the template adds for an answer is one.
A template that writes earlier turns differently later on is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.rng import keyed_hash, threshold_for
from nextlong.train.recipe import Data


class ChatRows:
    """Conversations of at most `data.pack` tokens, put into rows in their order; longer ones are left out and counted."""

    def __init__(self, data: Data, *, split: str, tokenizer: Any) -> None:
        assert data.chat is not None, "the recipe names it"
        assert data.pack is not None, "the recipe requires it"
        if tokenizer is None or not getattr(tokenizer, "chat_template", None):
            raise TokenizerError(
                "data.chat needs a chat template, and the model's tokenizer has none; use a model that has"
            )
        self.row_tokens = self.sequence_tokens = data.pack
        self.left_out = 0
        self._rows: list[list[tuple[NDArray[np.int64], NDArray[np.bool_]]]] = [[]]
        room = data.pack
        for number, messages in enumerate(_conversations(Path(data.chat).expanduser())):
            is_held_out = keyed_hash(np.array([number], np.uint64), seed=data.split_seed, stage="validation")[
                0
            ] < threshold_for(data.validation)
            if is_held_out != (split == "validation"):
                continue
            ids, is_answer = written(messages, tokenizer)
            if len(ids) > data.pack:
                self.left_out += 1
                continue
            if len(ids) > room:
                self._rows.append([])
                room = data.pack
            self._rows[-1].append((ids, is_answer))
            room -= len(ids)
        if not self._rows[0]:
            raise CorpusError(
                f"data.chat={data.chat!r} leaves no conversation for {split}; look at data.validation and data.pack"
            )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """Hash of all ids."""
        state = hashlib.blake2b(digest_size=8)
        for row in self._rows:
            for ids, is_answer in row:
                state.update(ids.tobytes() + is_answer.tobytes())
        return state.hexdigest()

    def read(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64], None]:
        """Return ids and the lengths of the conversations."""
        held = self._rows[row]
        return np.concatenate([ids for ids, _ in held]), np.array([len(ids) for ids, _ in held]), None

    def is_target(self, row: int) -> NDArray[np.bool_]:
        """Return which tokens are answers."""
        return np.concatenate([is_answer for _, is_answer in self._rows[row]])


def written(messages: list[dict[str, str]], tokenizer: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return a conversation's ids, and which of them are an answer of the assistant."""
    ids: list[int] = []
    is_answer: list[bool] = []
    for turn, message in enumerate(messages):
        if message["role"] == "assistant":
            asked = _ids(tokenizer, messages[:turn], add_generation_prompt=True)
            _take(ids, is_answer, asked, target=False)
        _take(ids, is_answer, _ids(tokenizer, messages[: turn + 1]), target=message["role"] == "assistant")
    return np.array(ids), np.array(is_answer)


def _take(ids: list[int], is_answer: list[bool], longer: list[int], *, target: bool) -> None:
    if longer[: len(ids)] != ids:
        raise TokenizerError(
            "the chat template writes earlier turns differently once there are later ones, so answers cannot be told apart; use "
            "a template that only adds"
        )
    is_answer.extend([target] * (len(longer) - len(ids)))
    ids[:] = longer


def _ids(tokenizer: Any, messages: list[dict[str, str]], **how: Any) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, **how)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _conversations(path: Path) -> Iterator[list[dict[str, str]]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield _messages(line, where=f"{path}:{number}")
    except OSError as error:
        raise RecipeError(f"data.chat: {path} cannot be read: {error.strerror}; name a file of JSON lines") from None


def _messages(line: str, *, where: str) -> list[dict[str, str]]:
    try:
        conversation = json.loads(line)
        messages = conversation["messages"]
        roles = {message["role"] for message in messages if isinstance(message["content"], str)}
    except (ValueError, KeyError, TypeError):
        raise CorpusError(f'{where}: no conversation; write {{"messages": [{{"role": …, "content": …}}, …]}}') from None
    if "assistant" not in roles:
        raise CorpusError(f"{where}: a conversation without an answer (role assistant); leave it out")
    return list(messages)
