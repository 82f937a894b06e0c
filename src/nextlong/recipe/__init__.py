"""Recipe: what the user asks for, as frozen models; YAML in, unknown keys refused."""

from nextlong.recipe.export import Export
from nextlong.recipe.keys import (
    Chunk,
    Compose,
    Decontaminate,
    Documents,
    Ingest,
    MayBePath,
    Mine,
    Named,
    Operational,
    Positive,
    Search,
    Section,
    Source,
    Tokenizer,
)
from nextlong.recipe.recipe import Encoder, Recipe

__all__ = [
    "Chunk",
    "Compose",
    "Decontaminate",
    "Documents",
    "Encoder",
    "Export",
    "Ingest",
    "MayBePath",
    "Mine",
    "Named",
    "Operational",
    "Positive",
    "Recipe",
    "Search",
    "Section",
    "Source",
    "Tokenizer",
]
