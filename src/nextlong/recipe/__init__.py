"""Recipe: what the user asks for, as frozen models; YAML in, unknown keys refused."""

from nextlong.recipe.export import Export
from nextlong.recipe.keys import Ingest, Section, Source, Tokenizer
from nextlong.recipe.recipe import Encoder, Recipe

__all__ = ["Encoder", "Export", "Ingest", "Recipe", "Section", "Source", "Tokenizer"]
