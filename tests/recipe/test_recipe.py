"""Recipes: what is refused and in which words, what `--set` does, and that dumps and commented YAML read back."""

import contextlib
import pickle
import re

import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nextlong.cli.init import new_recipe
from nextlong.errors import RecipeError
from nextlong.plugins import ENCODERS, METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.keys import options_class
from nextlong.recipe.recipe import commented
from nextlong.recipe.text import InvalidKeysError, preset_path

PLAIN = {
    "run_dir": "r",
    "ingest": {"sources": [{"path": "a.jsonl"}]},
    "tokenizer": {"train": 300},
}


def load(tmp_path, text, *overrides):
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    with contextlib.chdir(tmp_path):  # where relative paths start from
        return Recipe.load("r.yaml", overrides=overrides)


def refusal(*overrides, **changed):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(PLAIN | changed, overrides=overrides)
    return str(caught.value)


def test_the_least_recipe_has_the_papers_defaults():
    recipe = Recipe.from_dict(PLAIN)
    assert (recipe.chunk.max_chars, recipe.chunk.length, recipe.chunk.oversize) == (
        2048,
        "slice",
        "split",
    )
    assert (
        recipe.compose.target_tokens,
        recipe.compose.fit,
        recipe.compose.position,
    ) == (131_072, "exact", "head")
    assert (recipe.compose.draft_factor, recipe.compose.min_meta_chunks) == (1.5, 2)
    assert recipe.ingest.sources[0].label == "a.jsonl"


def test_sources_need_names_of_their_own():
    twice = {"sources": [{"path": "a"}, {"path": "b", "name": "a"}]}
    assert "name 'a'" in refusal(ingest=twice)
    Recipe.from_dict(
        PLAIN | {"ingest": {"sources": [{"path": "a"}, {"path": "a", "name": "b"}]}}
    )


@pytest.mark.parametrize(
    ("special", "target_tokens", "allowed"),
    [
        ({}, 2, True),
        ({"eos": "</s>"}, 2, True),
        ({"bos": "<s>", "eos": "</s>"}, 2, False),
        ({"bos": "<s>", "eos": "</s>"}, 3, True),
    ],
)
def test_special_tokens_must_leave_room(special, target_tokens, allowed):
    plain = PLAIN | {
        "tokenizer": {"train": 300, **special},
        "compose": {"target_tokens": target_tokens},
    }
    if allowed:
        Recipe.from_dict(plain)
    else:
        with pytest.raises(
            RecipeError,
            match=r"compose\.target_tokens=2 .*tokenizer\.eos",
        ):
            Recipe.from_dict(plain)


def test_the_error_names_the_wrong_keys_and_keeps_them_between_processes():
    with pytest.raises(InvalidKeysError) as caught:
        Recipe.from_dict(PLAIN, overrides=["workers=0", "ingest.sources.0.pth=b"])
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert arrived.keys == ("workers", "ingest.sources[0].pth")
    assert str(arrived) == str(caught.value)


def test_values_that_only_python_can_hold_are_refused_too(tmp_path):
    assert refusal(run_dir=tmp_path).startswith("recipe: run_dir ")


# --set


def test_overrides_reach_any_key():
    recipe = Recipe.from_dict(
        PLAIN,
        overrides=[
            "compose.target_tokens=65_536",
            "ingest.sources[0].path=b.jsonl",
            "export.formats=[jsonl, parquet]",
            'compose.separator="\\n\\n"',
            "compose.seed=",
            "tokenizer=gpt2",
        ],
    )
    assert recipe.compose.target_tokens == 65_536
    assert recipe.ingest.sources[0].path == "b.jsonl"
    assert recipe.export.formats == ("jsonl", "parquet")
    assert recipe.compose.separator == "\n\n"
    assert recipe.compose.seed is None
    assert (recipe.tokenizer.source, recipe.tokenizer.train) == ("gpt2", None)


def test_the_last_override_wins_and_a_value_may_hold_an_equals_sign():
    recipe = Recipe.from_dict(PLAIN, overrides=["run_dir=a", "run_dir=b=c"])
    assert recipe.run_dir == "b=c"


