"""Demo: the main job on real documents that need no download, in half a minute.

The corpus is the documentation inside this Python, the encoder the built-in LSA, the tokenizer a BPE trained on that
corpus; the result is sequences of 16,384 tokens. The recipe is left behind as a starting point.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Literal

from rich.console import Console

from nextlong.cli.demo_corpus import write_demo_corpus
from nextlong.cli.run import run_and_tell
from nextlong.plural import counted
from nextlong.recipe import Recipe, template
from nextlong.report import tables

_NEXT = (
    ("one of them", "nextlong peek {run} 0"),
    ("its text", "nextlong peek {run} 0 --text"),
    ("longer", "nextlong run {recipe} --set compose.target_tokens=32768"),
)
_SEQUENCES, _TARGET_TOKENS, _VOCABULARY = 24, 16_384, 8_192


def demo_recipe(folder: Path) -> Recipe:
    """Return the recipe of the demo, with its corpus and run directory in `folder`."""
    return Recipe.from_dict(
        {
            "run_dir": str(folder / "run"),
            "ingest": {"sources": [{"path": str(folder / "corpus.jsonl"), "name": "python-documentation"}]},
            "tokenizer": {"train": _VOCABULARY, "eos": "<|endoftext|>"},
            "compose": {"sequences": _SEQUENCES, "target_tokens": _TARGET_TOKENS},
            "export": {"formats": ["parquet", "jsonl"]},
        }
    )


def run_demo(folder: Path, console: Console, *, form: Literal["text", "json"] = "text") -> None:
    """Write corpus and recipe to `folder`, run it, and say what to look at. Again: does nothing that is done."""
    corpus, recipe_path = folder / "corpus.jsonl", folder / "demo.yaml"
    if not corpus.exists():
        written = write_demo_corpus(corpus)
        size = f"{written.chars / 1e6:.1f} MB"
        what = f"{counted(written.documents, 'document')}, {size} of Python's own documentation"
        tables.show_facts([("corpus", what)], console, beside=_NEXT)
    recipe = demo_recipe(folder.absolute())  # what is left behind runs from every working directory
    heading = "The recipe of `nextlong demo`. Put your own files and tokenizer in, and `nextlong run` this file."
    recipe_path.write_text(template.commented(recipe, heading=heading), encoding="utf-8")
    run_and_tell(recipe, console, form=form)
    if form == "text":
        places = {"run": shlex.quote(recipe.run_dir), "recipe": shlex.quote(str(recipe_path))}
        tables.show_facts([*_first(), *((name, command.format(**places)) for name, command in _NEXT)], console)


def _first() -> list[tuple[str, str]]:
    """Return what makes `nextlong` a command of the user's shell, nothing where it is one."""
    if shutil.which("nextlong") is not None:
        return []
    scripts = Path(sys.executable).parent
    shown = scripts.relative_to(Path.cwd()) if scripts.is_relative_to(Path.cwd()) else scripts
    if (scripts / "activate").is_file():
        return [("first", f". {shlex.quote(str(shown / 'activate'))}")]
    return [("first", f'export PATH={shlex.quote(str(scripts))}:"$PATH"')]
