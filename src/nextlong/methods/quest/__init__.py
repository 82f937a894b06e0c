"""Quest: documents that answer the same queries, by keyword (arXiv 2405.19846).

Here it is as a method; `keywords` extracts, `quest` draws and drafts, `rake` scores phrases.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nextlong.citation import Citation
from nextlong.methods.base import DocumentMethod, Documents, Drafted, Need, Request, whole
from nextlong.methods.quest import quest
from nextlong.methods.quest.keywords import Keywords
from nextlong.recipe import Positive


class Quest(Keywords):
    """Options of `compose.method: quest`: documents that answer like queries."""

    split_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="share of the keywords, the rarest, oversampled"
    )
    oversample: Positive = Field(2, description="how often these come")


class QuestMethod(DocumentMethod[Quest]):
    """Documents that share a keyword."""

    name = "quest"
    citation = Citation(
        "gao2024quest",
        "Quest: Query-centric Data Synthesis Approach for Long-context Scaling of Large Language Model",
        "Gao, Chaochen and Wu, Xing and Fu, Qi and Hu, Songlin",
        arxiv="2405.19846",
        year=2024,
    )
    version = 2  # counts what it leaves out
    Options = Quest
    needs = frozenset({Need.KEYWORDS})

    def describe(self, options: Quest) -> str:
        """Return the name with what made the queries, which decides what the data are worth."""
        made = "extractive stand-in for queries" if options.queries == "extractive" else f"queries by {options.queries}"
        return f"{self.name} ({made})"

    def repeats_documents(self, options: Quest) -> bool:  # noqa: ARG002
        """Say that the documents of oversampled keywords may come back."""
        return True

    def draft(self, documents: Documents, options: Quest, request: Request) -> Drafted:
        """Return sequences of documents that share a keyword."""
        assert documents.keywords is not None
        index = quest.draw_keywords(documents.keywords, documents.content_hashes, seed=request.seed)
        pieces = quest.draft(
            index,
            documents.content_hashes,
            documents.tokens,
            enough=request.target_tokens,
            sequences=request.sequences,
            seed=request.seed,
            split_ratio=options.split_ratio,
            oversample=options.oversample,
        )
        with_keywords = documents.keywords.value_lengths().to_numpy(zero_copy_only=False) > 0
        unshared = int((with_keywords & (index.keyword_of < 0)).sum())
        return Drafted(drafts=[whole(piece) for piece in pieces], unshared_keywords=unshared)


METHOD = QuestMethod()
