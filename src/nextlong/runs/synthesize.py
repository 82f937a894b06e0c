"""Synthesize: from texts in memory to a finished run, in one call.

In:  strings, dictionaries or a `datasets.Dataset`. Out: a `Run` in a folder named by the texts, so that the same texts with
other settings reuse what is embedded and searched already.

Everything runs in this process, so that a script needs no `if __name__ == "__main__":` and a notebook no script; for a corpus
of gigabytes write a recipe (`nextlong init`), which uses all cores.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import xxhash
from rich.console import Console

from nextlong.engine import store
from nextlong.engine.progress import Reporter, reporter_for
from nextlong.errors import CorpusError, NextlongError, RecipeError
from nextlong.pipeline import STEP_TITLES
from nextlong.recipe import Recipe
from nextlong.recipe.keys import TYPICAL_CHARS_PER_TOKEN
from nextlong.runs import export
from nextlong.runs.run import Run
from nextlong.sequences.shortfall import why_fewer

_FOLDER: Final = "nextlong-runs"
_MOST_CHUNK_CHARS, _LEAST_CHUNK_CHARS = 2048, 64
_CHUNKS_A_SEQUENCE: Final = (
    16  # at least, so that several negatives fit between two chunks of a document
)
_CHUNKS_A_DOCUMENT: Final = 3  # of a median one, where texts are short
_STAND_IN_ENTRIES: Final = 4096
_ARGUMENTS: Final = {
    "compose.target_tokens": "seq_len",
    "compose.sequences": "num_sequences",
}

_Text = str | Mapping[str, Any]


def synthesize(
    texts: Iterable[_Text],
    tokenizer: Any = None,
    *,
    seq_len: int | str = 4096,
    num_sequences: int | Literal["all"] = "all",
    text: str = "text",
    id: str = "id",  # noqa: A002 - the column's name
    folder: str | Path | None = None,
    settings: Iterable[str] = (),
    progress: bool = True,
) -> Run:
    """Make long sequences from short texts and return them as a finished run.

    Args:
        texts: strings, dictionaries, or a `datasets.Dataset`, whose rows are dictionaries with the column `text` and, if
            there is one, `id`.
        tokenizer: a tokenizer.json, a folder with one, a hub name, or a tokenizer of `transformers` or `tokenizers`. None
            trains a stand-in on the texts, which is not compatible with any pretrained model.
        seq_len: tokens of each sequence, exactly; "128k" counts 1,024s.
        num_sequences: how many; "all": one from each text that can be extended.
        folder: where texts and run are kept; by default `nextlong-runs/`, in the working directory, and a hash of the texts.
        settings: other recipe keys, as `--set` takes them: "mine.near_duplicates=0.9".
        progress: show the steps, as bars on a terminal and as lines elsewhere.

    Raises:
        NextlongError: for every mistake of the caller: no texts, too few for one sequence, an unknown tokenizer.
    """
    path, chars = _written(texts, text=text, id=id, parent=Path(folder or _FOLDER))
    plain = {
        "run_dir": str(path.parent / "run"),
        "executor": "serial",
        "ingest": {"sources": [{"path": str(path), "name": "texts"}]},
        "tokenizer": _tokenizer(tokenizer, path.parent),
        "compose": {"sequences": num_sequences, "target_tokens": seq_len},
        "export": {"formats": ["arrow"]},
    }
    # A notebook's kernel asks for colours, but shows what a bar has overwritten.
    console = Console(force_jupyter=False, force_terminal=sys.stdout.isatty())
    reporter = reporter_for(console, STEP_TITLES) if progress else Reporter()
    with _arguments_named():
        checked = Recipe.from_dict(plain, origin="nextlong.synthesize")
    # Chunks are so small that sequences and texts hold several.
    of_sequence = (
        checked.compose.target_tokens * TYPICAL_CHARS_PER_TOKEN / _CHUNKS_A_SEQUENCE
    )
    of_text = statistics.median(chars) / _CHUNKS_A_DOCUMENT
    chunk_chars = int(
        min(_MOST_CHUNK_CHARS, max(_LEAST_CHUNK_CHARS, min(of_sequence, of_text)))
    )
    given = [settings] if isinstance(settings, str) else list(settings)
    if wrong := [one for one in given if not isinstance(one, str) or "=" not in one]:
        cure = "write settings=['mine.near_duplicates=0.9']"
        raise RecipeError(f"settings has {wrong[0]!r}, which is not KEY=VALUE; {cure}")
    overrides = [f"chunk.max_chars={chunk_chars}", *given]
    recipe = Recipe.from_dict(plain, overrides=overrides, origin="nextlong.synthesize")
    with _arguments_named():
        (run,) = export.run(recipe, reporter=reporter).runs
    if recipe.compose.sequences != "all" and len(run) < recipe.compose.sequences:
        causes = "; ".join(why_fewer(recipe.compose, run.steps))
        warnings.warn(
            f"{len(run):,} sequences, fewer than num_sequences={num_sequences} ({causes})",
            stacklevel=2,
        )
    return run


@contextmanager
def _arguments_named() -> Iterator[None]:
    """Name the arguments of the call in an error, where it names the recipe's keys; a command in it stays as it is."""
    try:
        yield
    except NextlongError as error:
        message = str(error)
        for key, argument in _ARGUMENTS.items():
            message = re.sub(rf"(?<!--set ){re.escape(key)}\b", argument, message)
        raise type(error)(message) from None


