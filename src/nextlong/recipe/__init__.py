"""Recipe: what the user asks for, as frozen models; YAML in, unknown keys refused."""

from nextlong.recipe.export import Export
from nextlong.recipe.keys import (
    Chunk,
    Compose,
    Decontaminate,
    Documents,
    Encoder,
    Iclm,
    Ingest,
    Knn,
    Lsa,
    Mine,
    OpenAI,
    Quest,
    SentenceTransformers,
    Source,
    Tokenizer,
)
from nextlong.recipe.recipe import Recipe

__all__ = [
    "Chunk",
    "Compose",
    "Decontaminate",
    "Documents",
    "Encoder",
    "Export",
    "Iclm",
    "Ingest",
    "Knn",
    "Lsa",
    "Mine",
    "OpenAI",
    "Quest",
    "Recipe",
    "SentenceTransformers",
    "Source",
    "Tokenizer",
]
