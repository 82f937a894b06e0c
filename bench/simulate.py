"""Simulate: how long a corpus of 10^8 or 10^9 chunks takes on a cluster, from task times measured here.

In:  a recipe whose corpus stands for a larger one. Its steps are tried on a sample, as `nextlong plan` does; a transformer on
     GPUs has the rate that `--gpu-tflops` assumes.
Out: Markdown tables: for each size and cluster the total time, how busy its processors are, the share of its GPUs that have a
     task while `embed` runs, and the share that compute; for each cluster every step with its tasks, bytes, memory and time. A
     step of one process is bold where it takes a second.

The schedule runs every task of the real step graph, with what the head takes for each.
A step takes no less time than its bytes need at the bandwidth of the nodes that its
tasks run on and of the shared storage: the files that it writes, and what it declares
to read of its input steps' files (`Estimate.reads`), or else all of them once, which is
an upper bound.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nextlong import pipeline
from nextlong.checks import Corpus
from nextlong.recipe import Recipe
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan.costs import Cost, Machines, schedule
from nextlong.report.plan.measure import measure
from nextlong.report.plan.sample import sample
from nextlong.report.plan.scenario import GPU_TFLOP_PER_S, Scenario, costs_on


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--chunks", type=float, nargs="+", default=[1e8, 1e9])
    parser.add_argument("--nodes", type=int, nargs="+", default=[64])
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[96], help="processors of a node"
    )
    parser.add_argument("--gpus", type=int, default=8, help="of a node")
    parser.add_argument("--gpu-tflops", type=float, default=GPU_TFLOP_PER_S)
    parser.add_argument(
        "--gpu-waiting",
        type=float,
        default=0.03,
        help="share of a task in which its GPU waits for tokens (bench/encoder_feed.py)",
    )
    parser.add_argument(
        "--node-gb-s", type=float, default=10, help="between a node and the storage"
    )
    parser.add_argument(
        "--storage-gb-s", type=float, default=100, help="of all nodes together"
    )
    parser.add_argument("--head-ms", type=float, default=1e3 * plan_costs.RAY_HEAD_S)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    recipe = Recipe.load(options.recipe, overrides=options.overrides)
    corpus = Corpus(recipe)
    files = corpus.files
    steps = pipeline.route(recipe, files)
    measured = measure(recipe, sample(recipe, corpus))
    print(
        "| chunks | nodes | workers | GPUs | total | in tasks | workers busy "
        "| GPUs with a task, computing during `embed` | longest steps |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    )
    by_machines: dict[tuple[int, int], list[Simulated]] = {}
    for chunks, nodes, workers in itertools.product(
        options.chunks, options.nodes, options.workers
    ):
        asked = Scenario(
            nodes=nodes,
            workers=workers,
            gpus=options.gpus,
            gpu_tflops=options.gpu_tflops,
            chunks=chunks,
        )
        _, _, costs = costs_on(recipe, files, steps, measured, asked)[-1]
        machines = Machines(
            nodes * workers, nodes * options.gpus, head_s=options.head_ms / 1e3
        )
        stored = {
            name: with_storage(cost, options, nodes=nodes, workers=workers)
            for name, cost in costs.items()
        }
        simulated = Simulated(
            chunks, machines, stored, schedule(steps, stored, machines)
        )
        by_machines.setdefault((nodes, workers), []).append(simulated)
        print(simulated.summary(nodes, gpu_waiting=options.gpu_waiting), flush=True)
    for (nodes, workers), sizes in by_machines.items():
        print(
            f"\n{nodes} nodes of {workers} processors and {options.gpus} GPUs\n\n{steps_table(sizes)}"
        )
    return 0


@dataclass(frozen=True)
class Simulated:
    """A corpus of `chunks` on machines: the cost of each step, and when it begins and ends in seconds."""

    chunks: float
    machines: Machines
    costs: Mapping[str, Cost]
    when: Mapping[str, tuple[float, float]]

    @property
    def end(self) -> float:
        """Seconds of the whole run."""
        return max(last for _, last in self.when.values())

    def wall(self, step: str) -> float:
        """Return the seconds from a step's first task to its last."""
        first, last = self.when[step]
        return last - first

    def busy(self, *, on_gpus: bool) -> float:
        """Return the seconds of tasks on processors, or on GPUs with loading their model."""
        return sum(
            (cost.seconds or 0.0)
            + cost.start_s
            * min(self.machines.gpus if on_gpus else self.machines.workers, cost.tasks)
            for cost in self.costs.values()
            if cost.on_gpus == on_gpus
        )

    def summary(self, nodes: int, *, gpu_waiting: float) -> str:
        """Return the row of the table of all simulations."""
        machines = self.machines
        embed = self.costs.get("embed")
        gpus = "–"
        if embed is not None and embed.on_gpus:
            computing_s = (embed.seconds or 0.0) * (1 - gpu_waiting)
            loading_s = embed.start_s * min(machines.gpus, embed.tasks)
            gpu_s = machines.gpus * max(self.wall("embed"), 1e-9)
            with_task = ((embed.seconds or 0.0) + loading_s) / gpu_s
            gpus = f"{with_task:.0%}, {computing_s / gpu_s:.0%}"
        tasks_s = self.busy(on_gpus=False)
        longest = sorted(self.when, key=self.wall, reverse=True)[:4]
        return (
            f"| {_power(self.chunks)} | {nodes} | {machines.workers:,} | {machines.gpus} | {self.end / 3600:.2f} h "
            f"| {(tasks_s + self.busy(on_gpus=True)) / 3600:,.0f} h | {tasks_s / (machines.workers * self.end):.0%} | {gpus} "
            f"| {', '.join(f'{name} {self.wall(name) / self.end:.0%}' for name in longest)} |"
        )


