"""The command `nextlong plan`: what would run, and what it will take, here and elsewhere."""

from __future__ import annotations

import argparse
import json
import math
import sys

from rich.console import Console

from nextlong.errors import NextlongError
from nextlong.recipe import Recipe


def add(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes beside a recipe."""
    parser.add_argument("--preset", metavar="NAME", help="plan a recipe of the package, as for init")
    parser.add_argument("--workers", type=_count, metavar="N", help="also for this many worker processes on each node")
    parser.add_argument(
        "--nodes", type=_count, default=1, metavar="N", help="also for this many machines like this one"
    )
    parser.add_argument("--gpus", type=_count, default=0, metavar="M", help="also for this many GPUs on each node")
    parser.add_argument("--gpu-tflops", type=_amount, metavar="X", help="what a GPU does on a transformer; default 120")
    parser.add_argument(
        "--chunks", type=_amount, metavar="N", help="as if the corpus had this many chunks, such as 1e8"
    )


def show(asked: argparse.Namespace) -> None:
    """Print the plan."""
    from nextlong.recipe.presets import preset_path
    from nextlong.report.plan import page
    from nextlong.report.plan.cluster import GPU_TFLOP_PER_S, Asked

    if (asked.recipe is None) == (asked.preset is None):
        raise NextlongError(
            "plan needs a recipe or a preset, one of the two; say nextlong plan RECIPE or --preset paper-128k"
        )
    path = asked.recipe or preset_path(asked.preset)
    elsewhere = Asked(
        workers=asked.workers,
        nodes=asked.nodes,
        gpus=asked.gpus,
        chunks=asked.chunks,
        gpu_tflops=asked.gpu_tflops or GPU_TFLOP_PER_S,
    )
    recipe = Recipe.load(path, overrides=asked.overrides)
    if asked.json:
        plan = page.planned(recipe, elsewhere, tell=lambda line: print(line, file=sys.stderr))
        print(json.dumps(plan.as_json(), indent=1, ensure_ascii=False))
    else:
        page.show(recipe, Console(), elsewhere)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0, such as 1e8")
    return value
