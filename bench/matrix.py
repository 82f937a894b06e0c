"""The matrix: every method and kind of negatives, on every corpus, chunk size, length, tokenizer and format, each run verified.

    python bench/matrix.py --corpus a.jsonl.zst b.jsonl,c.jsonl --tokenizer llama.json gpt2.json

In:  corpora (files joined by a comma are one corpus) and tokenizer.json files.
Out: a line for each run: what it was of, sequences, seconds of the run and of `verify`, breaches. The exit code is 1 at any
     breach or failure of ours; a corpus that cannot give what is asked is said to be too small, and is no failure.

Not the product of everything: each pair of two values stands in at least one run, so each method meets each tokenizer, each
kind of negatives each chunk size, and so on. Runs of a corpus are variants of one run directory, which is removed after
the last of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import nextlong
from nextlong.errors import CorpusError
from nextlong.plugins import FORMATS, METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.export import terms_of
from nextlong.recipe.keys import Compose
from nextlong.verify.checks import verify

Row = Mapping[str, Any]
_ENDS = ("<|end_of_text|>", "<|endoftext|>", "</s>")  # what tokenizers call their EOS


def main() -> int:
    """Print a line a run and the counts; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", required=True, metavar="FILE[,FILE]")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="FILE[,FILE]",
        help="carry out the rows of these corpora alone",
    )
    parser.add_argument(
        "--rows",
        type=int,
        help="carry out so many random rows of each corpus, instead of all",
    )
    parser.add_argument("--tokenizer", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--max-chars", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument(
        "--target-tokens", nargs="+", type=int, default=[4096, 16_384, 32_768, 131_072]
    )
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--sample", type=int, default=100, help="of verify")
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    asked = parser.parse_args()
    rows = covering(
        {
            "corpus": asked.corpus,
            "method": methods(),
            "max_chars": asked.max_chars,
            "target_tokens": asked.target_tokens,
            "tokenizer": asked.tokenizer,
            "format": [*FORMATS.built_in],
            "fit": get_args(Compose.model_fields["fit"].annotation),
            "position": get_args(Compose.model_fields["position"].annotation),
        }
    )
    asked.out.mkdir(parents=True, exist_ok=True)
    counts = {"runs": 0, "sequences": 0, "too small": 0, "failed": 0}
    for corpus in asked.only or asked.corpus:
        with tempfile.TemporaryDirectory(prefix="matrix-", dir=asked.out) as folder:
            of_corpus = [row for row in rows if row["corpus"] == corpus]
            drawn = (
                of_corpus
                if asked.rows is None
                else random.Random(corpus).sample(of_corpus, asked.rows)
            )
            for number, row in enumerate(drawn):
                outcome, told = tried(
                    row, Path(folder) / "run", asked, name=f"row-{number}"
                )
                counts["runs"] += 1
                counts["sequences"] += max(outcome, 0)
                counts["too small"] += outcome == 0
                counts["failed"] += outcome < 0
                print(f"{name_of(row)}: {told}", flush=True)
    print(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    return int(counts["failed"] > 0)


def methods() -> list[str]:
    """Return the methods, `nextlong` once for each kind of negatives."""
    kinds = get_args(Compose.model_fields["negatives"].annotation)
    return [f"nextlong {kind}" for kind in kinds] + [
        name for name in METHODS.names() if name != "nextlong"
    ]


def covering(values: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return rows in which each pair of values of two names stands at least once, chosen greedily."""
    names = list(values)
    missing = {
        frozenset({(one, a), (other, b)})
        for one, other in itertools.combinations(names, 2)
        for a, b in itertools.product(values[one], values[other])
    }
    rows: list[Row] = []
    for one, other in itertools.combinations(
        sorted(names, key=lambda name: -len(values[name])), 2
    ):
        for a, b in itertools.product(values[one], values[other]):
            if frozenset({(one, a), (other, b)}) not in missing:
                continue
            row = {one: a, other: b}
            for name in names:
                if name not in row:
                    gain = {
                        v: sum(
                            frozenset({(name, v), pair}) in missing
                            for pair in row.items()
                        )
                        for v in values[name]
                    }
                    row[name] = max(gain, key=lambda value: gain[value])
            missing -= {
                frozenset(pair) for pair in itertools.combinations(row.items(), 2)
            }
            rows.append(row)
    return rows


def tried(
    row: Row, run_dir: Path, asked: argparse.Namespace, *, name: str
) -> tuple[int, str]:
    """Carry out and verify one row; return its sequences, 0 if the corpus is too small and -1 if it failed, and what to say."""
    began = time.process_time()
    try:
        recipe = Recipe.from_dict(
            recipe_of(row, run_dir, name=name, sequences=asked.sequences)
        )
        made = nextlong.run(recipe)
        middle = time.process_time()
        outcomes = list(verify(Path(f"{run_dir}@{name}"), sample=asked.sample))
    except CorpusError as error:
        return 0, f"too small: {error}"
    except Exception as error:
        return -1, f"FAILED, {type(error).__name__}: {error}"
    wrong = [
        f"{outcome.check}: {outcome.breaches:,}, as {outcome.examples[0]}"
        for outcome in outcomes
        if outcome.breaches
    ]
    told = f"{len(made):,} sequences, run {middle - began:.1f} s, verify {time.process_time() - middle:.1f} s"
    return (
        (-1, f"{told}, BREACHES {'; '.join(wrong)}")
        if wrong
        else (len(made), f"{told}, no breach")
    )


def recipe_of(row: Row, run_dir: Path, *, name: str, sequences: int) -> dict[str, Any]:
    """Return the recipe of a row, plain."""
    method, *negatives = row["method"].split()
    files = [Path(file).absolute() for file in row["corpus"].split(",")]
    return {
        "run_dir": str(run_dir),
        "name": name,
        "executor": "serial",  # one process, so that processor time is all of it
        "ingest": {
            "sources": [{"path": str(file), "name": file.name} for file in files]
        },
        "chunk": {"max_chars": row["max_chars"]},
        "tokenizer": {
            "source": row["tokenizer"],
            "eos": end_of(row["tokenizer"]) if needs_end(row["format"]) else None,
        },
        "compose": {
            "method": method,
            **({"negatives": negatives[0]} if negatives else {}),
            "sequences": sequences,
            **{name: row[name] for name in ("target_tokens", "fit", "position")},
        },
        "export": {"formats": [row["format"]]},
    }


def needs_end(name: str) -> bool:
    """Tell whether a format wants every document to end in EOS."""
    required: bool = terms_of(name).eos == "required"
    return required


def end_of(tokenizer: str) -> str:
    """Return what a tokenizer.json calls its EOS."""
    added = {
        token["content"]
        for token in json.loads(Path(tokenizer).read_text(encoding="utf-8"))[
            "added_tokens"
        ]
    }
    return next(end for end in _ENDS if end in added)


def name_of(row: Row) -> str:
    """Return a row in words, files by their names."""
    corpus = "+".join(
        Path(file).name.split(".")[0] for file in row["corpus"].split(",")
    )
    tokenizer = Path(row["tokenizer"]).parent.name
    rest = (
        row["max_chars"],
        row["target_tokens"],
        tokenizer,
        row["format"],
        row["fit"],
        row["position"],
    )
    return " ".join(map(str, (corpus, row["method"], *rest)))


if __name__ == "__main__":
    sys.exit(main())
