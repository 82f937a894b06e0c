"""Data of the GPU quarter-hour, made where the documents are and carried to a GPU.

    python -m experiments.quarter_hour_data --corpus A.jsonl B.jsonl \
        --held-out C.jsonl --model MODEL.gguf --tokenizer tokenizer.json

In:  documents to train on, other documents to measure on, and a model of transformers:
     a GGUF file or a folder, with its tokenizer.
Out: a folder that needs no network, no corpus and no pipeline: `arrays.npz.zst` (token
     ids of every arm's rows and of the probes), the model in parts of at most 50 MB,
     and `bundle.json`, written last, with what each array means and a hash per file.

Every arm is an ordinary run of the package. Rows of different arms repeat the same
documents, so one compressed file of all rows takes a fraction of one file per arm.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby, product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray
from tokenizers import Tokenizer

import nextlong
from nextlong.engine import store
from nextlong.errors import CorpusError, NextlongError, RunError
from nextlong.recipe import Recipe
from nextlong.rng import rng_for
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence
from nextlong.text import Json

BUNDLE: Final = "bundle.json"
ARRAYS: Final = "arrays.npz.zst"
PART: Final = "model.part-"
RUN: Final = "held-out.tar.zst"  # a run whose dependence is measured
# The `compose` keys of each arm, in the order of training.
ARMS: Final[Mapping[str, Json]] = {
    "top": {"method": "nextlong", "negatives": "top"},
    "mixed": {"method": "nextlong", "negatives": "mixed"},
    "random-corpus": {"method": "nextlong", "negatives": "random-corpus"},
    "standard": {"method": "standard"},
}
SEEDS: Final = (0, 1)
# The share of each arm's rows that are short documents (OLMo 3's; arXiv 2512.13961).
_REPLAY: Final = 0.34
# Rows of all arms repeat the same text up to this many bytes apart.
_WINDOW_LOG: Final = 27
_LEVEL: Final = 19
_PART_BYTES: Final = 50_000_000


@dataclass(frozen=True)
class Size:
    """Amounts of the experiment.

    row_tokens: tokens of a row of an arm
    rows: rows of an arm and a data seed, with those of short documents
    probe_tokens: context lengths of the probes
    probes: probes of a kind and a length
    dependence: sequences whose dependence on their earlier meta-chunks is measured
    """

    row_tokens: int = 16_384
    rows: int = 256
    probe_tokens: tuple[int, ...] = (8_192, 16_384)
    probes: int = 24
    dependence: int = 24


TINY: Final = Size(
    row_tokens=512, rows=4, probe_tokens=(256, 512), probes=2, dependence=2
)


@dataclass(frozen=True)
class Sources:
    """Files of documents to train on and to measure on, and the tokenizer's file."""

    corpus: tuple[Path, ...]
    held_out: tuple[Path, ...]
    tokenizer: Path


