from nextlong.train.presets import PRESETS, recipe_from
from nextlong.train.recipe import TrainRecipe
from nextlong.train.template import commented


def made(name, *overrides):
    data = {"chat": "chat.jsonl"} if name == "paper-sft" else {"runs": ["a", "b"] if "512k" in name else ["a"]}
    return recipe_from(name, out="out", data=data, model=None if name == "tiny" else "model", overrides=overrides)


def test_the_written_recipe_says_sources_and_reads_back(tmp_path):
    recipe = made("paper-128k")
    text = commented(recipe, sources=PRESETS["paper-128k"], heading="A recipe.\nTwo lines.")
    assert text.startswith("# A recipe.\n# Two lines.\n")
    (line,) = [line for line in text.splitlines() if line.strip().startswith("lr:")]
    assert line.split("#")[0].strip() == "lr: 4.0e-05"
    assert "[paper, table of the 128K training setting]" in line
    (tmp_path / "recipe.yaml").write_text(text)
    assert TrainRecipe.load(tmp_path / "recipe.yaml") == recipe
    (tmp_path / "dumped.yaml").write_text(recipe.dump())
    assert TrainRecipe.load(tmp_path / "dumped.yaml") == recipe
