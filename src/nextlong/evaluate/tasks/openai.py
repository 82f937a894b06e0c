"""MRCR and GraphWalks, two tasks that OpenAI published (April 2025, MIT); differences: docs/evaluate/generated.md.

MRCR: a conversation with 2, 4 or 8 requests for the same thing; the model must repeat one of the answers (Vodrahalli et
al. 2024, arXiv 2409.12640). Suite `mrcr` reads OpenAI's conversations; `mrcr-mined` makes some from a run (`--run`): the
needles are passages of one document, separated by their mined hard negatives, whose similarity is known.

GraphWalks: a breadth-first search, or a node's parents, in a directed graph that fills the context. Suite `graphwalks` makes
graphs of any length in OpenAI's form: nodes are the first ten hex digits of MD5(0, 1, …), each with four edges to random nodes. A
BFS question is only asked where nodes that are reached again change nothing. Suite `graphwalks-openai` reads the published ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import TEXT, record
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence

_BUDGET: Final = 1024  # 64 nodes of ten hex digits take about 600 tokens
_NEEDLES: Final = (2, 4, 8)
_SUBJECT_WORDS: Final = 12
_LEAST_CHARS: Final = (
    100  # of a needle: a model can repeat a heading alone without comparing needles
)
_MISSES: Final = (
    64  # distractors too long for what is left, after which the conversation is full
)
_ORDINALS: Final = (
    "1st",
    "2nd",
    "3rd",
    *(f"{number}th" for number in range(4, 1 + max(_NEEDLES))),
)
# The prompt is a conversation, as JSON.
_MRCR_SHAPE: Final = record(prompt=TEXT, answer=TEXT, random_string_to_prepend=TEXT)


_MRCR: Final = {
    n: tuple(f"mrcr/{n}needle/{n}needle_{part}.parquet" for part in (0, 1))
    for n in _NEEDLES
}


def _mrcr_samples(request: TaskRequest, needles: int) -> Iterator[Sample]:
    """Yield OpenAI's conversations whose tokens lie in (length / 2, length], in the order of the files."""
    for row in chain.from_iterable(
        request.data.json_lines(file, _MRCR_SHAPE) for file in _MRCR[needles]
    ):
        turns = [
            (str(turn["role"]), str(turn["content"]))
            for turn in json.loads(row["prompt"])
        ]
        sample = _conversation(
            request, turns, row["answer"], row["random_string_to_prepend"]
        )
        if request.is_in_band(sample):
            yield sample


def _conversation(
    request: TaskRequest, turns: Sequence[tuple[str, str]], answer: str, mark: str
) -> Sample:
    prompt = "\n\n".join(f"{role.capitalize()}: {content}" for role, content in turns)
    budget = request.tokenizer.count(answer) + 16
    return Sample(
        prompt + "\n\nAssistant:",
        (answer,),
        budget,
        details={"mark": mark},
        turns=tuple(turns),
    )


class _Passage(NamedTuple):
    role: str
    group: int  # the number of the meta-chunk that it belongs to
    text: str
    subject: str


def _passages(sequence: RunSequence) -> Iterator[_Passage]:
    """Yield the chunks of a sequence; those of its document are all about the document's first line."""
    title = ""
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        if span.role in ("meta", "negative") and text.strip():
            subject = " ".join(
                text.strip().splitlines()[0].split()[:_SUBJECT_WORDS]
            ).rstrip(".,;: ")
            title = title or (subject if span.role == "meta" else "")
            yield _Passage(
                span.role,
                span.group,
                text.strip(),
                title if span.role == "meta" else subject,
            )


