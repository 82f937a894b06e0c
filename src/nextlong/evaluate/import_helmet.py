"""Import: results that HELMET's own scripts wrote, read into a results directory of ours.

In:  HELMET's result JSON (`args`, `averaged_metrics`, `data`), never its file name. Out: one file a task and length, with
each question's score but without the answers (they stay in HELMET's), marked as imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.task import all_tasks
from nextlong.report import tables
from nextlong.text import Json

# HELMET's data set → our task, its metric, and what makes that metric a percentage. The first that the name holds.
_NAMES: Final = (
    ("json_kv", "json_kv", "substring_exact_match", 1.0),
    ("ruler_niah_mk_2", "ruler_mk_needle", "ruler_recall", 1.0),
    ("ruler_niah_mk_3", "ruler_mk_uuid", "ruler_recall", 1.0),
    ("ruler_niah_mv", "ruler_mv", "ruler_recall", 1.0),
    ("kilt_nq", "nq", "substring_exact_match", 1.0),
    *((name, name, "substring_exact_match", 1.0) for name in ("triviaqa", "hotpotqa", "popqa")),
    ("msmarco_rerank_psg", "msmarco", "NDCG@10", 1.0),
    *((name, name, "exact_match", 1.0) for name in ("trec_coarse", "trec_fine", "banking77")),
    ("clinic150", "clinc150", "exact_match", 1.0),
    ("icl_nlu", "nlu", "exact_match", 1.0),
    ("narrativeqa", "narrativeqa", "gpt-4-score", 100 / 3),
    ("infbench_qa", "infbench_qa", "rougeL_f1", 1.0),
    ("infbench_choice", "infbench_mc", "exact_match", 1.0),
    *((f"ruler_niah_s_{n}", f"helmet_niah_single_{n}", "ruler_recall", 1.0) for n in (1, 2, 3)),
    ("ruler_niah_mk_1", "helmet_niah_multikey_1", "ruler_recall", 1.0),
    ("ruler_niah_mq", "helmet_niah_multiquery", "ruler_recall", 1.0),
    *((f"ruler_{name}", f"helmet_{name}", "ruler_recall", 1.0) for name in ("fwe", "cwe", "vt")),
    *((f"ruler_qa_{n}", f"helmet_qa_{n}", "substring_exact_match", 1.0) for n in (1, 2)),
)
_ROUGE: Final = "rougeL_f1"  # what NarrativeQA is scored with where no judge was asked
# HELMET scores these three once, and its averages count them under Recall and under its RULER.
_ALSO_RULER: Final = {
    "ruler_mk_needle": ("helmet_niah_multikey_2",),
    "ruler_mk_uuid": ("helmet_niah_multikey_3",),
    "ruler_mv": ("helmet_niah_multivalue",),
}


def read_into(files: Sequence[Path], *, out: Path | None, label: str | None, console: Console) -> results.ModelResults:
    """Read files of one model into `out`; return its results. Raises EvaluateError."""
    if not files or out is None:
        raise EvaluateError("import: run nextlong evaluate import HELMET-RESULT.json… --out RESULTS")
    records: list[tuple[Path, Json]] = []
    for file in files:
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EvaluateError(f"{file} cannot be read ({error}); give result files of HELMET's eval.py") from None
        if not isinstance(record, dict) or not record.keys() >= {"args", "averaged_metrics"}:
            raise EvaluateError(
                f"{file} is not a result of HELMET's eval.py: it has no `args` and `averaged_metrics` (.score files lack them)"
            )
        if not isinstance(record["args"], dict) or not isinstance(record["averaged_metrics"], dict):
            raise EvaluateError(
                f"{file}: its `args` or `averaged_metrics` hold no fields; give a file as HELMET wrote it"
            )
        records.append((file, record))
    models = sorted({str(record["args"].get("model_name_or_path")) for _, record in records})
    if len(models) > 1:
        raise EvaluateError(
            f"import: the files are of {len(models)} models, {models[0]} and {models[1]}; import each into its own --out"
        )
    written: dict[Path, Path] = {}
    with store.explained(out):
        out.mkdir(parents=True, exist_ok=True)
    for file, record in records:
        for place, values in _results(record, file, out):
            if place in written:
                raise EvaluateError(
                    f"import: {written[place]} and {file} are both {values['task']} at {values['length']:,}; leave one out"
                )
            place.parent.mkdir(exist_ok=True)
            results.write(place, values)
            written[place] = file
    results.write_index(out, {"kind": "helmet", "name": models[0], "label": label})
    tables.say(f"read {len(files)} files of {models[0]} into {len(written)} results in {out}", console)
    return results.read_results(out)


def _results(record: Json, file: Path, out: Path) -> Iterator[tuple[Path, Json]]:
    arguments, metrics = record["args"], record["averaged_metrics"]
    dataset = str(arguments.get("datasets"))
    known = next((row for row in _NAMES if row[0] in dataset), None)
    if known is None:
        raise EvaluateError(f"{file}: HELMET's data set {dataset!r} is not one of the paper's; leave the file out")
    _, name, metric, factor = known
    if name == "narrativeqa" and metric not in metrics:
        metric, factor = _ROUGE, 1.0
    if metric not in metrics:
        raise EvaluateError(
            f"{file}: {dataset} has no {metric} (it has {', '.join(metrics)}); score it with HELMET's scripts first"
        )
    try:
        length, score = int(arguments["input_max_length"]), float(metrics[metric]) * factor
    except (KeyError, TypeError, ValueError):
        raise EvaluateError(
            f"{file}: no number in `args.input_max_length` or `averaged_metrics.{metric}`; give a file as HELMET wrote it"
        ) from None
    # Compared as part of the protocol: scores of chat prompts are not compared with those of plain ones.
    prompt_format = {True: "chat", False: "completion"}.get(arguments.get("use_chat_template"))
    for task in (all_tasks()[one] for one in (name, *_ALSO_RULER.get(name, ()))):
        yield (
            results.place_of(out, task.name, length),
            {
                "format": results.FORMAT,
                "nextlong": nextlong.__version__,
                **{field: getattr(task, field) for field in ("suite", "category")},
                "task": task.name,
                "metric": metric,
                "length": length,
                "score": score,
                "scores": {metric: score},
                "n": len(record.get("data", [])),
                "refused": 0,
                "imported_from": file.name,
                "fingerprint": results.fingerprint({"imported": arguments, "metrics": metrics}),
                "depends_on": {"seed": arguments.get("seed"), "model": {"prompt_format": prompt_format}},
                "samples": _samples(record, metric),
            },
        )


def _samples(record: Json, metric: str) -> list[Json]:
    """Return each question's score; none where a file does not hold those of all."""
    samples = []
    for item in record.get("data", []):
        judged, value = item.get("gpt-4-scores"), item.get(metric)
        # The score of a question as `eval_gpt4_longqa.py` computes it, here as a share of its most, 3.
        if metric == "gpt-4-score" and judged:
            value = judged["fluency"] * judged["correctness"] / 3
        if value is None:
            return []
        # HELMET asks one question at several depths; such questions are resampled together.
        group = item.get("id", item.get("qid", item.get("question")))
        samples.append({"scores": {metric: float(value)}, "details": {"group": group} if group else {}})
    return samples
