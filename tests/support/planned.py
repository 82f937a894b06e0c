"""A small recipe, and what `plan` says of it."""

import io

from rich.console import Console

from nextlong.recipe import Recipe
from nextlong.report.plan import page
from nextlong.report.plan.scenario import Scenario

STEPS = [
    "ingest", "select", "chunk", "filter_report", "tokenizer", "meta_documents", "encoder", "shingles", "weights",
    "embed", "index", "index_shards", "tune", "least_scores", "scan", "mine",
    "draft", "referenced_chunks", "tokens", "compose", "rows", "parquet",
]  # fmt: skip

TEXTS = [
    "\n".join(
        f"Line {n}.{k} of a text about tides and gulls." for k in range(n % 9 + 1)
    )
    for n in range(80)
]


def recipe_in(folder, *overrides):
    plain = {
        "run_dir": str(folder / "runs/x"),
        "executor": "serial",
        "workers": 1,
        "ingest": {"sources": [{"path": str(folder / "c.jsonl")}]},
        "chunk": {"max_chars": 128},
        "encoder": {"lsa": {"dimensions": 8}},
        "mine": {"near_duplicates": 1.0},  # the texts are much the same
        "tokenizer": {"train": 300},
        "compose": {"sequences": 5, "target_tokens": 512},
    }
    return Recipe.from_dict(plain, overrides=overrides)


def shown(recipe):
    """Return (what stands above the table, cells of each row)."""
    file = io.StringIO()
    page.show(recipe, Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    start = next(
        number for number, line in enumerate(lines) if line.startswith("step ")
    )
    rows = [line.split() for line in lines[start + 1 :]]
    end = next(
        (number for number, row in enumerate(rows, start=1) if row[0] == "all"),
        len(rows),
    )
    return lines[:start], rows[:end]


def written(recipe, asked=Scenario()):  # noqa: B008
    """Return all that a plan says."""
    file = io.StringIO()
    page.show(recipe, Console(file=file, width=200), asked)
    return file.getvalue()


def sources_in(folder, *sources):
    plain = recipe_in(folder).model_dump(mode="json")
    plain["ingest"]["sources"] = [
        {"path": str(folder / name), **caps} for name, caps in sources
    ]
    return Recipe.from_dict(plain)