def _mined_samples(request: TaskRequest, needles: int) -> Iterator[Sample]:
    """Yield a conversation for each sequence of a run with that many meta-chunks, in random order."""
    assert request.run is not None, "checked before a model is loaded"
    run = Run(request.run)
    draw = random.Random(f"{request.seed} {needles}")
    # Sequences in random order: each conversation takes its filler from the sequences after it, then from those before it.
    numbers = list(range(len(run)))
    draw.shuffle(numbers)
    has_conversation = False
    for place, number in enumerate(numbers):
        own = list(_passages(run.sequence(number)))
        metas = [
            one for one in own if one.role == "meta" and len(one.text) >= _LEAST_CHARS
        ][:needles]
        if len(metas) == needles:
            has_conversation = True
            rest = (
                _passages(run.sequence(other))
                for other in numbers[place + 1 :] + numbers[:place]
            )
            others = chain(own, chain.from_iterable(rest))
            yield _mined_conversation(
                request, metas, (one for one in others if one.role == "negative"), draw
            )
    if not has_conversation:
        raise EvaluateError(
            f"mrcr_mined_{needles}: no sequence of {request.run} has {needles} meta-chunks of {_LEAST_CHARS} characters; "
            "leave the task out"
        )


def _mined_conversation(
    request: TaskRequest,
    metas: Sequence[_Passage],
    distractors: Iterable[_Passage],
    draw: random.Random,
) -> Sample:
    def tokens(one: _Passage) -> int:
        return request.tokenizer.count(
            f"User: Write a passage about {one.subject}.\n\nAssistant: {one.text}\n\n"
        )

    # The random string shows that the question was read; without it an answer scores 0.
    mark = "".join(draw.choices(string.ascii_letters + string.digits, k=10))
    number = draw.randrange(len(metas))
    answer, subject, groups = (
        mark + metas[number].text,
        metas[0].subject,
        [one.group for one in metas],
    )
    question = f"Prepend {mark} to the {_ORDINALS[number]} (1 indexed) passage about {subject}. "
    question += "Do not include any other text in your response."
    fixed = (
        request.tokenizer.count(answer) + 16 + request.tokenizer.count(question) + 64
    )
    left = request.room - fixed - sum(map(tokens, metas))
    # Each needle with the distractors that follow it.
    blocks: list[list[_Passage]] = [[one] for one in metas]
    taken, misses = {one.text for one in metas}, 0
    for one in distractors:
        if one.text in taken or one.subject.lower() == subject.lower():
            continue
        taken.add(one.text)
        if (size := tokens(one)) <= left:
            left -= size
            # A hard negative follows its own needle; the filler of other sequences follows a random one.
            blocks[
                groups.index(one.group)
                if one.group in groups
                else draw.randrange(len(blocks))
            ].append(one)
        elif (misses := misses + 1) > _MISSES:
            break
    turns: list[tuple[str, str]] = []
    for one in chain.from_iterable(blocks):
        turns += [
            ("user", f"Write a passage about {one.subject}."),
            ("assistant", one.text),
        ]
    return _conversation(request, [*turns, ("user", question)], answer, mark)


def _mrcr_score(answer: str, sample: Sample) -> dict[str, float]:
    """Return the similarity to the right answer; 0 if the answer does not begin with the random string."""
    mark, (right,) = str(sample.details["mark"]), sample.references
    answered, right = answer.removeprefix(mark), right.removeprefix(mark)
    return {
        "sequence_match": SequenceMatcher(None, answered, right).ratio()
        if answer.startswith(mark)
        else 0.0
    }


_GRAPH_FILES: Final = (
    "graphwalks/graphwalks_128k_and_shorter.parquet",
    "graphwalks/graphwalks_256k_to_1mil.parquet",
)
_DEGREE: Final = 4
_FEWEST_NODES: Final = 16
_GRAPH_PROMPT: Final = prompt_of("graphwalks")
_GRAPH_SHAPE: Final = record(prompt=TEXT, answer_nodes=list[str], problem_type=str)


def _graph_samples(request: TaskRequest, kind: str) -> Iterator[Sample | None]:
    """Yield questions over graphs that are as large as the length allows."""
    draw, size = random.Random(f"{request.seed} {kind}"), 4 * _FEWEST_NODES
    fixed = request.tokenizer.count(_GRAPH_PROMPT)
    # Tokens of a node with its edges, measured on a graph of 64.
    per_node = (
        request.tokenizer.count(_graph_question(kind, size, draw).prompt) - fixed
    ) / size
    room = request.room - _BUDGET - fixed
    request.require(
        "graphwalks", tokens=room, min_tokens=math.ceil(_FEWEST_NODES * per_node)
    )
    size = int(room / per_node)
    while True:
        nodes, sample = size, None
        while nodes >= _FEWEST_NODES and (sample is None or not request.fits(sample)):
            sample = _graph_question(kind, nodes, draw)
            nodes = int(nodes * 0.98)
        yield sample


