"""Reconstruction: one task of reinforcement learning per sequence, for GRPO.

Document reconstruction (arXiv 2602.08237): a few passages of a long text are replaced
by placeholders, and a model must choose the missing passages among options and bring
them into order. The answer is known, so no labels are needed.

Ours: the text is a sequence of this project, so the passages around a placeholder are
far apart; a passage is a chunk; at most four are hidden, never the first chunk; the
other options are the mined negatives that are most similar to each hidden meta-chunk,
and leave the text. Sequences without meta-chunks hide chunks of their documents, and
have no other options. The reward is in `export/reward.py`, which each export holds as
`reward.py`. A row has the columns that TRL and verl read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from nextlong import schemas
from nextlong.arrays import Floats, Int8s, Int32s, Ints, Objects
from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.errors import ExportError
from nextlong.export import reward
from nextlong.export.formats.base import Format, LoadingCode, Options
from nextlong.rng import rng_for
from nextlong.text import Json, Rows

_MAX_HIDDEN: Final = 4
_DISTRACTORS: Final = 2  # for each hidden chunk
_PROMPT: Final = """\
Passages of the text below are missing: their places are marked [MISSING 1], \
[MISSING 2] and so on. Choose the missing passages among the options, which follow the \
text. Other options belong to no place. Answer with the numbers of the options in the \
order of the places, such as <answer>3, 1</answer>.

TEXT
{text}

OPTIONS
{options}"""


def _write(out: Path, blocks: Iterable[Resolved], _options: Options) -> ShardResult:
    """Write one task for each row to `{out}.jsonl`."""
    count = 0
    with Path(f"{out}.jsonl").open("wb") as file:
        for block in blocks:
            for row in range(len(block)):
                task = _task(block, row)
                file.write(orjson.dumps(task, option=orjson.OPT_APPEND_NEWLINE))
            count += len(block)
    return ShardResult(rows=count)


class _Spans(NamedTuple):
    """The spans of a sequence, (n,) each."""

    roles: Int8s
    texts: Objects
    groups: Int32s
    scores: Floats
    chunk_ids: Ints

    def own(self) -> Ints:
        """Return the spans of meta-chunks; without any, those of documents."""
        metas = np.flatnonzero(self.roles == schemas.META)
        return metas if len(metas) else np.flatnonzero(self.roles == schemas.DOCUMENT)


def _task(block: Resolved, row: int) -> Json:
    """Return the task of a row, as TRL and verl read it."""
    own_spans = slice(*block.span_offsets[row : row + 2].tolist())
    spans = _Spans(*(getattr(block, name)[own_spans] for name in _Spans._fields))
    sequence_id = block.sequence_ids[row]
    rng = rng_for(0, "reconstruction", sequence_id)
    hidden = _hidden_spans(spans, sequence_id, rng)
    others = _distractors(hidden, spans)
    offered = rng.permutation([*hidden, *others]).tolist()
    numbers = {span: number for number, span in enumerate(offered, start=1)}

    shown = spans.texts.tolist()
    for place, span in enumerate(hidden, start=1):
        end = "\n" if shown[span].endswith("\n") else ""
        shown[span] = f"[MISSING {place}]{end}"
    for span in others:
        shown[span] = ""
        if spans.roles[span + 1 : span + 2].tolist() == [schemas.SEPARATOR]:
            shown[span + 1] = ""
    is_special = np.isin(spans.roles, (schemas.BOS, schemas.EOS))
    for span in np.flatnonzero(is_special).tolist():
        shown[span] = ""
    options = [
        f"[OPTION {number}]\n{spans.texts[span].strip()}"
        for span, number in numbers.items()
    ]
    content = _PROMPT.format(text="".join(shown).strip(), options="\n\n".join(options))
    shown_chunks: list[int | None] = []
    for span in spans.own().tolist():
        shown_chunks.append(None if span in hidden else int(spans.chunk_ids[span]))
    return {
        "sequence_id": sequence_id,
        "data_source": "nextlong/reconstruction",
        "prompt": [{"role": "user", "content": content}],
        "ability": "long-context",
        "reward_model": {
            "style": "rule",
            "ground_truth": ", ".join(str(numbers[span]) for span in hidden),
        },
        "extra_info": {
            "domain": block.domains[row],
            "option_chunk_ids": spans.chunk_ids[offered].tolist(),
            "shown_chunk_ids": shown_chunks,  # None for each missing one
        },
    }


def _hidden_spans(
    spans: _Spans, sequence_id: str, rng: np.random.Generator
) -> list[int]:
    """Return the spans to hide, in order: at most every second chunk, not the first."""
    own = spans.own()
    if len(own) < 2:
        raise ExportError(
            where=f"sequence {sequence_id}",
            problem="has a single chunk, which leaves nothing to reconstruct",
            fix="set compose.min_meta_chunks=2, or leave out the format reconstruction",
        )
    count = min(_MAX_HIDDEN, len(own) // 2)
    drawn: list[int] = np.sort(rng.permutation(own[1:])[:count]).tolist()
    return drawn


def _distractors(hidden: Sequence[int], spans: _Spans) -> list[int]:
    """Return the spans of the negatives that are most similar to hidden meta-chunks."""
    negatives = np.flatnonzero(spans.roles == schemas.NEGATIVE)
    # The last negative is cut. One that repeats a hidden chunk is no wrong option.
    is_new = ~np.isin(
        spans.texts[negatives].astype(str), spans.texts[hidden].astype(str)
    )
    usable = negatives[:-1][is_new[:-1]]
    chosen: list[int] = []
    for span in hidden:
        own = usable[spans.groups[usable] == spans.groups[span]]
        best = own[np.argsort(-spans.scores[own], kind="stable")[:_DISTRACTORS]]
        chosen += best.tolist()
    return chosen


def _close(folder: Path, _results: Sequence[Any]) -> None:
    """Write the reward beside the tasks."""
    source = Path(reward.__file__).read_bytes()
    (folder / "reward.py").write_bytes(source)


def _read(folder: Path, files: Sequence[str]) -> Rows:
    """Yield one mapping per task.

    Raises ValueError if its answer is not worth 1, or a place or an option is missing.
    """
    for name in files:
        with (folder / name).open("rb") as lines:
            for line in lines:
                task = orjson.loads(line)
                truth = task["reward_model"]["ground_truth"]
                (message,) = task["prompt"]
                text, _, options = message["content"].rpartition("\n\nOPTIONS\n")
                text = text.partition("TEXT\n")[2]
                has_all = reward.score(f"<answer>{truth}</answer>", truth) == 1
                for place, number in enumerate(truth.split(", "), start=1):
                    has_all &= f"[MISSING {place}]" in text
                    has_all &= f"[OPTION {number}]\n" in options
                if not has_all:
                    raise ValueError(f"{name}: a task contradicts its answer {truth!r}")
                domain = task["extra_info"]["domain"]
                yield {"sequence_id": task["sequence_id"], "domain": domain}


FORMAT = Format(
    name="reconstruction",
    layout="jsonl, reward.py",
    suffixes=(".jsonl",),
    write=_write,
    close=_close,
    read=_read,
    wanted="texts",
    no_packing="a task is made of one sequence",
    # Those that verify compares with the run; the others are the trainers'.
    columns=("sequence_id", "domain"),
    reader_takes="*.jsonl",
    hub="loads",
    snippet=LoadingCode(
        "from datasets import load_dataset",
        "load_dataset(folder, split={split})",
        "rows[0]['reward_model']",
    ),
    bytes_per_token=lambda _compression, chars_per_token: chars_per_token * 1.1,
)
