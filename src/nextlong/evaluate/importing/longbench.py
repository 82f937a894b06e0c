"""LongBench v2 (Bai et al. 2024, arXiv 2412.15204): results of its pred.py.

In:  results/MODEL.jsonl, MODEL_cot.jsonl or MODEL_no_context.jsonl of THUDM/LongBench,
     one JSON object per question, with `judge`, whether its answer is right.
Out: the accuracy, as result.py computes it, by difficulty and length.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nextlong.evaluate.importing.result import (
    ImportedResult,
    ResultFormat,
    values_of_samples,
)
from nextlong.evaluate.registry import scored_tasks

# Variants of pred.py that have no column here.
_RETRIEVAL: Final = "_rag_"
_METRIC: Final = "accuracy"


def _recognizes(_: Path, content: Any) -> bool:
    if not isinstance(content, list) or not content:
        return False
    first = content[0]
    return isinstance(first, dict) and {"judge", "pred", "difficulty"} <= set(first)


def _read(file: Path, rows: Any) -> Iterator[ImportedResult]:
    if _RETRIEVAL in file.stem:
        raise ValueError("retrieval (--rag) is not one of the tasks of the tables")
    samples = []
    for row in rows:
        details = {"difficulty": row["difficulty"], "length": row["length"]}
        scores = {
            _METRIC: float(row["judge"]),
            "parsed": float(row["pred"] is not None),
        }
        samples.append({"scores": scores, "details": details})
    variant = ""
    for suffix in ("_cot", "_no_context"):
        if file.stem.endswith(suffix):
            variant = suffix
    values = values_of_samples(_METRIC, samples)
    yield ImportedResult(
        model=file.stem.removesuffix(variant),
        task=scored_tasks()[f"longbench_v2{variant}"],
        # The documents are cut to 120,000 tokens; 128K is the paper's length.
        length=131_072,
        values=values,
        evidence={"scores": values["scores"], "n": values["n"]},
        prompt_format="chat",
    )


FORMAT: Final = ResultFormat("LongBench v2", _recognizes, _read)