def test_a_shorthand_gives_way_to_the_keys_set_below_it():
    recipe = Recipe.from_dict(
        PLAIN | {"tokenizer": "gpt2"}, overrides=["tokenizer.eos=<|endoftext|>"]
    )
    assert (recipe.tokenizer.source, recipe.tokenizer.eos) == ("gpt2", "<|endoftext|>")
    assert (
        Recipe.from_dict(
            PLAIN | {"ingest": {"sources": ["x"]}},
            overrides=["ingest.sources.0.path=y"],
        )
        .ingest.sources[0]
        .path
        == "y"
    )


def test_overrides_leave_what_they_were_given_alone():
    plain = {**PLAIN, "ingest": {"sources": ({"path": "a"},)}}
    Recipe.from_dict(plain, overrides=["ingest.sources.0.path=b", "compose.fit=paper"])
    assert plain == {**PLAIN, "ingest": {"sources": ({"path": "a"},)}}


# files


def test_load_names_file_key_and_value(tmp_path):
    with pytest.raises(
        RecipeError,
        match=r"r\.yaml: workers .*-1\)",
    ):
        load(
            tmp_path,
            "run_dir: r\nworkers: -1\ntokenizer: gpt2\ningest: {sources: [{path: a}]}\n",
        )


def test_a_file_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "x.yaml", tmp_path):
        with pytest.raises(RecipeError) as caught:
            Recipe.load(path)
        assert caught.value.where == str(path)
    assert "folder" in caught.value.problem
    path = tmp_path / "b.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="UTF-8") as caught:
        Recipe.load(path)
    assert caught.value.where == str(path)


def test_merge_keys_of_yaml_still_work(tmp_path):
    text = "run_dir: r\ntokenizer: gpt2\ningest:\n  sources:\n  - &a {path: a, text: body}\n  - {<<: *a, path: b}\n"
    assert [source.text for source in load(tmp_path, text).ingest.sources] == [
        "body",
        "body",
    ]


def test_a_dump_reads_back_equal_and_names_every_key(tmp_path):
    recipe = Recipe.from_dict(
        PLAIN | {"run_dir": "läuft/日本 #1: x", "seed": -3},
        overrides=[
            'compose.separator="\\t\\0\\n"',
            "ingest.sources.0.weight=0.5",
            "workers=3",
            "compose.sequences=all",
        ],
    )
    assert load(tmp_path, recipe.dump()) == recipe
    assert set(recipe.dump().split()) >= {
        "fit_chunks:",
        "row_group_mb:",
        "max_reject_share:",
    }


def test_recipes_cannot_be_altered():
    recipe = Recipe.from_dict(PLAIN)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        recipe.seed = 4
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        recipe.compose.fit = "paper"
    assert isinstance(recipe.ingest.sources, tuple)


def test_the_seed_of_composing_is_its_own_or_the_recipes():
    assert Recipe.from_dict(PLAIN, overrides=["seed=7"]).compose_seed == 7
    assert (
        Recipe.from_dict(PLAIN, overrides=["seed=7", "compose.seed=0"]).compose_seed
        == 0
    )


def test_one_format_may_stand_without_a_list():
    recipe = Recipe.from_dict(PLAIN, overrides=["export.formats=jsonl"])
    assert recipe.export.formats == ("jsonl",)


@pytest.mark.parametrize(
    ("formats", "compression", "takers"),
    [
        ("[mds]", "lz4", "axolotl, parquet, torchtitan"),
        ("[jsonl, mds]", "snappy", "axolotl, parquet, torchtitan"),
        ("[arrow, megatron]", "zstd", "axolotl, mds, parquet, prolong, torchtitan"),
    ],
)
def test_compression_that_no_format_takes_is_refused(formats, compression, takers):
    told = refusal(f"export.formats={formats}", f"export.compression={compression}")
    assert f"compression is {compression} " in told
    assert told.endswith(f": {takers}")


