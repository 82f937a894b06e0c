"""Conversation: a list of turns as one text.

In:  what a column of chat data holds, `[{"role": …, "content": …}, …]` (OpenAI, TRL) or `[{"from": …, "value": …}, …]` (ShareGPT).
Out: `role: content` of each turn, a blank line between them, under the roles' names of today.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_KEYS: Final = (("role", "content"), ("from", "value"))
_ROLES: Final = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant", "model": "assistant"}


def as_text(value: Any) -> str | None:
    """Return a conversation as a text, None if the value is none: not a list, or with a turn that has no role or no text.

    Turns without any text, as calls of tools are, are left out. A turn's content may be a list of parts, of which the texts count.
    """
    if not isinstance(value, list) or not value:
        return None
    turns = []
    for turn in value:
        keys = next((pair for pair in _KEYS if isinstance(turn, dict) and pair[0] in turn and pair[1] in turn), None)
        if keys is None or not isinstance(role := turn[keys[0]], str):
            return None
        content = turn[keys[1]]
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(part for part in parts if isinstance(part, str))
        if content is not None and not isinstance(content, str):
            return None
        if content and not content.isspace():
            turns.append(f"{_ROLES.get(role, role)}: {content.strip()}")
    return "\n\n".join(turns)


def is_conversation(kind: Any) -> bool:
    """Say whether an Arrow type is a list of turns."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    return any(all(kind.value_type.get_field_index(key) >= 0 for key in pair) for pair in _KEYS)
