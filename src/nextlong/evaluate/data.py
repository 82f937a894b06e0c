"""Data: the user's files, by the names under which their publishers release them, and what of them can be downloaded.

`--data` names a folder; each file has one documented place in it (`docs/evaluate/data.md`), and a missing file is named
together with its source. A record of another form is reported by file, line, field and value; fields that are not read are not
checked. Nothing is downloaded unless the user runs `nextlong evaluate data`.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, NotRequired, TypeAlias

from annotated_types import Len
from pyarrow import ArrowException, parquet
from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError
from rich.console import Console
from typing_extensions import TypedDict

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.report import tables
from nextlong.text import Json, first_sentence

# A type that pydantic checks a record against, made at run time; the files of the tasks declare the shapes that they read.
Shape: TypeAlias = Any
_TypedDict: Any = TypedDict
_Annotated: Any = Annotated
_NotRequired: Any = NotRequired
_list: Any = list
TEXT: Final[Shape] = _Annotated[str, StringConstraints(min_length=1)]
NAME: Final[Shape] = str | int


def record(check: Callable[[Json], Json] | None = None, /, **fields: Shape) -> Shape:
    """Return the shape of an object with these fields; `check` may raise ValueError for a record of that shape."""
    shape = _TypedDict("Record", fields)
    return shape if check is None else _Annotated[shape, AfterValidator(check)]


def several(shape: Shape, *, least: int = 1) -> Shape:
    """Return the shape of a list of `least` values or more."""
    return _Annotated[_list[shape], Len(least)]


def optional(shape: Shape) -> Shape:
    """Return the shape of a field that may be missing, or null."""
    return _NotRequired[shape | None]


TEXTS: Final[Shape] = several(str)


@cache
def _adapter(shape: Shape) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def _mistake(error: ValidationError) -> str:
    """Return the first field that is wrong, and what it holds."""
    first = error.errors(include_url=False)[0]
    # pydantic's path also names the member of a union, which is no field.
    path = [
        part for part in first["loc"] if isinstance(part, int) or (part.isidentifier() and part not in ("str", "int"))
    ]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    held = f"{first['input']!r:.60}"
    if first["type"] == "missing":
        parent = where.rpartition(".")[0]
        fields = ", ".join(map(str, first["input"])) if isinstance(first["input"], dict) else held
        return f"{parent or 'the record'} has no {str(first['loc'][-1])!r} (it has {fields:.200})"
    if first["type"] == "value_error":
        return f"{where or 'the record'}: {first['ctx']['error']}"
    message = (first["msg"][0].lower() + first["msg"][1:]).replace("input ", "it ")
    return f"{where or 'the record'} is {held}, but {message}"


_RULER = "NVIDIA/RULER on GitHub"
_HELMET = "HELMET's data (`princeton-nlp/HELMET`: scripts/download_data.sh, 34 GB); give the folder with its `data`"
_SOURCES: Final = {
    **{
        f"helmet/prompts/{name}_revised.json": f"prompts/{name}_revised.json of princeton-nlp/HELMET on GitHub"
        for name in ("asqa", "qampari")
    },
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
class _HubFile:
    """A file of a data set on the Hugging Face hub; where no hash is pinned, the one that the hub names is checked."""

    repo: str
    path: str
    revision: str = "main"
    sha256: str | None = None
    licence: str = ""


_MRCR: Final = {  # SHA-256 by file, of openai/mrcr
    "2needle/2needle_0": "1c297b254bf64a31856b74918cd7db889a214503e0b67daa834e84f20df6aa93",
    "2needle/2needle_1": "a5a1dc9ccc945623253d04d33c03d89aee2d676c88955ce368da2ab16a0ce94d",
    "4needle/4needle_0": "4d4fa3d11ce064749de3cd039eef1a621e30a81c2c9b3e64f1df37f8afeaf312",
    "4needle/4needle_1": "8dfdb94a208cf3eee73c4e7ac6ee8a5ccb7236c6934c13c6c5f67c0a9928cdf3",
    "8needle/8needle_0": "65df601a2e0ae4a3cfb56920a6ef99f26c0de37c6b1018695e8aed684e6a94c1",
    "8needle/8needle_1": "c80b19573bff1d38e1c157d6a0bdf9cfd1a8ab6372296174c9a7015e164189e3",
}
_GRAPHWALKS: Final = {  # of openai/graphwalks
    "graphwalks_128k_and_shorter": "54036036c91d8e04bb2a5fcd9e36f8e2a852cacece5dfc2b1ee40e3a6182b516",
    "graphwalks_256k_to_1mil": "537879431c72a42e3b500f80efc3047e7facb90390b6063d33679b4320985911",
}
_NOLIMA_BOOKS: Final = {
    f"rand_shuffle/rand_book_{n}.txt": f"haystack/rand_shuffle/rand_book_{n}.txt" for n in range(1, 6)
}


def _of_openai(suite: str, revision: str, digests: Mapping[str, str]) -> dict[str, _HubFile]:
    return {
        f"{suite}/{name}.parquet": _HubFile(f"openai/{suite}", f"{name}.parquet", revision, digest, "MIT")
        for name, digest in digests.items()
    }


_HUB: Final = {
    **_of_openai("mrcr", "f4c69fae7cf81f7ca26b9fee34b392a50f6b8a1d", _MRCR),
    **_of_openai("graphwalks", "f338bb265735a56a79f4b0f5def722c9c3268ead", _GRAPHWALKS),
    **{
        f"nolima/{name}": _HubFile("amodaresi/NoLiMa", path, licence="noncommercial research only")
        for name, path in {"needle_set.json": "needlesets/needle_set.json", **_NOLIMA_BOOKS}.items()
    },
    # Llama 1's and 2's, with which HELMET counts the tokens of a story for every model; Meta's own copy is gated.
    "helmet/llama2/tokenizer.json": _HubFile("hf-internal-testing/llama-tokenizer", "tokenizer.json"),
    "longbench-v2/data.json": _HubFile("THUDM/LongBench-v2", "data.json"),
    **{
        f"infinitebench/{name}": _HubFile("xinrongzhang2022/InfiniteBench", name)
        for name in (f"longbook_{part}_eng.jsonl" for part in ("qa", "choice", "sum"))
    },
}
# What is read in place of a missing file.
STAND_INS: Final = {
    "ruler/PaulGrahamEssays.json": "ruler/essays.txt",
    "needle/haystack.txt": "ruler/PaulGrahamEssays.json",
}


@dataclass(frozen=True)
class DataFiles:
    """The folder of the user's files; None where he named none."""

    folder: Path | None

    def __post_init__(self) -> None:
        """Raise EvaluateError for a folder that is none."""
        if self.folder is not None and not self.folder.is_dir():
            raise EvaluateError(
                f"--data {self.folder} is not a folder; docs/evaluate/data.md lists the files that it holds"
            )

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
        """Return whether a file exists."""
        return self.folder is not None and any((self.folder / n).is_file() for n in (name, f"{name}.gz"))

    def can_read(self, name: str) -> bool:
        """Return whether a file, or its stand-in, exists."""
        return self.has(name) or (name in STAND_INS and self.has(STAND_INS[name]))

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

    def json(self, name: str, shape: Shape = Any) -> Any:
        """Return a file's JSON value, checked for a shape. Raises EvaluateError if it is another."""
        try:
            value = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise EvaluateError(f"{self.path(name)} is not JSON ({error}); download it again: {origin(name)}") from None
        return self._checked(value, shape, name)

    def json_lines(self, name: str, shape: Shape = Any) -> Iterator[Any]:
        """Yield the value of each line, checked for a shape; a file that is a JSON list, or has one in `data`, gives its items."""
        if name.endswith(".parquet"):
            yield from self._parquet(name, shape)
            return
        text = self.text(name)
        first = text.lstrip()[:1]
        # One JSON value over the whole file, rather than one a line: an object there is followed by no second one.
        if first == "[" or (first == "{" and "\n{" not in text.strip()):
            value = self.json(name)
            items = value.get("data", [value]) if isinstance(value, dict) else value
            if not isinstance(items, list):
                raise EvaluateError(
                    f"{self.path(name)}: data is {items!r:.60}, which is not a list of records; {origin(name)}"
                )
            for number, item in enumerate(items, start=1):
                yield self._checked(item, shape, name, place=f", record {number}")
            return
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise EvaluateError(
                        f"{self.path(name)}, line {number}: not JSON ({error}); fix the line, or download "
                        f"the file again: {origin(name)}"
                    ) from None
                yield self._checked(value, shape, name, place=f", line {number}")

    def _parquet(self, name: str, shape: Shape) -> Iterator[Any]:
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
                f"{self.path(name)}, line {reader.line_num}: not valid CSV ({error}); {origin(name)}"
            ) from None
        if not rows:
            raise EvaluateError(f"{self.path(name)} holds no row below its header; download it again: {origin(name)}")
        return rows

    def _checked(self, value: Any, shape: Shape, name: str, *, place: str = "") -> Any:
        try:
            return value if shape is Any else _adapter(shape).validate_python(value)
        except ValidationError as error:
            raise EvaluateError(
                f"{self.path(name)}{place}: {_mistake(error)}; fix it, or download the file again: {origin(name)}"
            ) from None

    def _named(self, name: str) -> str:
        return str(self.folder / name) if self.folder else f"{name} (in the folder that --data names)"


