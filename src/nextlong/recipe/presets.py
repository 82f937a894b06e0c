"""Presets: the recipes that come with the package."""

from __future__ import annotations

from pathlib import Path

from nextlong.errors import RecipeError


def preset(name: str) -> str:
    """Return the text of a recipe that comes with the package, comments and all. Raises RecipeError, naming those there are."""
    return preset_path(name).read_text(encoding="utf-8")


def preset_path(name: str) -> Path:
    """Return the file of a recipe that comes with the package. Raises RecipeError, naming those there are."""
    inside = Path(__file__).parents[1]
    folders = (inside / "recipes", inside.parents[1] / "recipes")  # installed; a checkout
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if name not in known:
        raise RecipeError(f"preset {name!r} is not known; choose one of: {', '.join(known)}")
    return known[name]
