"""Sections: what of a recipe is made anew where it changes, and which keys only say how or where to work."""

import pytest

from nextlong import pipeline
from nextlong.inputs.remembered import input_files
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import operational_keys

MODEL = "encoder.model=sentence-transformers:some/model"
SERVER = "encoder.model=openai:some-model"
# Of each operational key another value, and what must be set beside it.
OTHER_VALUES = {
    "run_dir": ["run_dir=elsewhere"],
    "name": ["name=mine"],
    "store": ["store=shared"],
    "workers": ["workers=7"],
    "executor": ["executor=serial"],
    "ray": ["ray.retries=9", "ray.address=auto"],
    "search.device": ["search.device=cpu"],
    "tokenizer.engine": ["tokenizer.engine=reference"],
    "export.push": ["export.push=published"],
    "encoder.sentence_transformers.batch_size": [MODEL, "encoder.sentence_transformers.batch_size=7"],
    "encoder.openai.api_key_env": [SERVER, "encoder.openai.api_key_env=OTHER"],
    "encoder.openai.batch_size": [SERVER, "encoder.openai.batch_size=7"],
    "encoder.openai.concurrency": [SERVER, "encoder.openai.concurrency=3"],
    "encoder.openai.requests_per_minute": [SERVER, "encoder.openai.requests_per_minute=30"],
    "encoder.openai.max_attempts": [SERVER, "encoder.openai.max_attempts=2"],
    "encoder.openai.timeout_s": [SERVER, "encoder.openai.timeout_s=5"],
}
# Another engine must give the same ids, and is what a user takes where one did not: these steps are done again with it.
ENCODE_AGAIN = {"draft", "lengths", "tokens"}


def dotted(section, above=""):
    """Yield the operational keys of a section and of those in it."""
    for name, field in section.model_fields.items():
        if name in operational_keys(section):
            yield above + name
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from dotted(field.annotation, f"{above}{name}.")


@pytest.fixture
def fingerprints(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "One document."}\n')

    def fingerprints(*overrides):
        plain = {
            "run_dir": "run",
            "ingest": {"sources": [{"path": str(tmp_path / "corpus.jsonl")}]},
            "tokenizer": {"train": 300},
        }
        recipe = Recipe.from_dict(plain, overrides=overrides)
        return {step.name: step.fingerprint for step in pipeline.route(recipe, input_files(recipe))}

    return fingerprints


def test_every_operational_key_is_tested_here():
    assert {*dotted(Recipe)} == OTHER_VALUES.keys()


@pytest.mark.parametrize("method", ["nextlong", "knn"])
@pytest.mark.parametrize("key", OTHER_VALUES)
def test_an_operational_key_makes_nothing_anew(fingerprints, key, method):
    chosen = [f"compose.method={method}", *(word for word in OTHER_VALUES[key] if word in (MODEL, SERVER))]
    before, after = fingerprints(*chosen), fingerprints(*chosen, *OTHER_VALUES[key])
    changed = {name for name in before if after[name] != before[name]}
    inputs_of_changed = {"named_chunks", "compose", "rows", "parquet"}
    assert changed <= (ENCODE_AGAIN | inputs_of_changed if key == "tokenizer.engine" else set())


def test_identity_is_the_plain_recipe_without_operational_keys():
    plain = {"run_dir": "run", "ingest": {"sources": [{"path": "x"}]}, "tokenizer": {"train": 300}}
    recipe = Recipe.from_dict(plain | {"encoder": {"openai": {"timeout_s": 3, "dimensions": 64}}})
    identity = recipe.identity()
    assert {"run_dir", "name", "workers", "executor", "ray"}.isdisjoint(identity)
    assert identity["encoder"]["openai"] == {"base_url": "https://api.openai.com/v1", "dimensions": 64}
    assert identity["ingest"]["sources"][0]["path"] == "x"
    assert "engine" not in identity["tokenizer"]
    assert identity["chunk"] == recipe.chunk.model_dump(mode="json")
