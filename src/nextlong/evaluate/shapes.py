"""Shapes: what a record of each of the user's files holds, checked once, when it is read.

A record that has another form is told by file, line, field and value. Fields that are not read are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Final, Literal, NotRequired

from annotated_types import Gt, Len
from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

Text = Annotated[str, StringConstraints(min_length=1)]
Texts = Annotated[list[str], Len(1)]
Name = str | int
_SHOWN_CHARS: Final = 60
_OPTIONS: Final = 4


class Passage(TypedDict):
    """Of a data set of questions over passages."""

    title: str
    text: str


class Asked(TypedDict):
    """HELMET's questions over passages."""

    question: Text
    answers: Texts
    ctxs: Annotated[list[Passage], Len(1)]
    id: NotRequired[Name]
    depth: NotRequired[Any]


class AskedByPopularity(Asked):
    """PopQA's: `s_pop` is the views a month of the subject's page."""

    s_pop: Annotated[float, Gt(0)]


class Judged(TypedDict):
    """A passage that was judged for a query."""

    id: Name
    text: str
    label: int
    title: NotRequired[str]


class Query(TypedDict):
    """MS MARCO's, with its passages."""

    qid: Name
    query: Text
    ctxs: Annotated[list[Judged], Len(1)]


class KeyValues(TypedDict):
    """HELMET's JSON KV."""

    context: Text
    question: Text
    answer: Name
    demos: list[tuple[str, str]]
    depth: NotRequired[Any]


class TextField(TypedDict):
    """A text in a field of its own."""

    text: str


class Narrative(TypedDict):
    """NarrativeQA's."""

    document: TextField
    question: TextField
    answers: Annotated[list[TextField], Len(1)]


class Book(TypedDict):
    """InfiniteBench's questions over a book."""

    id: NotRequired[Any]
    context: str
    input: str
    answer: str | Texts
    options: NotRequired[Any]


class _Choice(TypedDict):
    id: NotRequired[Any]
    context: str
    input: str
    answer: str | Texts
    options: Annotated[list[str], Len(_OPTIONS, _OPTIONS)]


def _answered(choice: _Choice) -> _Choice:
    answer = choice["answer"] if isinstance(choice["answer"], str) else choice["answer"][0]
    if answer not in choice["options"]:
        raise ValueError(f"its answer {answer!r:.60} is not one of its four options")
    return choice


Choice = Annotated[_Choice, AfterValidator(_answered)]


class LongBench(TypedDict):
    """LongBench v2's."""

    context: str
    question: str
    choice_A: str
    choice_B: str
    choice_C: str
    choice_D: str
    answer: Literal["A", "B", "C", "D"]
    difficulty: str
    length: str


class GraphWalk(TypedDict):
    """GraphWalks'."""

    prompt: Text
    answer_nodes: list[str]
    problem_type: str


class AlcePrompt(TypedDict):
    """HELMET's prompt of ALCE, with its examples."""

    instruction: Text
    demo_prompt: Text
    doc_prompt: Text
    demos: Annotated[list[dict[str, Any]], Len(2)]


class _Answers(TypedDict):
    short_answers: Texts


class Alce(TypedDict):
    """ALCE's questions: ASQA's have `qa_pairs`, QAMPARI's `answers`."""

    question: Text
    docs: Annotated[list[Passage], Len(1)]
    qa_pairs: NotRequired[list[_Answers] | None]
    answers: NotRequired[list[Texts] | None]


# Keys with a stroke need the other form.
Lawsuit = TypedDict(
    "Lawsuit", {"id": Name, "sources": Texts, "summary/short": str | None, "summary/long": NotRequired[str | None]}
)
KeyPoints = TypedDict(
    "KeyPoints", {"id": Name, "keypoints": NotRequired[Texts], "summary/short_keypoints": NotRequired[Texts | None]}
)


class Mrcr(TypedDict):
    """OpenAI's MRCR: `prompt` is a conversation, as JSON."""

    prompt: Text
    answer: Text
    random_string_to_prepend: Text


class NoLiMa(TypedDict):
    """A needle with its questions, each asked in several tests."""

    id: Text
    needle: Text
    questions: Annotated[dict[str, str], Len(1)]
    tests: Annotated[dict[str, dict[str, Any]], Len(1)]
    character_set: NotRequired[list[str]]
    task_template: NotRequired[str]


class _SquadQuestion(TypedDict):
    question: Text
    answers: list[TextField]
    is_impossible: NotRequired[bool]


def _answerable(asked: _SquadQuestion) -> _SquadQuestion:
    if not asked["answers"] and not asked.get("is_impossible"):
        raise ValueError("it has no answer, and does not say is_impossible")
    return asked


class _Paragraph(TypedDict):
    context: Text
    qas: list[Annotated[_SquadQuestion, AfterValidator(_answerable)]]


class _Article(TypedDict):
    paragraphs: Annotated[list[_Paragraph], Len(1)]


class Squad(TypedDict):
    """SQuAD 2.0, the whole file."""

    data: Annotated[list[_Article], Len(1)]


class _Hotpot(TypedDict):
    question: Text
    answer: Text
    context: Annotated[list[tuple[str, list[str]]], Len(1)]


HotpotQA = Annotated[list[_Hotpot], Len(1)]
Intents = Annotated[list[tuple[str, str]], Len(1)]


class Clinc(TypedDict):
    """CLINC150, the whole file: texts with their intents."""

    train: Intents
    oos_train: Intents
    val: Intents
    oos_val: Intents


Words = Annotated[dict[str, str], Len(1)]


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def checked(value: Any, shape: Any) -> Any:
    """Return a value of a shape. Raises ValueError that names the first field that is not as it should be, and what it holds."""
    try:
        return _adapter(shape).validate_python(value)
    except ValidationError as error:
        raise ValueError("; ".join(_mistakes(error))) from None


def _mistakes(error: ValidationError) -> Iterator[str]:
    first = error.errors(include_url=False)[0]
    # Of a choice between types pydantic names the type as well; the field is told without it.
    path = [
        part for part in first["loc"] if isinstance(part, int) or (part.isidentifier() and part not in ("str", "int"))
    ]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    held = f"{first['input']!r:.{_SHOWN_CHARS}}"
    if first["type"] == "missing":
        parent = where.rpartition(".")[0]
        there = ", ".join(map(str, first["input"])) if isinstance(first["input"], dict) else held
        yield f"{parent or 'the record'} has no {str(first['loc'][-1])!r} (it has {there:.200})"
    elif first["type"] == "value_error":
        yield f"{where or 'the record'}: {first['ctx']['error']}"
    else:
        message = first["msg"][0].lower() + first["msg"][1:]
        yield f"{where or 'the record'} is {held}, but {message.replace('input ', 'it ')}"
