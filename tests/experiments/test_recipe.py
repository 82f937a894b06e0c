"""A replication's recipe: what is compared, and mistakes that are told."""

import pytest
from experiments.replicate.corpus import PARAGRAPH_TOKENS
from experiments.replicate.recipe import ARMS, PRESETS, Replication, recipe_from

from nextlong.errors import RecipeError


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"seeds": [1, 1]}, "seeds=[1, 1] is empty or names one twice; name each once"),
        ({"arms": []}, "arms=[] is empty"),
        (
            {"preset": "smok"},
            "preset: 'smok' is not known; choose from mechanism, discriminating",
        ),
        (
            {"model": {"heads": 3}},
            "model.hidden_size=64 is not a multiple of 2 × model.heads=3; make it one",
        ),
        (
            {"pretrain": {"tokens_per_step": 100}},
            "tokens_per_step=100 is not a multiple of a row's 64; make it one",
        ),
        (
            {"pretrain": {"tokens": 300}},
            "extend.row_tokens=256 is not a multiple of pretrain.tokens=300; make it one",
        ),
        (
            {"extend": {"row_tokens": 1280}},
            "tokens_per_step=2048 is not a multiple of a row's 1280; make it one",
        ),
        (
            {"corpus": {"documents": 5000}},
            "corpus.documents must be less than or equal to 4096",
        ),
        ({"corpus": {"document": 500}}, "unknown key 'corpus.document'; did you mean"),
        ({"modell": {}}, "modell"),
    ],
)
def test_a_mistake_is_told_with_its_cure(keys, told):
    with pytest.raises(RecipeError) as error:
        Replication.from_dict({"out": "out", **keys})
    assert told in str(error.value)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_recipes_that_a_file_gives_back(name, tmp_path):
    recipe = recipe_from(name, out="out")
    assert set(recipe.arms) <= set(ARMS)
    path = tmp_path / "r.yaml"
    path.write_text(recipe.dump(), encoding="utf-8")
    assert Replication.load(path) == recipe
    longest = (max(recipe.measure.negatives) + 2) * PARAGRAPH_TOKENS
    assert longest < recipe.extend.row_tokens, (
        "probes are no longer than the rows that are trained on"
    )


def test_presets_of_bases_that_discriminate_differ_in_the_base_alone():
    for name in ("rows-512", "larger", "larger-rows-512"):
        one = recipe_from(name, out="out").model_dump()
        other = recipe_from(f"{name}-discriminating", out="out").model_dump()
        differing = {key for key in one if one[key] != other[key]}
        assert differing == {"preset", "pretrain"}