def origin(name: str) -> str:
    """Say where a file comes from."""
    if name in _HUB:
        file = _HUB[name]
        licence = f"; its licence: {file.licence}" if file.licence else ""
        place = f"{file.repo} on the Hugging Face hub ({file.path}{licence})"
        return f"it comes from {place}; nextlong evaluate data SUITE downloads it"
    if name in _SOURCES:
        return f"it comes from {_SOURCES[name]}" if not _SOURCES[name].startswith("any") else f"give {_SOURCES[name]}"
    return f"it comes with {_HELMET}" if name.startswith("helmet/") else "put it there"


_SHA256_DIGITS: Final = 64


def download(names: Sequence[str], out: Path, console: Console) -> list[Json]:
    """Download files into a folder; return a record of each: downloaded, present already, or to be downloaded manually."""
    with store.explained(out):
        out.mkdir(parents=True, exist_ok=True)
    done: list[Json] = []
    for name in names:
        if DataFiles(out).can_read(name):
            done.append({"file": name, "state": "present"})
        elif name in _HUB:
            digest = _download(_HUB[name], out / name)
            done.append({"file": name, "state": "downloaded", "sha256": digest, "from": _HUB[name].repo})
        else:
            done.append({"file": name, "state": "manual", "from": origin(name)})
        source = f": {done[-1]['from']}" if "from" in done[-1] else ""
        tables.say(f"{done[-1]['state']:<10} {out / name}{source}", console)
    return done


