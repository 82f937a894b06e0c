"""Other machines, a transformer on their GPUs, and what a plan says that its figures rest on."""

import math
import re
from types import SimpleNamespace

import pytest
from tests.support.planned import recipe_in, written

from nextlong.reading.listing import input_files
from nextlong.report.plan import scenario
from nextlong.report.plan.amounts import Amounts
from nextlong.report.plan.costs import Cost, Machines, Rate
from nextlong.report.plan.measure import Tokenizing, tokenizer_rates
from nextlong.report.plan.scenario import Scenario, assumed
from nextlong.retrieval import index
from nextlong.retrieval.encoders import sentence_transformers
from nextlong.retrieval.encoders.base import Shape, Speed

JINA = "encoder.model='sentence-transformers:jinaai/jina-embeddings-v3'"
AMOUNTS = Amounts(
    kept_chars=45e6,
    chunks=1e5,
    queries=2000,
    vectors=1e5,
    dimensions=1024,
    visited_share=0.25,
)
MEASURED = SimpleNamespace(
    tokenizing=Tokenizing(
        4.0, 0.0, tokenizer_rates(read_s=0.5, slow_s=4e-6, worth_chars=1e6)
    ),
    encoding=Speed(0.02, "why"),
    scoring=Rate(None),
    product_s=1e-10,
    sample=SimpleNamespace(size=AMOUNTS),
    dimensions=1024,
    process_bytes=1e8,
    trial=None,
)


def rates_of(recipe, asked, monkeypatch):
    """Return the rates that the steps on the machines asked for are costed by."""
    given = []
    monkeypatch.setattr(scenario, "amounts_of", lambda *_, **__: AMOUNTS)
    monkeypatch.setattr(
        scenario, "costs", lambda steps, amounts, trial, rates, **_: given.append(rates)
    )
    files = input_files(recipe.ingest)
    scenario.costs_on(recipe, files, [], MEASURED, asked)
    return given[-1]


def lines(recipe, asked, amounts=AMOUNTS, **cost):
    costs = {
        "embed": Cost(seconds=1.0, disk_bytes=3e9, on_gpus=True),
        "mine": Cost(seconds=1.0, disk_bytes=1e9, **cost),
    }
    return assumed(
        recipe, amounts, (Machines(workers=8, gpus=4), costs), asked, product_s=1e-10
    )


def test_workers_are_told_by_the_node(tmp_path):
    (_, _, nodes, *_) = lines(recipe_in(tmp_path), Scenario(nodes=2))
    assert nodes.startswith("  2 nodes with 4 workers and 0 GPUs each; ")
    assert " 4 GB " in nodes
    (_, _, one, *_) = lines(recipe_in(tmp_path), Scenario(workers=8))
    assert one.startswith("  1 node with 8 workers and 0 GPUs each; ")


def test_the_operations_of_a_search_are_a_product_of_what_is_told(tmp_path):
    *_, exact = lines(
        recipe_in(tmp_path),
        Scenario(nodes=2),
        Amounts(**{**vars(AMOUNTS), "visited_share": 1.0}),
    )
    assert exact == (
        "  search, exact: 2 × 2,000 queries × 100,000 vectors × 1,024 dimensions = 4.1e+11 FLOP, "
        "at 20 GFLOP/s per core (measured); 3.3 GB of vectors are read"
    )
    *_, built, recall = lines(
        recipe_in(tmp_path),
        Scenario(nodes=2),
        Amounts(**{**vars(AMOUNTS), "index": "IVF64,SQ8"}),
    )
    assert "× 25.0% visited = 1.0e+11 FLOP" in built
    assert recall.startswith(
        "  recall: the run tunes the index to a mean recall of 95%"
    )
    large = {**vars(AMOUNTS), "vectors": 1e8, "shards": 1e3, "visited_share": 1.0}
    *_, blocked = lines(recipe_in(tmp_path), Scenario(nodes=2), Amounts(**large))
    assert (
        "; 205.2 GB of vectors are read" in blocked
    )  # each of them once, and the queries' own for each block
    *_, on_gpus = lines(recipe_in(tmp_path), Scenario(gpus=4), on_gpus=True)
    assert "TFLOP/s per GPU (assumed)" in on_gpus
    assert not [
        line
        for line in lines(recipe_in(tmp_path), Scenario(nodes=2), Amounts())
        if "search" in line
    ]


