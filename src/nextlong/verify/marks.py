"""Marks: what stands for a chunk or document in the description of a breach until its name is looked up."""

from __future__ import annotations

import re
from typing import Final

MARK: Final = re.compile(r"⟦(chunk|document) (-?\d+)⟧")


def chunk_name(chunk_id: int) -> str:
    """Return the mark of a chunk, which becomes its document's id and its ordinal there, counted from 1."""
    return f"⟦chunk {chunk_id}⟧"


def document_name(doc_id: int) -> str:
    """Return the mark of a document, which becomes its own id."""
    return f"⟦document {doc_id}⟧"