def _download(file: _HubFile, place: Path) -> str:
    """Download a file and return its SHA-256. Raises EvaluateError if that fails, or if the hash is not the publisher's."""
    hub = required("huggingface_hub")
    # The library reads HF_ENDPOINT when it is imported; here it is read at each call.
    where = {"repo_type": "dataset", "revision": file.revision, "endpoint": os.environ.get("HF_ENDPOINT")}
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place.parent, prefix=".fetching-") as temporary:
        try:
            etag = hub.get_hf_file_metadata(hub.hf_hub_url(file.repo, file.path, **where)).etag
            fetched = Path(hub.hf_hub_download(file.repo, file.path, local_dir=temporary, **where))
        except (OSError, ValueError) as error:  # the library's errors are both, and requests' are OSError
            raise EvaluateError(
                f"{file.path} of {file.repo} cannot be downloaded ({first_sentence(error)}); try again, or put your copy at {place}"
            ) from None
        with fetched.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        # The ETag of a file in Git LFS is its SHA-256, of any other file a shorter hash.
        published = file.sha256 or (etag if etag and len(etag) == len(digest) else None)
        if published is not None and digest != published:
            raise EvaluateError(
                f"{file.path} of {file.repo} has the SHA-256 {digest}, not {published}: it is damaged or was changed; try again"
            )
        fetched.replace(place)
    return digest
