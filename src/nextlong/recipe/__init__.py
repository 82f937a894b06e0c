"""Recipe: what the user asks for, as frozen models; YAML in, unknown keys refused."""

from nextlong.recipe.encoder import Encoder, Lsa, OpenAI, SentenceTransformers
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
    Section,
    Source,
    Tokenizer,
)
from nextlong.recipe.methods import METHODS
from nextlong.recipe.recipe import Recipe
from nextlong.recipe.search import Search

__all__ = [
    "METHODS",
    "Chunk",
    "Compose",
    "Decontaminate",
    "Documents",
    "Encoder",
    "Export",
    "Ingest",
    "Lsa",
    "MayBePath",
    "Mine",
    "Named",
    "OpenAI",
    "Operational",
    "Positive",
    "Recipe",
    "Search",
    "Section",
    "SentenceTransformers",
    "Source",
    "Tokenizer",
]
