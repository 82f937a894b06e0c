"""GraphWalks: a breadth-first search, or a node's parents, in a directed graph that fills the context (OpenAI, April 2025; MIT).

Suite `graphwalks` makes graphs of any length in OpenAI's form: nodes are the first ten hex digits of MD5(0, 1, …), each with four
edges to nodes drawn at random. A BFS question is only asked where nodes that are reached again change nothing, so that it has one
answer however it is read. Suite `graphwalks-openai` reads the published questions whose tokens lie in (length / 2, length].
Score: F1 over the set of nodes in the last line; docs/evaluate/generated.md says where the published grader is not followed.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from nextlong.evaluate.data import TEXT, record
from nextlong.evaluate.task import Request, Sample, Task, prompt_of

_FILES: Final = ("graphwalks/graphwalks_128k_and_shorter.parquet", "graphwalks/graphwalks_256k_to_1mil.parquet")
_BUDGET: Final = 1024  # 64 nodes of ten hex digits take about 600 tokens
_DEGREE: Final = 4
_FEWEST_NODES: Final = 16
_PROMPT: Final = prompt_of("graphwalks")
_SHAPE: Final = record(prompt=TEXT, answer_nodes=list[str], problem_type=str)


def samples(request: Request, kind: str) -> Iterator[Sample | None]:
    """Yield questions over graphs that are as large as the length allows."""
    draw = random.Random(f"{request.seed} {kind}")
    size = 4 * _FEWEST_NODES
    fixed = request.tokenizer.count(_PROMPT)
    per_node = (request.tokenizer.count(_question(kind, size, draw).prompt) - fixed) / size
    size = int((request.room - _BUDGET - fixed) / per_node)
    if size < _FEWEST_NODES:
        raise request.too_short("graphwalks")
    while True:
        nodes, sample = size, None
        while nodes >= _FEWEST_NODES and (sample is None or not request.fits(sample)):
            sample = _question(kind, nodes, draw)
            nodes = int(nodes * 0.98)
        yield sample and request.fitting(sample)


def _question(kind: str, size: int, draw: random.Random) -> Sample:
    names = [hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()[:10] for number in range(size)]
    targets = [[draw.randrange(size) for _ in range(_DEGREE)] for _ in range(size)]
    answer: set[int] = set()
    while not answer:
        start, depth = draw.randrange(size), draw.randint(1, 3)
        if kind == "bfs":
            answer = _reached(targets, start, depth)
        else:
            answer = {node for node in range(size) if start in targets[node]} - {start}
    operation = f"Perform a BFS from node {names[start]} with depth {depth}."
    if kind == "parents":
        depth, operation = 1, f"Find the parents of node {names[start]}."
    edges = "\n".join(f"{names[node]} -> {names[other]}" for node in range(size) for other in targets[node])
    prompt = _PROMPT.format(edges=edges, operation=operation)
    return Sample(prompt, tuple(names[node] for node in sorted(answer)), _BUDGET, details={"depth": depth})


def _reached(targets: Sequence[Sequence[int]], start: int, depth: int) -> set[int]:
    """Return the nodes at a depth; none where a node of a smaller depth is reached again there, which the question leaves open."""
    seen, frontier = {start}, {start}
    for _ in range(depth):
        frontier = {other for node in frontier for other in targets[node]}
        if frontier & seen:
            return set()
        seen |= frontier
    return frontier


def _published(request: Request, kind: str) -> Iterator[Sample | None]:
    """Yield OpenAI's questions of one kind, in the order of the files."""
    for row in (row for file in _FILES for row in request.data.json_lines(file, _SHAPE)):
        if row["problem_type"].lower() == kind:
            budget = request.tokenizer.count(", ".join(row["answer_nodes"])) + 32
            sample = Sample(row["prompt"], tuple(row["answer_nodes"]), budget)
            if request.is_in_band(sample):
                yield request.fitting(sample)


def score(answer: str, sample: Sample) -> dict[str, float]:
    """Return the F1 of the nodes in the last line; 0 without one, 1 where the answer and the truth are both empty."""
    found = re.search(r"Final Answer: ?\[(.*)\]", answer.split("\n")[-1])
    if found is None:
        return {"f1": 0.0, "exact_match": 0.0}
    said, truth = {name.strip() for name in found[1].split(",") if name.strip()}, set(sample.references)
    f1 = 2 * len(said & truth) / (len(said) + len(truth)) if said or truth else 1.0
    return {"f1": f1, "exact_match": float(said == truth)}


_walk = partial(Task, metric="f1", score=score, max_new_tokens=_BUDGET)
_own = partial(_walk, suite="graphwalks", category="GraphWalks", samples=100)
_openai = partial(_walk, suite="graphwalks-openai", category="GraphWalks, OpenAI's", samples=1150, files=_FILES)
TASKS: Final = (
    *(_own(name=f"graphwalks_{kind}", make=partial(samples, kind=kind)) for kind in ("bfs", "parents")),
    *(_openai(name=f"graphwalks_openai_{kind}", make=partial(_published, kind=kind)) for kind in ("bfs", "parents")),
)
