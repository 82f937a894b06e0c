"""Recipe: the settings of a run as frozen models; YAML in, unknown keys are errors."""

from nextlong.recipe.export import Export
from nextlong.recipe.keys import Ingest, Section, Source, Tokenizer
from nextlong.recipe.recipe import Encoder, Recipe

__all__ = ["Encoder", "Export", "Ingest", "Recipe", "Section", "Source", "Tokenizer"]