def _graph_question(kind: str, size: int, draw: random.Random) -> Sample:
    # The names of the nodes, and `targets`: the four nodes that each of them points to, by number.
    names = [
        hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()[:10]
        for number in range(size)
    ]
    targets = [[draw.randrange(size) for _ in range(_DEGREE)] for _ in range(size)]
    answer: set[int] = set()
    while not answer:
        start, depth = draw.randrange(size), draw.randint(1, 3)
        if kind == "parents":
            answer = {node for node in range(size) if start in targets[node]} - {start}
            continue
        # The nodes at a depth; none where a node of a smaller depth is reached again there, which the question leaves open.
        seen, answer = {start}, {start}
        for _ in range(depth):
            answer = {other for node in answer for other in targets[node]}
            answer = set() if answer & seen else answer
            seen |= answer
    operation = f"Perform a BFS from node {names[start]} with depth {depth}."
    if kind == "parents":
        depth, operation = 1, f"Find the parents of node {names[start]}."
    edges = "\n".join(
        f"{names[node]} -> {names[other]}"
        for node in range(size)
        for other in targets[node]
    )
    prompt = _GRAPH_PROMPT.format(edges=edges, operation=operation)
    return Sample(
        prompt,
        tuple(names[node] for node in sorted(answer)),
        _BUDGET,
        details={"depth": depth},
    )


def _published_graphs(request: TaskRequest, kind: str) -> Iterator[Sample | None]:
    """Yield OpenAI's questions of one kind, in the order of the files."""
    for row in chain.from_iterable(
        request.data.json_lines(file, _GRAPH_SHAPE) for file in _GRAPH_FILES
    ):
        budget = request.tokenizer.count(", ".join(row["answer_nodes"])) + 32
        sample = Sample(row["prompt"], tuple(row["answer_nodes"]), budget)
        if row["problem_type"].lower() == kind and request.is_in_band(sample):
            yield sample


def _graph_score(answer: str, sample: Sample) -> dict[str, float]:
    """Return the F1 of the nodes in the last line; 0 without one, 1 where the answer and the truth are both empty."""
    final = re.search(r"Final Answer: ?\[(.*)\]", answer.split("\n")[-1])
    if final is None:
        return {"f1": 0.0, "exact_match": 0.0}
    named, truth = (
        {name.strip() for name in final[1].split(",") if name.strip()},
        set(sample.references),
    )
    f1 = 2 * len(named & truth) / (len(named) + len(truth)) if named or truth else 1.0
    return {"f1": f1, "exact_match": float(named == truth)}


_mrcr = partial(Task, metric="sequence_match", samples=100, score=_mrcr_score)
_ours = partial(
    Task,
    suite="graphwalks",
    category="GraphWalks",
    metric="f1",
    samples=100,
    score=_graph_score,
)
_openai = partial(
    _ours,
    suite="graphwalks-openai",
    category="GraphWalks, OpenAI's",
    samples=1150,
    files=_GRAPH_FILES,
)
_mined = partial(_mrcr, suite="mrcr-mined", category="MRCR, mined", reads="run")
_KINDS: Final = ("bfs", "parents")
TASKS: Final = (
    *(
        _ours(f"graphwalks_{kind}", make=partial(_graph_samples, kind=kind))
        for kind in _KINDS
    ),
    *(
        _openai(f"graphwalks_openai_{kind}", make=partial(_published_graphs, kind=kind))
        for kind in _KINDS
    ),
    *(
        _mrcr(
            f"mrcr_{n}",
            "mrcr",
            "MRCR",
            make=partial(_mrcr_samples, needles=n),
            files=_MRCR[n],
        )
        for n in _NEEDLES
    ),
    *(
        _mined(f"mrcr_mined_{n}", make=partial(_mined_samples, needles=n))
        for n in _NEEDLES
    ),
)