def write_bundle(out: Path, *, sources: Sources, model: Path, size: Size) -> Json:
    """Write the bundle into `out`; return the content of `bundle.json`.

    `model` is a GGUF file, or a folder that `from_pretrained` loads. Raises an error of
    nextlong where the corpus is too small.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quarter-hour-") as scratch:
        runs = _Runs(Path(scratch), sources, size)
        arrays = probe_arrays(runs.held_out_texts(), sources.tokenizer, size)
        for seed in SEEDS:
            arrays |= runs.rows_of_seed(seed)
        held_out = runs.held_out_run()
        with tarfile.open(Path(scratch) / "run.tar", "w") as archive:
            archive.add(held_out.path, arcname=held_out.path.name)
        packed = (Path(scratch) / "run.tar").read_bytes()
        store.write_file(out / RUN, zstandard.compress(packed, _LEVEL))
    _write_arrays(out / ARRAYS, arrays)
    kind = _write_model(model, out)
    files = sorted(path for path in out.iterdir() if path.name != BUNDLE)
    bundle: Json = {
        "version": nextlong.__version__,
        "size": asdict(size),
        "model": {"name": model.name, "kind": kind},
        "files": {path.name: sha256_of(path) for path in files},
    }
    store.write_json(out / BUNDLE, bundle)
    return bundle


@dataclass(frozen=True)
class _Runs:
    """The runs of the arms, in one run directory per set of documents."""

    scratch: Path
    sources: Sources
    size: Size

    def rows_of_seed(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return the rows of every arm, and the replay with its documents' lengths."""
        replay_rows = max(1, round(_REPLAY * self.size.rows))
        arrays: dict[str, NDArray[Any]] = {}
        for arm, compose in ARMS.items():
            run = self._run(
                self.sources.corpus,
                compose,
                name=f"{arm}-{seed}",
                seed=seed,
                rows=self.size.rows - replay_rows,
            )
            rows = [sequence.input_ids for sequence in run.sequences()]
            arrays[f"rows-{arm}-{seed}"] = np.array(rows)
        # Other documents than those of the arm `standard`, as far as there are any.
        replay = self._run(
            self.sources.corpus,
            {"method": "standard"},
            name=f"replay-{seed}",
            seed=1000 + seed,
            rows=replay_rows,
        )
        sequences = list(replay.sequences())
        arrays[f"rows-replay-{seed}"] = np.array(
            [sequence.input_ids for sequence in sequences]
        )
        lengths = [_document_lengths(sequence) for sequence in sequences]
        arrays[f"lengths-replay-{seed}"] = np.concatenate(lengths)
        return arrays

    def held_out_texts(self) -> list[str]:
        """Return texts of held-out documents, each longer than the longest probe."""
        run = self._run(
            self.sources.held_out,
            {"method": "standard"},
            name="held-out",
            seed=0,
            rows=min(self.size.probes, 4),
            # A text that is cut into sentences may have fewer tokens.
            tokens=self.size.row_tokens * 5 // 4,
        )
        return [sequence.text for sequence in run.sequences()]

    def held_out_run(self) -> Run:
        """Return a run of held-out documents among hard negatives."""
        return self._run(
            self.sources.held_out,
            {"method": "nextlong"},
            name="dependence",
            seed=0,
            rows=self.size.dependence,
            folder="dependence",
        )

    def _run(
        self,
        paths: Sequence[Path],
        compose: Mapping[str, Any],
        *,
        name: str,
        seed: int,
        rows: int,
        tokens: int | None = None,
        folder: str | None = None,
    ) -> Run:
        shared = "corpus" if paths == self.sources.corpus else "held-out"
        run_dir = self.scratch / (folder or shared)
        keys = {
            "run_dir": str(run_dir),
            "name": name,
            "seed": seed,
            "executor": "serial",
            "ingest": {"sources": [{"path": str(path)} for path in paths]},
            "tokenizer": {"source": str(self.sources.tokenizer)},
            "chunk": {"max_chars": min(2048, self.size.row_tokens)},
            "compose": {
                **compose,
                "target_tokens": tokens or self.size.row_tokens,
                "sequences": rows,
            },
        }
        nextlong.run(Recipe.from_dict(keys, origin=name))
        return Run(f"{run_dir}@{name}")


def _document_lengths(sequence: RunSequence) -> NDArray[np.int32]:
    """Return the tokens of each document of a concatenation, in order."""
    lengths = []
    for _, spans in groupby(sequence.spans, key=lambda span: span.doc_id):
        lengths.append(sum(span.token_end - span.token_start for span in spans))
    return np.array(lengths, np.int32)


# Probes: each is a context, a question and, at its end, the answer.

