"""What earlier runs took and have done already."""

import json

import pytest

from nextlong import pipeline
from nextlong.engine.estimate import Amounts
from nextlong.reading.known_files import input_files
from nextlong.report.plan.earlier import earlier_rates, shares_to_do
from planned import recipe_in


def test_earlier_runs_are_asked_where_they_took_long_enough_and_for_the_same_encoder(recipe, tmp_path):
    pipeline.run(recipe)
    assert earlier_rates(recipe, tmp_path / "none") == {}
    for name in ("ingest", "embed"):
        (path,) = (tmp_path / "runs/x").glob(f"*-{name}-*/manifest.json")
        manifest = json.loads(path.read_text())
        manifest["parts"][0]["seconds"] = 100.0
        path.write_text(json.dumps(manifest))
        units = manifest["parts"][0]["counts"]["text_bytes" if name == "ingest" else "chunks"]
        assert earlier_rates(recipe, tmp_path / "runs/x")[name] == pytest.approx(100 / units)
    other = recipe_in(tmp_path, "encoder.model='openai:x'")
    assert set(earlier_rates(other, tmp_path / "runs/x")) & {"ingest", "embed"} == {"ingest"}


def test_times_of_steps_whose_manifests_count_no_work_are_not_carried_over(recipe, tmp_path):
    pipeline.run(recipe)
    for path in (tmp_path / "runs/x").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        for part in manifest["parts"]:
            part["seconds"] = 100.0
        path.write_text(json.dumps(manifest))
    assert set(earlier_rates(recipe, tmp_path / "runs/x")) == {"ingest", "chunk", "encoder", "embed", "tokens"}


def test_chunks_that_another_length_has_tokenized_are_not_counted_again(recipe, tmp_path):
    pipeline.run(recipe)
    manifest = next((tmp_path / "runs/x").glob("*-tokens-*/manifest.json"))
    known = sum(part["counts"]["chunks"] for part in json.loads(manifest.read_text())["parts"])
    amounts = Amounts(chunks=10 * known, referenced_chunks=2 * known)
    for overrides, left in (
        (["compose.target_tokens=600"], 0.5),
        (["compose.seed=3"], 0.9),  # other documents are drawn
        (["tokenizer.train=301"], 1.0),
    ):
        other = recipe_in(tmp_path, *overrides)
        steps = pipeline.route(other, input_files(other))
        assert shares_to_do(steps, amounts, tmp_path / "runs/x") == {"tokens": pytest.approx(left)}
