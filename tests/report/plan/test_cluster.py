"""Other machines, and a transformer on their GPUs."""

import re

import pytest

from nextlong.report.plan import cluster
from nextlong.report.plan.cluster import Asked
from nextlong.retrieval.encoders import sentence_transformers
from planned import recipe_in, written


def test_other_machines_and_a_larger_corpus(recipe):
    elsewhere = Asked(workers=16, nodes=4, chunks=1e6)
    told = written(recipe, elsewhere)
    assert " 1,000,000 chunks of " in told
    assert "64 workers" in told
    assert "4 nodes of 16 workers and 0 GPUs" in told
    assert "search, exact: 2 × " in told


def test_a_transformer_on_gpus_by_its_formula(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(sentence_transformers, "is_installed", lambda: False)
    model = "encoder.model='sentence-transformers:jinaai/jina-embeddings-v3'"
    told = written(recipe_in(tmp_path, model), Asked(nodes=2, gpus=4, chunks=1e8, gpu_tflops=1))
    assert "(2 × 302 M parameters + 4 × 24 layers × 1,024 × " in told
    row = next(line for line in told.splitlines() if line.startswith("embed "))
    tokens = float(re.search(r"100,000,000 chunks × ([\d,]+) tokens", told)[1])
    hours = 1e8 * cluster.Shape(24, 1024, 4096).operations(tokens) / 1e12 / 3600
    here, there, gpu_hours = re.search(r"embed +(.*?) {2,}([\d.,]+) (?:h|days) +([\d.,]+)  ", row).groups()
    assert here == "needs its package"
    assert float(gpu_hours.replace(",", "")) == pytest.approx(hours, rel=0.05)
    assert float(there.replace(",", "")) * (24 if "days" in row else 1) == pytest.approx(hours / 8, rel=0.05)