KINDS: Final = ("needle", "multi-key", "key-value")
_DISTRACTORS: Final = {"needle": 0, "multi-key": 15}
_PLACES: Final = (
    "Lisbon Oslo Quito Nairobi Hanoi Perth Dakar Sofia Lima Cairo Turin Kyoto Bergen "
    "Porto Austin Geneva Kigali Tunis Riga Bogota Prague Zagreb Havana Denver"
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")
_DIGITS: Final = 7


class _Asked(NamedTuple):
    """The ids of a context in pieces, of a question, and of its answer."""

    pieces: list[list[int]]
    question: list[int]
    answer: list[int]


@dataclass(frozen=True)
class _Probes:
    """What the probes of one context length are made of."""

    tokenizer: Tokenizer
    tokens: int

    def hidden(
        self, rng: np.random.Generator, text: str, *, kind: str, depth: float
    ) -> _Asked:
        """Hide one fact in a text, or sixteen of which one is asked for.

        As RULER's niah_single and niah_multikey do. `depth` is that of the asked fact,
        between 0 and 1; the others lie anywhere.
        """
        count = 1 + _DISTRACTORS[kind]
        places = rng.permutation(_PLACES.split())[:count].tolist()
        low = 10 ** (_DIGITS - 1)
        values = rng.integers(low, 10 * low, count).tolist()
        facts = []
        for place, value in zip(places, values, strict=True):
            facts.append(self._encoded(f" The access code of {place} is {value}."))
        question = self._encoded(
            f"\n\nQuestion: What is the access code of {places[0]}?\n"
            f"Answer: The access code of {places[0]} is"
        )
        answer = self._encoded(f" {values[0]}")
        fact_tokens = sum(map(len, facts))
        room = self.tokens - fact_tokens - len(question) - len(answer)
        sentences = self._first_sentences(text, room)
        depths = [depth, *rng.random(count - 1).tolist()]
        facts_at: dict[int, list[list[int]]] = {}
        for fact, fact_depth in zip(facts, depths, strict=True):
            index = int(fact_depth * len(sentences))
            facts_at.setdefault(index, []).append(fact)
        pieces = []
        for index, sentence in enumerate(sentences):
            pieces += [*facts_at.get(index, []), sentence]
        return _Asked(pieces, question, answer)

    def key_value(self, rng: np.random.Generator, *, depth: float) -> _Asked:
        """Fill the context with pairs, one of which is asked for, as HELMET's recall."""
        # All questions and answers of this form have about as many tokens.
        longest = self._encoded(_pair_question("0" * 8) + "0" * 8)
        room = self.tokens - 2 * len(longest)
        pairs = []
        pieces = []
        used = 0
        while used < room:
            pair = (rng.bytes(4).hex(), rng.bytes(4).hex())
            ids = self._encoded(f'\n"{pair[0]}": "{pair[1]}",')
            pairs.append(pair)
            pieces.append(ids)
            used += len(ids)
        key, value = pairs[int(depth * len(pairs))]
        question = self._encoded(_pair_question(key))
        return _Asked(pieces, question, self._encoded(value))

    def _first_sentences(self, text: str, room: int) -> list[list[int]]:
        """Return the ids of as many sentences as fit. Raises CorpusError for too few."""
        sentences: list[list[int]] = []
        used = 0
        for sentence in _SENTENCE_END.split(text):
            ids = self._encoded(f" {sentence}")
            used += len(ids)
            if used > room:
                return sentences
            sentences.append(ids)
        raise CorpusError(
            where="--held-out",
            problem=f"a text of it has {used:,} tokens, and a probe needs {room:,}",
            fix="give more documents",
        )

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _pair_question(key: str) -> str:
    return f'\n\nThe value of the key "{key}" is "'


def probe_arrays(
    texts: Sequence[str], tokenizer_file: Path, size: Size
) -> dict[str, NDArray[Any]]:
    """Return the probes of each kind and length: ids, and the tokens of each part.

    `parts-KIND-LENGTH` (probes, 2) holds the tokens of each probe and how many of the
    last are its answer; `probe-KIND-LENGTH` all probes, end to end. The asked facts are
    spread evenly over the context.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    arrays: dict[str, NDArray[Any]] = {}
    for tokens, kind in product(size.probe_tokens, KINDS):
        probes = _Probes(tokenizer, tokens)
        all_ids: list[int] = []
        parts = []
        for number in range(size.probes):
            rng = rng_for(0, "probe", f"{kind}-{tokens}-{number}")
            depth = (number + 0.5) / size.probes
            text = texts[number % len(texts)]
            if kind == "key-value":
                asked = probes.key_value(rng, depth=depth)
            else:
                asked = probes.hidden(rng, text, kind=kind, depth=depth)
            ids = [*chain(*asked.pieces), *asked.question, *asked.answer]
            all_ids += ids
            parts.append((len(ids), len(asked.answer)))
        arrays[f"probe-{kind}-{tokens}"] = np.array(all_ids)
        arrays[f"parts-{kind}-{tokens}"] = np.array(parts)
    return arrays


# Files.


def _write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of ids in the smallest type that holds them, compressed together."""
    plain = io.BytesIO()
    small = {}
    for name, array in arrays.items():
        is_short = int(array.max()) < 1 << 16
        small[name] = array.astype(np.uint16 if is_short else np.uint32)
    np.savez(plain, allow_pickle=False, **small)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, enable_ldm=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    store.write_file(path, compressor.compress(plain.getvalue()))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a bundle by name."""
    reader = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    plain = io.BytesIO(reader.decompress(path.read_bytes()))
    with np.load(plain) as arrays:
        return dict(arrays)


def _write_model(model: Path, out: Path) -> str:
    """Copy a model in parts; return whether it is a `gguf` file or a `folder` (tar)."""
    kind = "gguf" if model.is_file() else "folder"
    for part in out.glob(f"{PART}*"):
        part.unlink()
    with tempfile.TemporaryFile() as packed:
        if kind == "gguf":
            packed.write(model.read_bytes())
        else:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(model, arcname=".")
        packed.seek(0)
        for number, content in enumerate(iter(lambda: packed.read(_PART_BYTES), b"")):
            store.write_file(out / f"{PART}{number}", content)
    return kind


def read_run(bundle: Path, out: Path) -> Run:
    """Unpack the run of held-out documents into `out`, and open it."""
    packed = io.BytesIO(zstandard.decompress((bundle / RUN).read_bytes()))
    with tarfile.open(fileobj=packed) as archive:
        archive.extractall(out, filter="data")
    return Run(out / "dependence@dependence")


def read_model(bundle: Path, kind: str, out: Path) -> Path:
    """Join the parts of a bundle's model; return the folder or the file in `out`."""
    packed = out / "model.gguf"
    # By number: part-10 follows part-9.
    parts = sorted(bundle.glob(f"{PART}*"), key=lambda path: int(path.suffix[6:]))
    with packed.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    if kind == "gguf":
        return packed
    folder = out / "model"
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()
    return folder


def check(bundle: Path) -> Json:
    """Return `bundle.json`. Raises RunError for a bundle that is not there, or damaged.

    A transfer in parts may lose one of them.
    """
    path = bundle / BUNDLE
    if not path.is_file():
        raise RunError(
            where=bundle,
            problem="it holds no bundle",
            fix="make one with python -m experiments.quarter_hour_data, and copy it here",
        )
    content: Json = store.read_json(path)
    for name, sha256 in content["files"].items():
        file = bundle / name
        if not file.is_file() or sha256_of(file) != sha256:
            raise RunError(
                where=file,
                problem="it is missing or differs from the file that was made",
                fix="copy it again",
            )
    return content


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Write a bundle; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Make the data of the GPU quarter-hour."
    )
    parser.add_argument("--corpus", type=Path, nargs="+", required=True)
    parser.add_argument("--held-out", type=Path, nargs="+", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file or folder")
    parser.add_argument("--out", type=Path, default=Path(".quarter_hour"))
    asked = parser.parse_args()
    sources = Sources(tuple(asked.corpus), tuple(asked.held_out), asked.tokenizer)
    try:
        bundle = write_bundle(
            asked.out, sources=sources, model=asked.model, size=Size()
        )
    except NextlongError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name in bundle["files"]:
        size = (asked.out / name).stat().st_size
        print(f"{asked.out / name}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
