"""Data: the user's files, by the names under which their publishers give them out.

Nothing is downloaded unasked (`download.py`).
`--data` names a folder; each file has one documented place in it (`docs/evaluate/data.md`), and one that is
missing is named together with where it comes from.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import ArrowException, parquet

from nextlong.errors import EvaluateError
from nextlong.evaluate import shapes

_RULER = "NVIDIA/RULER on GitHub"
_HELMET = "HELMET's data (`princeton-nlp/HELMET`: scripts/download_data.sh, 34 GB); give the folder with its `data`"
SOURCES: Final = {
    "helmet/prompts/asqa_revised.json": "prompts/asqa_revised.json of princeton-nlp/HELMET on GitHub",
    "helmet/prompts/qampari_revised.json": "prompts/qampari_revised.json of princeton-nlp/HELMET on GitHub",
    "multi_lexsum/validation.jsonl": "Multi-LexSum's validation split (`datasets.load_dataset('allenai/multi_lexsum', 'v20230518', "
    "split='validation').to_json(…)`)",
    "multi_lexsum/train.jsonl": "Multi-LexSum's train split, as its validation split; its short summaries are shown as examples",
    "ruler/PaulGrahamEssays.json": f"{_RULER}, whose scripts/data/synthetic/json/download_paulgraham_essay.py writes it; any "
    "JSON with a field `text`, or ruler/essays.txt, does as well (the scores then compare only with your own)",
    "ruler/squad.json": "SQuAD 2.0's dev-v2.0.json (rajpurkar.github.io/SQuAD-explorer), under this name",
    "ruler/hotpotqa.json": "HotpotQA's hotpot_dev_distractor_v1.json (hotpotqa.github.io), under this name",
    "ruler/english_words.json": f"scripts/data/synthetic/json/english_words.json of {_RULER}",
    "needle/haystack.txt": "any long text; ruler/PaulGrahamEssays.json is read where it is missing",
    "icl/trec/train_5500.label": "TREC's train_5500.label (cogcomp.seas.upenn.edu/Data/QA/QC), Latin-1 or UTF-8",
    "icl/trec/TREC_10.label": "TREC's TREC_10.label (cogcomp.seas.upenn.edu/Data/QA/QC)",
    "icl/banking77/train.csv": "PolyAI-LDN/task-specific-datasets on GitHub, banking_data/train.csv",
    "icl/banking77/test.csv": "PolyAI-LDN/task-specific-datasets on GitHub, banking_data/test.csv",
    "icl/clinc150/data_full.json": "clinc/oos-eval on GitHub, data/data_full.json",
    "icl/nlu/train.csv": "nine tenths of NLU-Evaluation-Data (xliuhw/NLU-Evaluation-Data on GitHub), as columns text, "
    "scenario, intent",
    "icl/nlu/test.csv": "the other tenth of NLU-Evaluation-Data, as columns text, scenario, intent",
    "narrativeqa/test.jsonl": "NarrativeQA's test split, a JSON line a question: document.text, question.text, answers[].text "
    "(`datasets.load_dataset('deepmind/narrativeqa', split='test').to_json(…)`)",
    "narrativeqa/train.jsonl": "NarrativeQA's train split, as its test split; two questions of it are shown as examples",
}


@dataclass(frozen=True)
class HubFile:
    """A file of a data set on the Hugging Face hub; where no hash is pinned, the one that the hub names is checked."""

    repo: str
    path: str
    revision: str = "main"
    sha256: str | None = None
    licence: str = ""


_MRCR: Final = {  # of openai/mrcr at f4c69fa
    "2needle/2needle_0": "1c297b254bf64a31856b74918cd7db889a214503e0b67daa834e84f20df6aa93",
    "2needle/2needle_1": "a5a1dc9ccc945623253d04d33c03d89aee2d676c88955ce368da2ab16a0ce94d",
    "4needle/4needle_0": "4d4fa3d11ce064749de3cd039eef1a621e30a81c2c9b3e64f1df37f8afeaf312",
    "4needle/4needle_1": "8dfdb94a208cf3eee73c4e7ac6ee8a5ccb7236c6934c13c6c5f67c0a9928cdf3",
    "8needle/8needle_0": "65df601a2e0ae4a3cfb56920a6ef99f26c0de37c6b1018695e8aed684e6a94c1",
    "8needle/8needle_1": "c80b19573bff1d38e1c157d6a0bdf9cfd1a8ab6372296174c9a7015e164189e3",
}
_GRAPHWALKS: Final = {  # of openai/graphwalks at f338bb2
    "graphwalks_128k_and_shorter": "54036036c91d8e04bb2a5fcd9e36f8e2a852cacece5dfc2b1ee40e3a6182b516",
    "graphwalks_256k_to_1mil": "537879431c72a42e3b500f80efc3047e7facb90390b6063d33679b4320985911",
}
HUB: Final = {
    **{
        f"mrcr/{name}.parquet": HubFile(
            "openai/mrcr", f"{name}.parquet", "f4c69fae7cf81f7ca26b9fee34b392a50f6b8a1d", digest, "MIT"
        )
        for name, digest in _MRCR.items()
    },
    **{
        f"graphwalks/{name}.parquet": HubFile(
            "openai/graphwalks", f"{name}.parquet", "f338bb265735a56a79f4b0f5def722c9c3268ead", digest, "MIT"
        )
        for name, digest in _GRAPHWALKS.items()
    },
    **{
        f"nolima/{name}": HubFile("amodaresi/NoLiMa", path, licence="noncommercial research only")
        for name, path in {
            "needle_set.json": "needlesets/needle_set.json",
            **{f"rand_shuffle/rand_book_{n}.txt": f"haystack/rand_shuffle/rand_book_{n}.txt" for n in range(1, 6)},
        }.items()
    },
    # Llama 1's and 2's, with which HELMET counts the tokens of a story for every model; Meta's own copy is gated.
    "helmet/llama2/tokenizer.json": HubFile("hf-internal-testing/llama-tokenizer", "tokenizer.json"),
    "longbench-v2/data.json": HubFile("THUDM/LongBench-v2", "data.json"),
    **{
        f"infinitebench/longbook_{name}_eng.jsonl": HubFile(
            "xinrongzhang2022/InfiniteBench", f"longbook_{name}_eng.jsonl"
        )
        for name in ("qa", "choice", "sum")
    },
}


@dataclass(frozen=True)
class DataFiles:
    """The folder of the user's files; None where he named none."""

    folder: Path | None

    def path(self, name: str) -> Path:
        """Return where a file is, as itself or compressed (.gz). Raises EvaluateError if it is missing."""
        if self.folder is not None:
            for place in (self.folder / name, self.folder / f"{name}.gz"):
                if place.is_file():
                    return place
        raise self.missing([name])

    def missing(self, names: Sequence[str]) -> EvaluateError:
        """Return the error that these files are missing: a line for those of one origin."""
        of_origin: dict[str, list[str]] = {}
        for name in names:
            of_origin.setdefault(origin(name), []).append(self._named(name))
        lines = [
            f"{', '.join(named)} are missing; {told.replace('it comes', 'they come', 1)}"
            if named[1:]
            else f"{named[0]} is missing; {told}"
            for told, named in of_origin.items()
        ]
        return EvaluateError("\n".join(lines))

    def has(self, name: str) -> bool:
        """Say whether a file is there."""
        return self.folder is not None and any((self.folder / n).is_file() for n in (name, f"{name}.gz"))

    def text(self, name: str) -> str:
        """Return a file's text, UTF-8 or else Latin-1. Raises EvaluateError if it cannot be read."""
        path = self.path(name)
        try:
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError, zlib.error) as error:
            raise EvaluateError(f"{path} cannot be read ({error}); download it again: {origin(name)}") from None
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw.decode("latin-1")

    def json(self, name: str, shape: Any = Any) -> Any:
        """Return a file's JSON value, checked for a shape (`shapes`). Raises EvaluateError if it is another."""
        try:
            value = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise EvaluateError(f"{self.path(name)} is not JSON ({error}); download it again: {origin(name)}") from None
        return self._checked(value, shape, name)

    def json_lines(self, name: str, shape: Any = Any) -> Iterator[Any]:
        """Yield the value of each line, checked for a shape; a file that is a JSON list, or has one in `data`, gives its items."""
        if name.endswith(".parquet"):
            yield from self._parquet(name, shape)
            return
        text = self.text(name)
        first = text.lstrip()[:1]
        if first == "[" or (first == "{" and "\n{" not in text.strip()):
            value = self.json(name)
            items = value.get("data", [value]) if isinstance(value, dict) else value
            if not isinstance(items, list):
                raise EvaluateError(f"{self.path(name)}: data is {items!r:.60}, no list of records; {origin(name)}")
            for number, item in enumerate(items, start=1):
                yield self._checked(item, shape, name, place=f", record {number}")
            return
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise EvaluateError(
                        f"{self.path(name)}, line {number}: not JSON ({error}); mend the line, or download "
                        f"the file again: {origin(name)}"
                    ) from None
                yield self._checked(value, shape, name, place=f", line {number}")

    def _parquet(self, name: str, shape: Any) -> Iterator[Any]:
        path = self.path(name)
        try:
            for batch in parquet.ParquetFile(path).iter_batches(batch_size=16):
                for row in batch.to_pylist():
                    yield self._checked(row, shape, name)
        except (OSError, ValueError, ArrowException) as error:
            raise EvaluateError(
                f"{path} cannot be read as Parquet ({error}); download it again: {origin(name)}"
            ) from None

    def rows(self, name: str, columns: Sequence[str]) -> list[dict[str, str]]:
        """Return columns of a CSV file with a header; a quoted field may hold line breaks.

        Raises EvaluateError if a column is missing, in any row.
        """
        reader = csv.DictReader(io.StringIO(self.text(name), newline=""), strict=True)
        rows: list[dict[str, str]] = []
        try:
            for row in reader:
                for column in columns:
                    if row.get(column) is None:
                        there = ", ".join(str(key) for key, value in row.items() if value is not None)
                        raise EvaluateError(
                            f"{self.path(name)}, line {reader.line_num}: no {column!r} (it has {there}); {origin(name)}"
                        )
                rows.append({column: row[column] for column in columns})
        except csv.Error as error:
            raise EvaluateError(
                f"{self.path(name)}, line {reader.line_num}: no CSV ({error}); {origin(name)}"
            ) from None
        if not rows:
            raise EvaluateError(f"{self.path(name)} holds no row below its header; download it again: {origin(name)}")
        return rows

    def _checked(self, value: Any, shape: Any, name: str, *, place: str = "") -> Any:
        try:
            return value if shape is Any else shapes.checked(value, shape)
        except ValueError as error:
            raise EvaluateError(
                f"{self.path(name)}{place}: {error}; mend it, or download the file again: {origin(name)}"
            ) from None

    def _named(self, name: str) -> str:
        return str(self.folder / name) if self.folder else f"{name} (in the folder that --data names)"


def origin(name: str) -> str:
    """Say where a file comes from."""
    if name in HUB:
        file = HUB[name]
        licence = f"; its licence: {file.licence}" if file.licence else ""
        return f"it comes from {file.repo} on the Hugging Face hub ({file.path}{licence}); nextlong evaluate data SUITE fetches it"
    if name in SOURCES:
        return f"it comes from {SOURCES[name]}" if not SOURCES[name].startswith("any") else f"give {SOURCES[name]}"
    return f"it comes with {_HELMET}" if name.startswith("helmet/") else "put it there"