@pytest.mark.parametrize(
    ("formats", "compression"),
    [("[mds, parquet]", "lz4"), ("[jsonl]", "none"), ("[mds]", "zstd")],
)
def test_compression_that_one_format_takes_is_kept(formats, compression):
    asked = [f"export.formats={formats}", f"export.compression={compression}"]
    assert Recipe.from_dict(PLAIN, overrides=asked).export.compression == compression


def test_rows_must_hold_a_sequence():
    asked = ["compose.target_tokens=2048", "export.pack=2048"]
    assert Recipe.from_dict(PLAIN, overrides=asked).export.pack == 2048
    told = "recipe: export.pack=2048 is less than the length of a sequence, 2049 tokens; raise it to at least that"
    assert refusal(*asked, "export.formats=[torchtitan]").startswith(told)


def test_one_sequence_cannot_be_split():
    told = refusal("compose.sequences=1", "export.validation=0.1")
    assert told.startswith("recipe: export.validation=0.1 ")
    assert "compose.sequences=1;" in told


@pytest.mark.parametrize("formats", ["[megatron, torchtitan]", "[torchtitan, parquet]"])
def test_formats_that_want_sequences_of_two_lengths_are_refused_together(formats):
    told = refusal(f"export.formats={formats}")
    assert "these formats" in told
    assert "torchtitan target_tokens + 1" in told
    assert "run_dir" in told


def test_a_format_whose_documents_must_end_wants_a_token_for_it():
    told = refusal("export.formats=olmo")
    assert told.startswith("recipe: export.formats: olmo ")
    assert "is null" in told
    same = ["tokenizer.eos=<|endoftext|>", "tokenizer.bos=<|endoftext|>"]
    with pytest.raises(RecipeError, match="tokenizer.bos and"):
        Recipe.from_dict(PLAIN, overrides=["export.formats=olmo", *same])
    asked = ["export.formats=olmo", "tokenizer.eos=<|endoftext|>"]
    assert Recipe.from_dict(PLAIN, overrides=asked).tokenizer.eos == "<|endoftext|>"


def test_a_shard_larger_than_its_format_can_count_is_refused():
    told = refusal("export.formats=prolong", "export.shard_mb=5000")
    assert "shard_mb is 5000" in told
    assert "at most 4000" in told


@pytest.mark.parametrize(
    "run_dir", ["s3://bucket/run", "gs://bucket/run", "memory://run"]
)
def test_run_dir_must_be_a_folder(run_dir):
    plain = {
        "run_dir": run_dir,
        "ingest": {"sources": [{"path": "a"}]},
        "tokenizer": "gpt2",
    }
    with pytest.raises(
        RecipeError,
        match=rf"run_dir={run_dir} .* object stores",
    ):
        Recipe.from_dict(plain)


def reload(tmp_path, text):
    (tmp_path / "again.yaml").write_text(text, encoding="utf-8")
    with contextlib.chdir(tmp_path):
        return Recipe.load("again.yaml")


