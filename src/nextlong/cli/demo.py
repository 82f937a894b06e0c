"""Demo: the main job on real documents that need no download, in half a minute.

The corpus is the documentation inside this Python, the encoder the built-in LSA, the tokenizer a BPE trained on that
corpus; the result is sequences of 16,384 tokens. The recipe is left behind as a starting point.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from nextlong.cli.demo_corpus import write_demo_corpus
from nextlong.cli.run import run_and_tell
from nextlong.recipe import Recipe, template

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


def run_demo(folder: Path, console: Console) -> None:
    """Write corpus and recipe to `folder`, run it, and say what to look at. Again: does nothing that is done."""
    corpus, recipe_path = folder / "corpus.jsonl", folder / "demo.yaml"
    if not corpus.exists():
        written = write_demo_corpus(corpus)
        console.print(
            f"corpus:       {written.documents:,} documents, {written.chars / 1e6:.1f} MB of Python's own documentation",
            highlight=False,
        )
    recipe = demo_recipe(folder.absolute())  # what is left behind runs from every working directory
    heading = "The recipe of `nextlong demo`. Put your own files and tokenizer in, and `nextlong run` this file."
    recipe_path.write_text(template.commented(recipe, heading=heading), encoding="utf-8")
    run_and_tell(recipe, console)
    console.print(
        f"one of them:  nextlong peek {recipe.run_dir} 0\n"
        f"its text:     nextlong peek {recipe.run_dir} 0 --text\n"
        f"longer:       nextlong run {recipe_path} --set compose.target_tokens=32768",
        highlight=False,
        soft_wrap=True,
    )
