"""A replication's recipe: what is compared, and mistakes that are told."""

import pytest
from experiments.replicate.recipe import ARMS, PRESETS, Replication, recipe_from

from nextlong.errors import RecipeError


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"seeds": [1, 1]}, "seeds=[1, 1] is empty or names one twice; name each once"),
        ({"arms": []}, "arms=[] is empty"),
        (
            {"preset": "smok"},
            "preset: 'smok' is not known; choose from smoke, mechanism",
        ),
        (
            {"model": {"heads": 3}},
            "model.hidden_size=64 is not a multiple of 2 × model.heads=3; make it one",
        ),
        (
            {"pretrain": {"echo_tokens": 100}},
            "tokens_per_step=1024 is not a multiple of a row's 100; make it one",
        ),
        (
            {"measure": {"negatives": [2, 8]}},
            "pretrain.tokens=256 holds; add a number of at least 11",
        ),
        (
            {"measure": {"negatives": []}},
            "measure.negatives=[]: the hypotheses are about more negatives",
        ),
        (
            {"pretrain": {"tokens": 300}},
            "tokens_per_step=1024 is not a multiple of a row's 300; make it one",
        ),
        (
            {"extend": {"row_tokens": 1024}},
            "extend.row_tokens=1024 is shorter than a sequence; raise it",
        ),
        (
            {"corpus": {"kind": "documents", "sources": [{"path": "x", "weight": 2}]}},
            "x has weight, but all its documents are taken; leave it out",
        ),
        (
            {"corpus": {"kind": "documents", "vocabulari": 5}},
            "unknown key 'corpus.vocabulari'; did you mean",
        ),
        (
            {"corpus": {"kind": "invented", "sources": []}},
            "unknown key 'corpus.sources'; known here: documents, echoes",
        ),
        (
            {"corpus": {"kind": "documents", "vocabulary": 5}},
            "corpus.vocabulary must be greater than or equal to 300",
        ),
        (
            {"corpus": {"kind": "texts"}},
            "'texts' found using 'kind' does not match any of the expected tags",
        ),
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
    longest = max(recipe.measure.negatives) * recipe.corpus.negative_tokens
    assert longest < recipe.extend.row_tokens, (
        "probes are no longer than the rows that are trained on"
    )


def test_the_users_documents_are_the_corpus_of_a_preset_that_does_not_invent_one():
    recipe = recipe_from(
        "cpu-night",
        out="out",
        sources=["a.jsonl", "b.jsonl"],
        overrides=["corpus.vocabulary=512"],
    )
    assert [source.path for source in recipe.corpus.sources] == ["a.jsonl", "b.jsonl"]
    assert recipe.corpus.vocabulary == 512
    with pytest.raises(RecipeError) as error:
        recipe_from("mechanism", out="out", sources=["a.jsonl"])
    assert error.value.where == "--preset mechanism"
    assert "--corpus" in error.value.fix


def test_gzip_filtered_long_documents_are_a_third_of_the_tokens():
    assert ARMS["long documents, gzip-filtered"].replay == 0.66
    assert ARMS["long documents, gzip-filtered"].source == "long-gzip"
