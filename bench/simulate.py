"""Simulate: how long a corpus of 10^8 or 10^9 chunks takes on 8 to 512 workers, from task times measured here.

In:  a recipe whose corpus stands for a larger one. Its steps are tried on a sample, as `nextlong plan` does; the schedule then
     carries out every task of the larger corpus, each as long as the sample says, with what the head takes for each.
Out: two Markdown tables: total time and how much of the workers is used; and what each step takes at the largest size, those of one
     task by themselves.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nextlong import pipeline
from nextlong.inputs.remembered import input_files
from nextlong.recipe import Recipe
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan import page
from nextlong.report.plan.cluster import Asked
from nextlong.report.plan.sample import measure
from nextlong.report.plan.schedule import schedule
from nextlong.report.plan.trial import try_route


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--chunks", type=float, nargs="+", default=[1e8, 1e9])
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--head-ms", type=float, default=1e3 * plan_costs.RAY_HEAD_S)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    recipe = Recipe.load(options.recipe, overrides=options.overrides)
    files = input_files(recipe)
    steps = pipeline.route(recipe, files)
    measured = measure(recipe, files)
    trials = try_route(recipe, measured.texts, chars_per_token=measured.tokenizing.chars_per_token)
    print(
        "| chunks | workers | total | of it in tasks | used | longest steps, from begin to end |\n|---:|---:|---:|---:|---:|---|"
    )
    for chunks in options.chunks:
        for workers in options.workers:
            asked = Asked(workers=workers, gpus=options.gpus, chunks=chunks)
            plan = page.plan_for(recipe, files, steps, measured, trials, asked)
            _, told = plan.on[-1]
            loads = plan_costs.loads(steps, told)
            when = schedule(loads, workers=workers, gpus=options.gpus, head_s=options.head_ms / 1e3)
            end = max(last for _, last in when.values())
            busy = sum(load.seconds + load.start_s * min(workers, load.tasks) for load in loads if not load.on_gpus)
            longest = sorted(when, key=lambda name: when[name][0] - when[name][1])[:4]
            shares = ", ".join(f"{name} {(when[name][1] - when[name][0]) / end:.0%}" for name in longest)
            print(
                f"| {chunks:.0e} | {workers} | {end / 3600:.2f} h | {busy / 3600:.1f} h | {busy / workers / end:.0%} | {shares} |",
                flush=True,
            )
    print("\n| step | tasks | one worker | a task | memory of a task |\n|---|---:|---:|---:|---:|")
    for load in loads:
        memory = told[load.name].memory_bytes
        print(
            f"| {load.name} | {load.tasks:,} | {load.seconds / 3600:.2f} h | {load.seconds / load.tasks:.1f} s "
            f"| {memory / 1e9:.1f} GB |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
