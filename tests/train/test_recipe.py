"""What a training recipe refuses, and how it says so; presets hold the paper's numbers and name their sources."""

import re

import pytest

from nextlong.errors import RecipeError
from nextlong.recipe.recipe import commented_sections
from nextlong.train.recipe import (
    Training,
    TrainRecipe,
    preset,
    recipe_from,
    row_warning,
)

PLAIN = {"out": "out", "data": {"runs": ["run"]}, "model": {"path": "model"}}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "training.learning_rate=1",
            "unknown key 'training.learning_rate'; known here: ",
        ),
        (
            "training.step=1",
            "unknown key 'training.step'; did you mean 'training.steps'",
        ),
        ("training.lr=0", r"training\.lr must be greater than 0 \(it is 0\)"),
        (
            "training.warmup_steps=100",
            r"training: warmup_steps=100 is not less than steps=100; lower warmup_steps or raise",
        ),
        (
            "data.parquet=[rows]",
            r"name one of data\.runs, data\.parquet and data\.chat \(set: data\.runs and data\.parquet\)",
        ),
        ("data.mix=[1,2]", r"data\.mix has 2 proportions for 1 runs"),
        (
            "model={scratch: {hidden_size: 100, heads: 3}}",
            r"hidden_size=100 is not a multiple of 2 × heads=3; make it one",
        ),
        (
            "model={scratch: {key_value_heads: 3}}",
            r"heads=4 is not a multiple of key_value_heads=3; make it one",
        ),
        ("model.scratch={}", r"name either model\.path .* or model\.scratch"),
        ("attention=causal", "attention must be 'sequence', 'document' or 'row'"),
        ("nothing", "is not KEY=VALUE"),
    ],
)
def test_mistakes_name_key_value_and_cure(override, told):
    with pytest.raises(RecipeError, match=told):
        TrainRecipe.from_dict(PLAIN, overrides=[override])


def test_chat_needs_a_length():
    with pytest.raises(RecipeError, match=r"data\.chat needs data\.pack"):
        TrainRecipe.from_dict({**PLAIN, "data": {"chat": "chat.jsonl"}})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", r"recipe\.yaml:2: not YAML"),
        (
            "- 1",
            "is a YAML list, not a mapping of keys; `nextlong train init` writes a recipe",
        ),
        ("out: a\nout: b", "duplicate key"),
        (
            "out: a\nmodel: {path: b}",
            "data is missing; `nextlong train init` writes a recipe with every key",
        ),
    ],
)
def test_files_that_are_no_recipe(tmp_path, text, told):
    (tmp_path / "recipe.yaml").write_text(text + "\n")
    with pytest.raises(RecipeError, match=told):
        TrainRecipe.load(tmp_path / "recipe.yaml")


def test_only_keys_that_decide_the_weights_are_kept_with_a_checkpoint():
    one = TrainRecipe.from_dict(PLAIN).trained_keys()
    for override in (
        "checkpoints.every_steps=7",
        "held_out.rows=3",
        "memory.checkpointing=offload",
        "watch.spike=9",
    ):
        assert TrainRecipe.from_dict(PLAIN, overrides=[override]).trained_keys() == one
    for override in (
        "seed=1",
        "training.lr=1",
        "attention=row",
        "data.pack=4096",
        "model.rope_base=1e6",
    ):
        assert TrainRecipe.from_dict(PLAIN, overrides=[override]).trained_keys() != one


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("cosine", {1: 0.25, 4: 1.0, 8: 0.55, 12: 0.1}),
        ("linear", {2: 0.5, 4: 1.0, 8: 0.55, 11: 0.2125}),
        ("constant", {4: 1.0, 12: 1.0}),
    ],
)
def test_up_then_down_to_the_least_after_the_last_step(schedule, rates):
    training = Training(
        steps=11, warmup_steps=4, lr=1.0, min_lr_ratio=0.1, schedule=schedule
    )
    assert {step: training.lr_at(step) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 1), (4, 0), (100, 99)])
def test_every_step_has_a_learning_rate(schedule, steps, warmup):
    training = Training(steps=steps, warmup_steps=warmup, lr=1.0, schedule=schedule)
    assert all(training.lr_at(step) > 0 for step in range(1, steps + 1))
    assert training.lr_share(steps - 1) == training.lr_at(steps) > 0


def test_without_warm_up_the_first_step_is_nearly_the_highest():
    assert Training(steps=100, lr=1.0).lr_at(1) == pytest.approx(0.99975, abs=1e-4)


