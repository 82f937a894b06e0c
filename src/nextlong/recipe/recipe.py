"""Recipe: what the user asks for.

YAML in, frozen models out. Unknown keys are refused with the nearest known one; `--set a.b=c` overrides single keys.
The sections and their keys stand in `keys`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from nextlong.errors import RecipeError
from nextlong.recipe.export import Export
from nextlong.recipe.keys import (
    Auto,
    Chunk,
    Compose,
    Decontaminate,
    Documents,
    Encoder,
    Iclm,
    Ingest,
    Knn,
    Mine,
    Named,
    Positive,
    Quest,
    Section,
    Tokenizer,
)
from nextlong.recipe.text import UniqueKeys, explain, merge


class Recipe(Section):
    """The whole request. `Recipe.load(path)` reads YAML; `recipe.dump()` writes it."""

    run_dir: Named = Field(description="where the run lives; one folder a step")
    seed: int = Field(0, description="of every random draw")
    workers: Positive | Auto = Field("auto", description="processes; auto: one per CPU core; never changes the data")
    ingest: Ingest
    chunk: Chunk = Chunk()
    decontaminate: Decontaminate = Decontaminate()
    encoder: Encoder = Encoder()
    mine: Mine = Mine()
    tokenizer: Tokenizer
    compose: Compose = Compose()
    documents: Documents = Documents()
    knn: Knn = Knn()
    iclm: Iclm = Iclm()
    quest: Quest = Quest()
    export: Export = Export()

    @model_validator(mode="after")
    def _room_for_text(self) -> Self:
        special = [key for key in ("bos", "eos") if getattr(self.tokenizer, key) is not None]
        if self.compose.target_tokens <= len(special):
            raise ValueError(
                f"compose.target_tokens={self.compose.target_tokens} leaves no room beside "
                f"{' and '.join(f'tokenizer.{key}' for key in special)}; raise it"
            )
        return self

    @model_validator(mode="after")
    def _rows_hold_sequences(self) -> Self:
        pack = self.export.pack
        if pack is not None and pack < self.sequence_tokens:
            raise ValueError(
                f"export.pack={pack} tokens a row cannot hold a sequence, which has {self.sequence_tokens}; raise it to at "
                "least that (a multiple leaves no gap)"
            )
        if self.export.validation and self.compose.sequences == 1:
            raise ValueError(
                f"export.validation={self.export.validation:g} but compose.sequences=1 cannot be split; make more sequences"
            )
        return self

    @classmethod
    def load(cls, path: str | Path, *, overrides: Sequence[str] = ()) -> Recipe:
        """Read a YAML recipe and apply overrides such as `compose.target_tokens=65536`.

        Raises RecipeError naming the file, the key, the value and the cure.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RecipeError(
                f"{path} does not exist; `nextlong init {path}` writes a commented recipe there"
            ) from None
        except OSError as error:
            raise RecipeError(f"{path} cannot be read: {error.strerror}; name a recipe file") from None
        except UnicodeDecodeError as error:
            raise RecipeError(f"{path} is not UTF-8 text: {error}; name a recipe file") from None
        try:
            data = yaml.load(text, UniqueKeys)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise RecipeError(f"{path}:{line}: not YAML: {error.problem or error.context}; correct the line") from None
        except (yaml.YAMLError, ValueError) as error:
            raise RecipeError(f"{path} is not YAML: {' '.join(str(error).split())}; correct it") from None
        if not isinstance(data, dict):
            held = "nothing" if data is None else f"a {type(data).__name__}"
            raise RecipeError(f"{path} holds {held}, not the keys of a recipe; `nextlong init` writes one")
        return cls.from_dict(data, overrides=overrides, origin=str(path))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, overrides: Sequence[str] = (), origin: str = "recipe") -> Recipe:
        """Validate a plain dictionary, with overrides applied; `origin` names it in errors. Raises RecipeError."""
        merged = merge(data, overrides)
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise RecipeError("\n".join(f"{origin}: {line}" for line in explain(error, cls))) from None

    def dump(self) -> str:
        """Return the resolved recipe, every key named, as YAML that `load` reads back to an equal recipe."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, width=120)

    @property
    def method_name(self) -> str:
        """The method as reports name it: of quest, what made the queries is part of the name."""
        if self.compose.method != "quest":
            return self.compose.method
        extractive = self.quest.queries == "extractive"
        return f"quest ({'extractive stand-in for queries' if extractive else f'queries by {self.quest.queries}'})"

    @property
    def sequence_tokens(self) -> int:
        """The length of a sequence: `compose.target_tokens`, and the one more that torchtitan's last label is."""
        return self.compose.target_tokens + ("torchtitan" in self.export.formats)

    @property
    def compose_seed(self) -> int:
        """The seed of everything after the vectors."""
        return self.seed if self.compose.seed is None else self.compose.seed