def _written(
    texts: Iterable[_Text],
    *,
    text: str,
    id: str,  # noqa: A002
    parent: Path,
) -> tuple[Path, list[int]]:
    """Write the texts as a JSONL file whose folder is named by their hash; return it, and each text's characters."""
    if isinstance(texts, str | bytes | Mapping):
        raise CorpusError(
            f"texts is one {type(texts).__name__}; give a list of texts, each a document"
        )
    content, chars, has_words = bytearray(), [], False
    for number, given in enumerate(texts):
        row: Mapping[str, Any] = {text: given} if isinstance(given, str) else given
        if not isinstance(row, Mapping) or not isinstance(row.get(text), str):
            problem = (
                f"has the keys {', '.join(map(str, row))}"
                if isinstance(row, Mapping)
                else f"is {given!r:.60}"
            )
            cure = f"give strings, or dictionaries whose {text!r} is a string (text=… names another key)"
            raise CorpusError(f"texts[{number}] {problem}; {cure}")
        record = {"id": str(row.get(id, number)), "text": row[text]}
        content += (
            json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")
            + b"\n"
        )
        chars.append(len(record["text"]))
        has_words = has_words or bool(record["text"].strip())
    if not has_words:
        what = f"all {len(chars):,} texts are empty" if chars else "texts is empty"
        raise CorpusError(
            f"{what}; give a list of texts with words in them, each a document"
        )
    path = parent / xxhash.xxh3_64_hexdigest(content)[:12] / "texts.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():  # else the run would take equal texts for a changed file
        store.write_file(path, bytes(content))
    return path, chars


def _tokenizer(given: Any, folder: Path) -> dict[str, Any]:
    """Return the recipe's tokenizer; an object is written into the folder."""
    if given is None:
        return {"train": _STAND_IN_ENTRIES}
    if isinstance(given, str | Path):
        return {"source": str(given)}
    inner = getattr(given, "backend_tokenizer", given)
    if not hasattr(inner, "to_str"):
        cure = (
            "give a path, a hub name, or a fast tokenizer of transformers or tokenizers"
        )
        raise RecipeError(f"tokenizer is {type(given).__name__}; {cure}")
    content = inner.to_str()
    path = folder / f"tokenizer-{xxhash.xxh3_64_hexdigest(content.encode())[:12]}.json"
    if not path.exists():
        store.write_file(path, content)
    eos = getattr(given, "eos_token", None)
    return {"source": str(path)} | ({"eos": eos} if eos else {})
