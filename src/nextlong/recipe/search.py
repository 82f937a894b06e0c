"""Recipe keys of the search: which index finds the nearest vectors, and how many of them."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from nextlong.recipe.keys import Named, Operational, Section

AUTO: Final = "auto"  # index: chosen by what either takes
EXACT: Final = "exact"  # index: every query against every vector
_FACTORY = re.compile(
    r"((OPQ|PCA|PCAR|RR|ITQ)\d+(_\d+)?,)?IVF\d*(_HNSW\d*)?,(Flat|SQ4|SQ6|SQ8|SQfp16|SQbf16|PQ\d+(x(4|6|8))?)"
)


class Search(Section):
    """vectors → an index of them: how the nearest are found."""

    index: Named = Field(
        AUTO,
        description="exact; a FAISS factory string with inverted lists, as IVF,SQ8 or IVF4096,Flat; auto: by what either takes",
    )
    recall: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.95,
        description="of an approximate index: this share of the exact nearest is found; measured, and held to by verify",
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Operational()] = Field(
        "auto", description="of exact search; auto: a GPU where torch and one are there; never changes the data"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.index not in (AUTO, EXACT) and not _FACTORY.fullmatch(self.index):
            raise ValueError(
                f"index is {self.index!r}; it must be auto, exact or a FAISS factory string with inverted lists and plain codes, "
                "such as IVF,Flat, IVF4096,SQ8 or OPQ64,IVF,PQ64 (a number after IVF is the number of clusters; none: fitted)"
            )
        return self