def keys_of(model):
    for name in type(model).model_fields:
        value = getattr(model, name)
        yield name
        if isinstance(value, BaseModel):
            yield from keys_of(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield from (key for item in value for key in keys_of(item))


def test_the_starter_loads_back_equal(tmp_path):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    assert reload(tmp_path, commented(recipe, heading="A recipe.")) == recipe


def test_every_key_is_there_with_a_comment(tmp_path):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    text = commented(recipe, heading="A\n\nheading")
    lines = [line for line in text.splitlines() if line]
    assert lines[:3] == ["# A", "#", "# heading"]
    options = [(METHODS, name) for name in METHODS.built_in]
    options += [(ENCODERS, name) for name in ENCODERS.built_in]
    of_plugins = [
        key
        for registry, name in options
        for key in options_class(registry, name).model_fields
    ]
    short = len(commented(recipe, heading="A\n\nheading", include="important"))
    live, rest = text[:short], text[short:]
    assert all(not line or line.startswith("# ") for line in rest.splitlines())
    keys = re.findall(r"^#? *-? *(\w+):", text, re.MULTILINE)
    sections = {*METHODS.built_in, "sentence_transformers", "openai", "static"}
    assert set(keys) - sections == set(keys_of(recipe)) | set(of_plugins)
    rest_keys = re.findall(r"^# +-? *(\w+): \S", rest, re.MULTILINE)
    assert "target_tokens" in live
    assert "target_tokens" not in rest_keys
    assert "max_uses" in rest_keys
    listed = [line for line in rest.splitlines() if re.match(r"# *\w+:", line)]
    assert [line for line in listed if "  # " not in line] == ["#   sources:"]


def test_keys_of_a_complete_recipe_read_back_once_they_are_set(tmp_path):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    text = commented(recipe, heading="A recipe.")
    live = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(live) < 25
    search = text.partition("# == search ==\n")[2].partition("\n\n")[0]
    as_set = re.sub(r"^# ", "", search, flags=re.MULTILINE)
    assert reload(tmp_path, f"{text}\n{as_set}\n") == recipe


@pytest.mark.parametrize(
    "separator",
    [
        "",
        "\n",
        'a"\n',
        "# x",
        "'",
        "---",
        "\u2028é\n",
        "\x00\x7f",
        "null",
        "1",
        " ",
        ": ",
    ],
)
def test_odd_separators_come_back(tmp_path, separator):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    recipe = recipe.model_copy(
        update={"compose": recipe.compose.model_copy(update={"separator": separator})}
    )
    assert reload(tmp_path, commented(recipe, heading="")) == recipe


@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
@example(text="\x85")
def test_any_name_comes_back(tmp_path_factory, text):
    plain = {
        "run_dir": text,
        "ingest": {"sources": [{"path": text, "name": text}]},
        "tokenizer": {"source": text, "eos": text},
    }
    recipe = Recipe.from_dict(plain)
    folder = tmp_path_factory.mktemp("names")
    assert reload(folder, commented(recipe, heading="x")) == recipe
    assert reload(folder, recipe.dump()) == recipe


@pytest.mark.parametrize(
    "name", ["quickstart", "mixed-64k", "paper-64k", "paper-128k", "paper-512k"]
)
def test_every_preset_is_a_recipe(tmp_path, name):
    text = preset_path(name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert reload(tmp_path, text).run_dir == f"runs/{name}"


def test_a_preset_that_is_none():
    with pytest.raises(
        RecipeError, match="mixed-64k, paper-128k, paper-512k, paper-64k, quickstart"
    ):
        preset_path("../pyproject")


def test_a_short_recipe_has_some_forty_lines_and_reads_back_equal(tmp_path):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    text = commented(recipe, heading="A recipe.", include="important")
    assert 20 < len(text.splitlines()) <= 45
    assert all(
        "  # " in line
        for line in text.splitlines()[1:]
        if line and not line.endswith(":")
    )
    assert reload(tmp_path, text) == recipe


@pytest.mark.parametrize(
    "override",
    [
        "workers=3",
        "chunk.max_chars=999",
        "encoder.lsa.dimensions=8",
        "compose.separator=' # '",
        "iclm.neighbours=3",
        "decontaminate.files=[a, b]",
        "ingest.sources[0].filter='a > 1 # b'",
        "ingest.sources[0].metadata=[a]",
        "export.pack=256k",
    ],
)
def test_a_short_recipe_leaves_out_only_defaults(tmp_path, override):
    plain = new_recipe(tmp_path / "my.yaml").recipe.as_data()
    recipe = Recipe.from_dict(plain, overrides=[override])
    assert (
        reload(tmp_path, commented(recipe, heading="", include="important")) == recipe
    )


def test_what_keys_mean_stands_beside_the_first_source(tmp_path):
    plain = new_recipe(tmp_path / "my.yaml").recipe.as_data()
    plain["ingest"]["sources"] = [
        {"path": path, "name": f"n {path}", "text": "  # b"} for path in ("x", "y # z")
    ]
    recipe = Recipe.from_dict(plain)
    text = commented(recipe, heading="", include="important")
    assert text.count("of the source") == 1
    assert reload(tmp_path, text) == recipe