def steps_table(sizes: Sequence[Simulated]) -> str:
    """Return a row for each step: tasks and wall time of each size; bytes and memory of the last."""
    names, last = [_power(one.chunks) for one in sizes], sizes[-1]
    columns = [
        f"tasks, {', '.join(names)}",
        "read, written",
        "memory of a task",
        *names,
        f"of {names[-1]}",
    ]
    lines = [f"| step | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name, cost in last.costs.items():
        is_alone = cost.tasks == 1 and last.wall(name) >= 1
        seconds = " | ".join(f"{one.wall(name):,.0f} s" for one in sizes)
        lines.append(
            f"| {f'**{name}**' if is_alone else name} | {', '.join(f'{one.costs[name].tasks:,}' for one in sizes)} "
            f"| {cost.read_bytes / 1e9:,.1f}, {cost.disk_bytes / 1e9:,.1f} GB | {cost.memory_bytes / 1e9:.1f} GB | {seconds} "
            f"| {last.wall(name) / last.end:.1%} |"
        )
    return "\n".join(lines)


def _power(chunks: float) -> str:
    return f"10{str(round(math.log10(chunks))).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def with_storage(
    cost: Cost, options: argparse.Namespace, *, nodes: int, workers: int
) -> Cost:
    """Return a step that takes no less time than its bytes at the bandwidth of the nodes it runs on and of the storage."""
    task_bytes = cost.read_bytes + cost.disk_bytes
    per_node = options.gpus if cost.on_gpus else workers
    at_once = min(cost.tasks, nodes * per_node, cost.at_once or cost.tasks)
    # Tasks spread over the nodes, so even few of them have many nodes' bandwidth.
    bandwidth = 1e9 * min(options.storage_gb_s, min(at_once, nodes) * options.node_gb_s)
    return replace(
        cost, seconds=max(cost.seconds or 0.0, at_once * task_bytes / bandwidth)
    )


if __name__ == "__main__":
    sys.exit(main())
