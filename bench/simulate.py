"""Simulate: how long a corpus of 10^8 or 10^9 chunks takes on a cluster, from task times measured here.

In:  a recipe whose corpus stands for a larger one. Its steps are tried on a sample, as `nextlong plan` does; a transformer on
     GPUs has the rate that `--gpu-tflops` assumes.
Out: Markdown tables: for each size the total time, the share of GPU-hours that are busy while `embed` runs, and each step with
     its tasks, bytes, memory and share of the total; steps of one process are marked.

The schedule runs every task of the real step graph, with what the head takes for each. A step takes no less time than its bytes
need at the bandwidth of the nodes that its tasks run on and of the shared storage: the files that it writes, and all files of its
input steps once, which is an upper bound, because several steps read a part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nextlong import pipeline
from nextlong.engine.step import Step
from nextlong.recipe import Recipe
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan import page
from nextlong.report.plan.costs import Cost, Machines, schedule
from nextlong.report.plan.elsewhere import GPU_TFLOP_PER_S, Asked
from nextlong.report.plan.sample import sample
from nextlong.report.plan.trial import measure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--chunks", type=float, nargs="+", default=[1e8, 1e9])
    parser.add_argument("--nodes", type=int, nargs="+", default=[64])
    parser.add_argument("--workers", type=int, default=96, help="processors of a node")
    parser.add_argument("--gpus", type=int, default=8, help="of a node")
    parser.add_argument("--gpu-tflops", type=float, default=GPU_TFLOP_PER_S)
    parser.add_argument("--node-gb-s", type=float, default=10, help="between a node and the storage")
    parser.add_argument("--storage-gb-s", type=float, default=100, help="of all nodes together")
    parser.add_argument("--head-ms", type=float, default=1e3 * plan_costs.RAY_HEAD_S)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    recipe = Recipe.load(options.recipe, overrides=options.overrides)
    files = pipeline.prepare(recipe, encoder="any")
    steps = pipeline.route(recipe, files)
    measured = measure(recipe, sample(recipe, files))
    for chunks in options.chunks:
        for nodes in options.nodes:
            asked = Asked(
                nodes=nodes, workers=options.workers, gpus=options.gpus, gpu_tflops=options.gpu_tflops, chunks=chunks
            )
            _, _, costs = page.costs_on(recipe, files, steps, measured, asked)[-1]
            show(steps, costs, options, chunks=chunks, nodes=nodes)
    return 0


def show(
    steps: Sequence[Step], costs: Mapping[str, Cost], options: argparse.Namespace, *, chunks: float, nodes: int
) -> None:
    workers, gpus = nodes * options.workers, nodes * options.gpus
    bytes_read = {step.name: sum(costs[one.name].disk_bytes for one in step.inputs) for step in steps}
    stored = {
        name: with_storage(cost, bytes_read[name] + cost.disk_bytes, options, nodes=nodes)
        for name, cost in costs.items()
    }
    when = schedule(steps, stored, Machines(workers, gpus, head_s=options.head_ms / 1e3))
    end = max(last for _, last in when.values())
    print(
        f"\n{chunks:.0e} chunks, {nodes} nodes, {workers:,} processors, {gpus} GPUs: {end / 3600:.2f} h in all.",
        end=" ",
    )
    embed = stored.get("embed")
    if embed is not None and embed.on_gpus:
        first, last = when["embed"]
        busy = ((embed.seconds or 0.0) + embed.start_s * min(gpus, embed.tasks)) / (gpus * max(last - first, 1e-9))
        print(f"While `embed` runs ({(last - first) / 3600:.2f} h), {busy:.0%} of the GPU-hours are busy.", end="")
    print(
        "\n\n| step | tasks | read, at most | written | a task | memory of a task | all tasks | begin to end | of the total |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name, cost in stored.items():
        first, last = when[name]
        seconds = cost.seconds or 0.0
        shown = f"**{name}** (one process)" if cost.tasks == 1 and seconds > 60 else name
        print(
            f"| {shown} | {cost.tasks:,} | {bytes_read[name] / 1e9:,.1f} GB | {cost.disk_bytes / 1e9:,.1f} GB "
            f"| {seconds / cost.tasks:,.1f} s | {cost.memory_bytes / 1e9:.1f} GB | {seconds / 3600:,.2f} h "
            f"| {last - first:,.0f} s | {(last - first) / end:.1%} |"
        )


def with_storage(cost: Cost, task_bytes: float, options: argparse.Namespace, *, nodes: int) -> Cost:
    """Return a step that takes no less time than its bytes at the bandwidth of the nodes it runs on and of the storage."""
    per_node = options.gpus if cost.on_gpus else options.workers
    at_once = min(cost.tasks, nodes * per_node, cost.at_once or cost.tasks)
    # Tasks spread over the nodes, so even few of them have many nodes' bandwidth.
    bandwidth = 1e9 * min(options.storage_gb_s, min(at_once, nodes) * options.node_gb_s)
    return replace(cost, seconds=max(cost.seconds or 0.0, at_once * task_bytes / bandwidth))


if __name__ == "__main__":
    sys.exit(main())
