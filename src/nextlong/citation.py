"""Citation: the paper that a method is of, as BibTeX for data set cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Citation:
    """A paper on arXiv; `authors` are joined by `and`."""

    key: str
    title: str
    authors: str
    arxiv: str
    year: int

    def bibtex(self) -> str:
        """Return the entry of a bibliography."""
        return (
            f"@article{{{self.key},\n  title = {{{{{self.title}}}}},\n  author = {{{self.authors}}},\n"
            f"  journal = {{arXiv preprint arXiv:{self.arxiv}}},\n  year = {{{self.year}}}\n}}"
        )


NEXTLONG: Final = Citation(
    "gao2025nextlong",
    "NExtLong: Toward Effective Long-Context Training without Long Documents",
    "Gao, Chaochen and Wu, Xing and Lin, Zijia and Zhang, Debing and Hu, Songlin",
    arxiv="2501.12766",
    year=2025,
)