# key → value as the source has it. 128K: arXiv 2501.12766, table of the 128K training
# setting and section 4.2 (4M tokens); 512K: table of the 512K training setting and
# appendix C.2; 64K: train_64k.sh of the authors' repository; SFT: ProLong's train_sft.sh (64 rows of 65,536; 5 % warm-up).
PINNED = {
    "paper-128k": {
        "model.rope_base": 200_000_000, "training.beta1": 0.9, "training.beta2": 0.95, "training.lr": 4e-5,
        "training.precision": "bf16",
        "training.clip": 1.0, "training.weight_decay": 0.1, "training.schedule": "cosine", "training.steps": 1000,
        "training.warmup_steps": 200, "training.tokens_per_step": 32 * 131_072, "training.min_lr_ratio": 0, "hardware.count": 64,
        "attention": "sequence", "data.pack": None,
    },
    "paper-512k": {
        "model.rope_base": 128_000_000, "training.beta1": 0.9, "training.beta2": 0.95, "training.lr": 1e-5,
        "training.precision": "bf16",
        "training.clip": 1.0, "training.weight_decay": 0.1, "training.schedule": "cosine", "training.steps": 500,
        "training.warmup_steps": 50, "training.tokens_per_step": 16 * 524_288, "training.min_lr_ratio": 0, "hardware.count": 128,
        "attention": "sequence", "data.pack": 524_288, "data.mix": (1, 2), "data.by": "tokens",
    },
    "authors-64k": {
        "model.rope_base": 8_000_000, "training.beta1": 0.9, "training.beta2": 0.95, "training.lr": 1e-5,
        "training.clip": 1.0, "training.weight_decay": 0.1, "training.schedule": "cosine", "training.steps": 500,
        "training.warmup_steps": 50, "training.tokens_per_step": 64 * 65_536, "training.min_lr_ratio": 0.1,
        "training.precision": "bf16", "data.pack": None,
    },
    "authors-512k": {
        "model.rope_base": 128_000_000, "training.lr": 5e-6, "training.min_lr_ratio": 0.1, "training.tokens_per_step": 8_388_608,
        "data.mix": (33.33, 66.67), "training.steps": 500, "data.pack": 524_288,
    },
    "paper-sft": {
        "training.lr": 2e-5, "training.min_lr_ratio": 0.1, "training.steps": 250, "training.warmup_steps": 13,
        "training.beta1": 0.9,
        "training.beta2": 0.95, "training.weight_decay": 0.1, "training.clip": 1.0, "training.tokens_per_step": 64 * 65_536,
        "data.pack": 65_536, "training.precision": "bf16", "attention": "sequence", "model.rope_base": None,
    },
}  # fmt: skip


def made(name, *overrides):
    data = (
        {"chat": "chat.jsonl"}
        if name == "paper-sft"
        else {"runs": ["a", "b"] if "512k" in name else ["a"]}
    )
    return recipe_from(
        name,
        out="out",
        data=data,
        model=None if name == "tiny" else "model",
        overrides=overrides,
    )


def value_of(recipe, key):
    for part in key.split("."):
        recipe = getattr(recipe, part)
    return recipe


@pytest.mark.parametrize("name", PINNED)
def test_numbers_are_those_of_the_table(name):
    recipe = made(name)
    assert {key: value_of(recipe, key) for key in PINNED[name]} == PINNED[name]


def test_every_preset_resolves_and_every_number_has_a_source():
    with pytest.raises(RecipeError) as refused:
        preset("")
    names = str(refused.value).partition("choose from ")[2].split(", ")
    assert set(names) == {*PINNED, "tiny"}
    for name in names:
        assert made(name).out == "out"
        assert all(source.strip() for _, source in preset(name).values())


def test_one_run_needs_no_mix():
    recipe = recipe_from("paper-512k", out="out", data={"runs": ["a"]}, model="model")
    assert recipe.data.mix is None
    assert recipe.data.by == "sequences"


@pytest.mark.parametrize(
    ("name", "row_tokens", "told"),
    [
        ("tiny", 2_048, None),
        ("tiny", 65_536, "up to 8,192 tokens, and these have 65,536; .* 8 times"),
        ("paper-128k", 131_072, None),
        ("paper-128k", 65_536, "rows of 131,072 tokens, and these have 65,536"),
        ("paper-512k", 524_288, None),
        ("authors-64k", 131_072, "rows of 65,536 tokens, and these have 131,072"),
    ],
)
def test_rows_of_another_length_than_a_presets_are_warned_of(name, row_tokens, told):
    warnings = row_warning(name, row_tokens)
    assert len(warnings) == (told is not None)
    assert told is None or re.search(told, warnings[0])


def test_a_preset_that_is_none():
    with pytest.raises(
        RecipeError, match="--preset='paper-1m' is not known; choose from paper-128k"
    ):
        made("paper-1m")


def test_the_written_recipe_says_sources_and_reads_back(tmp_path):
    recipe = made("paper-128k")
    text = commented_sections(
        recipe, sources=preset("paper-128k"), heading="A recipe.\nTwo lines."
    )
    assert text.startswith("# A recipe.\n# Two lines.\n")
    (line,) = [line for line in text.splitlines() if line.strip().startswith("lr:")]
    assert line.split("#")[0].strip() == "lr: 4.0e-05"
    assert "[paper, table of the 128K training setting]" in line
    (tmp_path / "recipe.yaml").write_text(text)
    assert TrainRecipe.load(tmp_path / "recipe.yaml") == recipe
    (tmp_path / "dumped.yaml").write_text(recipe.dump())
    assert TrainRecipe.load(tmp_path / "dumped.yaml") == recipe
