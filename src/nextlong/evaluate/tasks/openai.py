"""MRCR and GraphWalks, two tasks that OpenAI published (April 2025, MIT).

MRCR: a conversation with 2, 4 or 8 requests for the same thing; the model must repeat
one of the answers (Vodrahalli et al. 2024, arXiv 2409.12640). Suite `mrcr` reads
OpenAI's conversations; `mrcr-mined` makes some from a run (`--run`): the needles are
passages of one document, separated by their mined hard negatives, whose similarity is
known.

GraphWalks: a breadth-first search, or a node's parents, in a directed graph that fills
the context. Suite `graphwalks` makes graphs of any length in OpenAI's form: nodes are
the first ten hex digits of MD5(0, 1, …), each with four edges to random nodes. A BFS
question is only asked where nodes that are reached again change nothing.

Differences: docs/evaluate/generated.md.
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
# Of a needle: a model can repeat a heading alone without comparing needles.
_MIN_CHARS: Final = 100
# Distractors too long for what is left, after which the conversation is full.
_MAX_MISSES: Final = 64
_ORDINALS: Final = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th")
# The prompt is a conversation, as JSON.
_MRCR_SHAPE: Final = record(prompt=TEXT, answer=TEXT, random_string_to_prepend=TEXT)


def _mrcr_files(needles: int) -> tuple[str, str]:
    stem = f"mrcr/{needles}needle/{needles}needle"
    return f"{stem}_0.parquet", f"{stem}_1.parquet"


_MRCR: Final = {needles: _mrcr_files(needles) for needles in _NEEDLES}


def _mrcr_samples(request: TaskRequest, needles: int) -> Iterator[Sample]:
    """Yield OpenAI's conversations whose tokens lie in (length / 2, length].

    In the order of the files.
    """
    for file in _MRCR[needles]:
        for row in request.data.json_lines(file, _MRCR_SHAPE):
            turns = []
            for turn in json.loads(row["prompt"]):
                role = str(turn["role"])
                turns.append((role, str(turn["content"])))
            mark = row["random_string_to_prepend"]
            sample = _conversation(request, turns, row["answer"], mark)
            if request.is_in_band(sample):
                yield sample


def _conversation(
    request: TaskRequest, turns: Sequence[tuple[str, str]], answer: str, mark: str
) -> Sample:
    lines = [f"{role.capitalize()}: {content}" for role, content in turns]
    budget = request.tokenizer.count(answer) + 16
    return Sample(
        prompt="\n\n".join(lines),
        references=(answer,),
        max_new_tokens=budget,
        # Only a base model needs these: chat models are given the turns.
        answer_prefix="\n\nAssistant:",
        stop="\n\nUser:",
        details={"mark": mark},
        turns=tuple(turns),
    )


class _Passage(NamedTuple):
    role: str
    group: int  # the number of the meta-chunk that it belongs to
    text: str
    subject: str

    @property
    def request(self) -> str:
        """What the user asks for; the passage is the answer."""
        return f"Write a passage about {self.subject}."


def _passages(sequence: RunSequence) -> Iterator[_Passage]:
    """Yield the chunks of a sequence.

    Those of its document are all about the document's first line.
    """
    title = ""
    for span, span_text in zip(sequence.spans, sequence.texts, strict=True):
        text = span_text.strip()
        if span.role not in ("meta", "negative") or not text:
            continue
        first_words = text.splitlines()[0].split()[:_SUBJECT_WORDS]
        subject = " ".join(first_words).rstrip(".,;: ")
        if span.role == "meta":
            title = title or subject
            subject = title
        yield _Passage(span.role, span.group, text, subject)


def _mined_samples(request: TaskRequest, needles: int) -> Iterator[Sample]:
    """Yield a conversation per sequence with that many meta-chunks, in random order."""
    assert request.run is not None, "checked before a model is loaded"
    run = Run(request.run)
    draw = random.Random(f"{request.seed} {needles}")
    numbers = list(range(len(run)))
    draw.shuffle(numbers)
    has_conversation = False
    for index, number in enumerate(numbers):
        sequence = run.sequence(number)
        passages = list(_passages(sequence))
        metas = [
            passage
            for passage in passages
            if passage.role == "meta" and len(passage.text) >= _MIN_CHARS
        ]
        if len(metas) < needles:
            continue
        has_conversation = True
        # Each conversation takes its filler from the sequences after it in the random
        # order, then from those before it.
        others = numbers[index + 1 :] + numbers[:index]
        filler = _passages_of_all(run, others)
        distractors = (
            passage for passage in chain(passages, filler) if passage.role == "negative"
        )
        yield _mined_conversation(request, metas[:needles], distractors, draw)
    if not has_conversation:
        raise EvaluateError(
            where=f"mrcr_mined_{needles}",
            problem=f"no sequence of {request.run} has {needles} meta-chunks of "
            f"{_MIN_CHARS} characters",
            fix="leave the task out",
        )


def _passages_of_all(run: Run, numbers: Iterable[int]) -> Iterator[_Passage]:
    for number in numbers:
        yield from _passages(run.sequence(number))


def _mined_conversation(
    request: TaskRequest,
    metas: Sequence[_Passage],
    distractors: Iterable[_Passage],
    draw: random.Random,
) -> Sample:
    """Return a conversation that asks for one of the needles, full of distractors."""
    # The random string shows that the question was read; without it an answer scores 0.
    mark = "".join(draw.choices(string.ascii_letters + string.digits, k=10))
    asked = draw.randrange(len(metas))
    answer = mark + metas[asked].text
    subject = metas[0].subject
    question = (
        f"Prepend {mark} to the {_ORDINALS[asked]} (1 indexed) passage about "
        f"{subject}. Do not include any other text in your response."
    )
    answer_tokens = request.tokenizer.count(answer) + 16
    question_tokens = request.tokenizer.count(question) + 64
    left = request.room - answer_tokens - question_tokens
    for meta in metas:
        left -= _tokens(request, meta)
    turns: list[tuple[str, str]] = []
    for passage in _with_distractors(request, metas, distractors, left, draw):
        turns += [("user", passage.request), ("assistant", passage.text)]
    return _conversation(request, [*turns, ("user", question)], answer, mark)


def _with_distractors(
    request: TaskRequest,
    metas: Sequence[_Passage],
    distractors: Iterable[_Passage],
    left: int,
    draw: random.Random,
) -> list[_Passage]:
    """Return each needle with the distractors that follow it, which fill `left` tokens.

    A hard negative follows its own needle; the filler of other sequences follows a
    random one.
    """
    subject = metas[0].subject.lower()
    block_of: dict[int, int] = {}
    for index, meta in enumerate(metas):
        block_of.setdefault(meta.group, index)
    blocks = [[meta] for meta in metas]
    taken = {meta.text for meta in metas}
    misses = 0
    for distractor in distractors:
        if distractor.text in taken or distractor.subject.lower() == subject:
            continue
        taken.add(distractor.text)
        tokens = _tokens(request, distractor)
        if tokens <= left:
            left -= tokens
            block = block_of.get(distractor.group)
            if block is None:
                block = draw.randrange(len(blocks))
            blocks[block].append(distractor)
        else:
            misses += 1
            if misses > _MAX_MISSES:
                break
    return list(chain.from_iterable(blocks))


def _tokens(request: TaskRequest, passage: _Passage) -> int:
    """Return the tokens of a passage with the request for it."""
    return request.tokenizer.count(
        f"User: {passage.request}\n\nAssistant: {passage.text}\n\n"
    )


def _mrcr_score(answer: str, sample: Sample) -> dict[str, float]:
    """Return the similarity to the right answer.

    It is 0 if the answer does not begin with the random string.
    """
    mark = str(sample.details["mark"])
    if sample.answer_prefix:
        # A base model continues `Assistant:` with a space.
        answer = answer.lstrip()
    if not answer.startswith(mark):
        return {"sequence_match": 0.0}
    (reference,) = sample.references
    answered = answer.removeprefix(mark)
    expected = reference.removeprefix(mark)
    matcher = SequenceMatcher(None, answered, expected)
    return {"sequence_match": matcher.ratio()}


_DEGREE: Final = 4
_MIN_NODES: Final = 16
_GRAPH_PROMPT: Final = prompt_of("graphwalks")


def _graph_samples(request: TaskRequest, kind: str) -> Iterator[Sample | None]:
    """Yield questions over graphs that are as large as the length allows."""
    draw = random.Random(f"{request.seed} {kind}")
    fixed = request.tokenizer.count(_GRAPH_PROMPT)
    # Tokens of a node with its edges, measured on a graph of 64.
    measured_nodes = 4 * _MIN_NODES
    measured = _graph_question(kind, measured_nodes, draw).prompt
    tokens_per_node = (request.tokenizer.count(measured) - fixed) / measured_nodes
    room = request.room - _BUDGET - fixed
    min_tokens = math.ceil(_MIN_NODES * tokens_per_node)
    request.require("graphwalks", tokens=room, min_tokens=min_tokens)
    size = int(room / tokens_per_node)
    while True:
        sample = None
        nodes = size
        while nodes >= _MIN_NODES and (sample is None or not request.fits(sample)):
            sample = _graph_question(kind, nodes, draw)
            nodes = int(nodes * 0.98)
        yield sample


def _graph_question(kind: str, size: int, draw: random.Random) -> Sample:
    """Return a question over a graph of `size` nodes, whose answer is never empty."""
    names = [_node_name(number) for number in range(size)]
    # The four nodes that each node points to, by number.
    targets = []
    for _ in range(size):
        others = [draw.randrange(size) for _ in range(_DEGREE)]
        targets.append(others)
    answer: set[int] = set()
    while not answer:
        # A depth is drawn for parents too, whose question does not use it.
        start = draw.randrange(size)
        depth = draw.randint(1, 3)
        if kind == "parents":
            answer = _parents(targets, start)
        else:
            answer = _at_depth(targets, start, depth)
    if kind == "parents":
        depth = 1
        operation = f"Find the parents of node {names[start]}."
    else:
        operation = f"Perform a BFS from node {names[start]} with depth {depth}."
    lines = []
    for name, others in zip(names, targets, strict=True):
        lines += [f"{name} -> {names[other]}" for other in others]
    edges = "\n".join(lines)
    right_names = [names[node] for node in sorted(answer)]
    return _graph_sample(
        prompt=_GRAPH_PROMPT.format(edges=edges, operation=operation),
        references=tuple(right_names),
        max_new_tokens=_BUDGET,
        details={"depth": depth},
    )


# A base model is given the beginning of its last line, and ends with the list.
_graph_sample = partial(Sample, answer_prefix="\n\nFinal Answer: [", stop="]")


def _node_name(number: int) -> str:
    raw = str(number).encode()
    digest = hashlib.md5(raw, usedforsecurity=False)
    return digest.hexdigest()[:10]


def _parents(targets: Sequence[Sequence[int]], start: int) -> set[int]:
    """Return the nodes that point to `start`, itself left out."""
    parents = {node for node, others in enumerate(targets) if start in others}
    return parents - {start}


def _at_depth(targets: Sequence[Sequence[int]], start: int, depth: int) -> set[int]:
    """Return the nodes at a depth.

    None where a node of a smaller depth is reached again on the way, since the question
    leaves open whether it counts.
    """
    seen = {start}
    reached = {start}
    for _ in range(depth):
        reached = {other for node in reached for other in targets[node]}
        if reached & seen:
            return set()
        seen |= reached
    return reached


def _graph_score(answer: str, sample: Sample) -> dict[str, float]:
    """Return the F1 of the nodes in the last line.

    0 without one, 1 where the answer and the truth are both empty.
    """
    if sample.answer_prefix:
        answer = f"{sample.completed(answer)}]"
    last_line = answer.rstrip().split("\n")[-1]
    final = re.search(r"Final Answer: ?\[(.*)\]", last_line)
    if final is None:
        return {"f1": 0.0, "exact_match": 0.0}
    names = {name.strip() for name in final[1].split(",")}
    named = names - {""}
    truth = set(sample.references)
    f1 = 1.0
    if named or truth:
        shared = len(named & truth)
        f1 = 2 * shared / (len(named) + len(truth))
    return {"f1": f1, "exact_match": float(named == truth)}


_graphs = partial(Task, metric="f1", score=_graph_score, chat="template", version=2)
_mrcr = partial(
    Task,
    metric="sequence_match",
    samples=100,
    score=_mrcr_score,
    chat="template",
    version=2,
)


def _generated_graphs(kind: str) -> Task:
    return _graphs(
        name=f"graphwalks_{kind}",
        suite="graphwalks",
        category="GraphWalks",
        samples=100,
        make=partial(_graph_samples, kind=kind),
    )


def _openai_mrcr(needles: int) -> Task:
    return _mrcr(
        name=f"mrcr_{needles}",
        suite="mrcr",
        category="MRCR",
        make=partial(_mrcr_samples, needles=needles),
        files=_MRCR[needles],
    )


def _mined_mrcr(needles: int) -> Task:
    return _mrcr(
        name=f"mrcr_mined_{needles}",
        suite="mrcr-mined",
        category="MRCR, mined",
        make=partial(_mined_samples, needles=needles),
        reads="run",
    )


_KINDS: Final = ("bfs", "parents")
TASKS: Final = (
    *map(_generated_graphs, _KINDS),
    *map(_openai_mrcr, _NEEDLES),
    *map(_mined_mrcr, _NEEDLES),
)