def test_a_transformer_is_told_by_its_shape_where_gpus_are_asked_for(tmp_path):
    recipe = recipe_in(tmp_path, JINA)
    (embed,) = (
        line
        for line in lines(recipe, Scenario(gpus=4, gpu_tflops=100))
        if line.startswith("  embed: ")
    )
    operations = Shape(24, 1024, 4096).operations(
        100.0
    )  # 450 characters a chunk, 4.5 a token
    assert embed.startswith(
        "  embed: 100,000 chunks × 100 tokens × (2 × 302 M parameters + 4 × 24 layers × 1,024 × 100 for "
    )
    assert (
        f"= {1e5 * operations:.1e} FLOP; at 100 TFLOP/s per GPU (--gpu-tflops): {1e14 / operations:,.0f} chunks/s"
        in embed
    )
    assert not [
        line
        for line in lines(recipe, Scenario(nodes=2))
        if line.startswith("  embed: ")
    ]


@pytest.mark.parametrize(("gpus", "on_gpu"), [(0, 0.02), (4, None)])
def test_rates_are_those_that_were_measured(recipe, monkeypatch, gpus, on_gpu):
    rates = rates_of(recipe, Scenario(gpus=gpus), monkeypatch)
    assert rates["encoder"][:3] == (
        0.02,
        "why",
        on_gpu,
    )  # LSA has no shape, so nothing is known of it on a GPU
    assert (rates["products"].seconds, rates["products"].on_gpu) == (
        1e-10,
        index.GPU_PRODUCT_S,
    )
    assert rates["queries"].seconds is None
    assert rates["tokens"].seconds == 1e-7  # fastokens, forty times as fast
    assert rates["tokens"].start_s(2e6) == pytest.approx(
        0.5 + 1e6 * 3.9e-6
    )  # loaded for as long as the reference needs
    assert rates["tokens"].start_s(1e5) == pytest.approx(
        0.5 + 1e5 * 3.9e-6
    )  # not loaded: each character takes 4e-6 in all
    assert rates["tokenizer"].start_s(2e6) == 0.5
    slow = tokenizer_rates(0.5, 4e-6, math.inf)[
        "tokens"
    ]  # fastokens does not know the tokenizer
    assert (slow.seconds, slow.start_s(2e6)) == (4e-6, 0.5)


def test_a_transformer_on_gpus_takes_its_operations_at_their_speed(
    recipe, tmp_path, monkeypatch
):
    rate = rates_of(
        recipe_in(tmp_path, JINA), Scenario(gpus=1, gpu_tflops=100), monkeypatch
    )["encoder"]
    assert rate.on_gpu == pytest.approx(Shape(24, 1024, 4096).operations(100.0) / 1e14)


def test_other_machines_and_a_larger_corpus(recipe):
    elsewhere = Scenario(workers=16, nodes=4, chunks=1e6)
    told = written(recipe, elsewhere)
    assert " 1,000,000 chunks of " in told
    assert "64 workers" in told
    assert "4 nodes with 16 workers and 0 GPUs each" in told
    assert "search, exact: 2 × " in told


def test_a_transformer_on_gpus_by_its_formula(recipe, tmp_path, monkeypatch):
    find_spec = sentence_transformers.importlib.util.find_spec
    missing = lambda name: None if name == "sentence_transformers" else find_spec(name)  # noqa: E731
    monkeypatch.setattr(sentence_transformers.importlib.util, "find_spec", missing)
    model = "encoder.model='sentence-transformers:jinaai/jina-embeddings-v3'"
    told = written(
        recipe_in(tmp_path, model), Scenario(nodes=2, gpus=4, chunks=1e8, gpu_tflops=1)
    )
    assert "(2 × 302 M parameters + 4 × 24 layers × 1,024 × " in told
    row = next(line for line in told.splitlines() if line.startswith("embed "))
    tokens = float(re.search(r"100,000,000 chunks × ([\d,]+) tokens", told)[1])
    hours = 1e8 * Shape(24, 1024, 4096).operations(tokens) / 1e12 / 3600
    here, there, gpu_hours = re.search(
        r"embed +(.*?) {2,}([\d.,]+) (?:h|days) +([\d.,]+)  ", row
    ).groups()
    assert here == "needs its package"
    assert float(gpu_hours.replace(",", "")) == pytest.approx(hours, rel=0.05)
    assert float(there.replace(",", "")) * (
        24 if "days" in row else 1
    ) == pytest.approx(hours / 8, rel=0.05)
