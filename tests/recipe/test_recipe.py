"""Recipes: what is refused and in which words, what `--set` does, and that dumps and commented YAML read back."""

import contextlib

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
from nextlong.recipe.text import preset_path
from nextlong.retrieval.encoders.lsa import LsaOptions

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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workers=0", "recipe: workers must be greater than 0 or 'auto' (it is 0)"),
        ("workers=many", "recipe: workers must be an integer or 'auto' (it is 'many')"),
        ("seed=x", "recipe: seed must be an integer (it is 'x')"),
        ("run_dir=", "recipe: run_dir must be a string (it is None)"),
        ("run_dir=''", "recipe: run_dir must have at least 1 character (it is '')"),
        ("ingest=null", "recipe: ingest must be a section of keys (it is None)"),
        (
            "ingest.sources=a",
            "recipe: ingest.sources must be a list (it is 'a'); a list needs brackets: --set 'ingest.sources=[{path: a}]'",
        ),
        (
            "decontaminate.files=a,b",
            "recipe: decontaminate.files must be a list (it is 'a,b'); a list needs brackets: "
            "--set 'decontaminate.files=[a,b]'",
        ),
        (
            "export.formats=mds,jsonl",
            "recipe: export.formats: a list needs brackets: --set 'export.formats=[mds,jsonl]' (it is 'mds,jsonl')",
        ),
        (
            "ingest.sources=[a]",
            "recipe: ingest.sources[0] must be a section of keys (it is 'a')",
        ),
        (
            "ingest.sources=[]",
            "recipe: ingest: sources is empty; name at least one file, folder or URL",
        ),
        (
            "decontaminate=[a, a]",
            "recipe: decontaminate.files: names 'a' twice; name it once",
        ),
        (
            "decontaminate=['']",
            "recipe: decontaminate.files[0] must have at least 1 character (it is '')",
        ),
        (
            "decontaminate.ngram=0",
            "recipe: decontaminate.ngram must be greater than 0 (it is 0)",
        ),
        (
            "decontaminate=3",
            "recipe: decontaminate must be a section of keys (it is 3)",
        ),
        (
            "ingest.sources.0.weight=0",
            "recipe: ingest.sources[0].weight must be greater than 0 (it is 0)",
        ),
        (
            "ingest.shard_mb=.inf",
            "recipe: ingest.shard_mb must be a finite number or 'auto' (it is inf)",
        ),
        (
            "ingest.max_reject_share=2",
            "recipe: ingest.max_reject_share must be less than or equal to 1 (it is 2)",
        ),
        (
            "chunk.length=words",
            "recipe: chunk.length must be 'slice' or 'paper' (it is 'words')",
        ),
        (
            "compose.fit=exakt",
            "recipe: compose.fit must be 'exact' or 'paper' (it is 'exakt')",
        ),
        (
            "compose.position=1",
            "recipe: compose.position must be 'head', 'tail' or 'random' (it is 1)",
        ),
        (
            "compose.sequences=some",
            "recipe: compose.sequences must be an integer or 'all' (it is 'some')",
        ),
        (
            "compose.draft_factor=.inf",
            "recipe: compose.draft_factor must be a finite number (it is inf)",
        ),
        (
            "compose.target_tokens=10000000000",
            "recipe: compose.target_tokens must be less than 2147483648 (it is 10000000000)",
        ),
        ("compose.method=[knn]", "recipe: compose.method must be a string"),
        ("encoder.model=[lsa]", "recipe: encoder.model must be a string"),
        ("encoder=3", "recipe: encoder must be a section of keys (it is 3)"),
        (
            "encoder.model='openai:'",
            "recipe: encoder.model: must be 'lsa', 'openai:<model>', ",
        ),
        (
            "encoder.model=bert",
            "recipe: encoder.model: must be 'lsa', 'openai:<model>', ",
        ),
        (
            "encoder.model=lsa:x",
            "recipe: encoder.model: must be 'lsa', 'openai:<model>', ",
        ),
        (
            "export.formats=[]",
            "recipe: export.formats: must name at least one format, and none of them twice",
        ),
        (
            "export.formats=[jsonl, jsonl]",
            "recipe: export.formats: must name at least one format, and none of them twice",
        ),
        (
            "export.formats=[csv]",
            "recipe: export.formats: unknown format 'csv'; available: arrow, axolotl, jsonl, mds, ",
        ),
        (
            "export.split_seed=3",
            "recipe: export: split_seed is 3 but validation is 0, so there is no split; remove ",
        ),
        (
            "export.megatron_eod=x",
            "recipe: export: megatron_eod is x but parquet does not support it; remove it, or add ",
        ),
        (
            "tokenizer={}",
            "recipe: tokenizer: set either source (a tokenizer.json or a hub name) or train",
        ),
        (
            "tokenizer.source=gpt2",
            "recipe: tokenizer: set either source (a tokenizer.json or a hub name) or train",
        ),
        (
            "chunk.max_chars=15",
            "recipe: chunk.max_chars must be greater than or equal to 16 ",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_it_must_be(override, message):
    assert refusal(override).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("chunk.max_char=3", "unknown key 'chunk.max_char'; did you mean 'max_chars'?"),
        (
            "target_tokens=8192",
            "unknown key 'target_tokens'; did you mean 'compose.target_tokens'?",
        ),
        (
            "target_token=8192",
            "unknown key 'target_token'; did you mean 'compose.target_tokens'?",
        ),
        (
            "mine.max_document=3",
            "unknown key 'mine.max_document'; did you mean 'ingest.sources[0].max_documents'?",
        ),
        (
            "max_chars=3",
            "unknown key 'max_chars'; did you mean 'ingest.sources[0].max_chars' or 'chunk.max_chars'?",
        ),
        (
            "compose.iclm.max_similarity=1",
            "unknown key 'compose.iclm'; did you mean 'iclm'?",
        ),
        ("compse.fit=paper", "unknown key 'compse'; did you mean 'compose'?"),
        (
            "encoder.lsa.dimension=4",
            "unknown key 'encoder.lsa.dimension'; did you mean 'dimensions'?",
        ),
        (
            "ingest.sources.0.pth=b",
            "unknown key 'ingest.sources[0].pth'; did you mean 'path'?",
        ),
        (
            "decontaminate.file=a",
            "unknown key 'decontaminate.file'; did you mean 'files'?",
        ),
        (
            "mine.xyz=1",
            "unknown key 'mine.xyz'; known here: candidates, max_similarity, near_duplicates, reorder_top, "
            "shortlist, shortlist_chunks",
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(override, message):
    assert refusal(override) == f"recipe: {message}"


def test_every_mistake_is_told_at_once():
    assert refusal("workers=0", "chunk.max_char=3", "seed=x").splitlines() == [
        "recipe: seed must be an integer (it is 'x')",
        "recipe: workers must be greater than 0 or 'auto' (it is 0)",
        "recipe: unknown key 'chunk.max_char'; did you mean 'max_chars'?",
    ]


def test_missing_sections():
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict({"run_dir": "r"}, origin="my.yaml")
    assert str(caught.value).splitlines() == [
        "my.yaml: ingest is missing; `nextlong init` writes a recipe with every key",
        "my.yaml: tokenizer is missing; `nextlong init` writes a recipe with every key",
    ]


def test_sources_need_names_of_their_own():
    twice = {"sources": [{"path": "a"}, {"path": "b", "name": "a"}]}
    assert "sources share the name 'a'; give each its own name" in refusal(ingest=twice)
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
            match="^recipe: compose.target_tokens=2 leaves no room for text beside tokenizer.bos and tokenizer.eos",
        ):
            Recipe.from_dict(plain)


def test_values_that_only_python_can_hold_are_refused_too(tmp_path):
    assert refusal(run_dir=tmp_path).startswith("recipe: run_dir must be a string")


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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "compose.fit",
            "--set 'compose.fit' is not KEY=VALUE; write --set compose.target_tokens=65536",
        ),
        ("=3", "--set '=3' is not KEY=VALUE"),
        (
            "compose.separator=[",
            "--set 'compose.separator=[': '[' is not a YAML value; quote it",
        ),
        (
            "run_dir=2024-13-45",
            "--set 'run_dir=2024-13-45': '2024-13-45' is not a YAML value; quote it",
        ),
        (
            "ingest.sources.1.path=b",
            "--set 'ingest.sources.1.path=b': ingest.sources is a list of 1; '1' is not in it",
        ),
        (
            "ingest.sources.x=b",
            "--set 'ingest.sources.x=b': ingest.sources is a list of 1; 'x' is not in it",
        ),
        ("a..b=3", "recipe: unknown key 'a'"),
    ],
)
def test_an_override_that_is_none(override, message):
    assert refusal(override).startswith(message)


# files


def test_load_names_file_key_and_value(tmp_path):
    with pytest.raises(
        RecipeError,
        match=r"r\.yaml: workers must be greater than 0 or 'auto' \(it is -1\)",
    ):
        load(
            tmp_path,
            "run_dir: r\nworkers: -1\ntokenizer: gpt2\ningest: {sources: [{path: a}]}\n",
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [\n", r"r\.yaml:2: not YAML: expected the node content"),
        ("run_dir: r\n\tseed: 1\n", r"r\.yaml:2: not YAML: found character '\\t'"),
        ("seed: 1\nseed: 2\n", r"r\.yaml:2: not YAML: duplicate key 'seed'"),
        (
            "compose: {fit: exact, fit: paper}\n",
            r"r\.yaml:1: not YAML: duplicate key 'fit'",
        ),
        ("a: \x00\n", r"r\.yaml is not YAML: unacceptable character"),
        ("run_dir: 2024-13-45\n", r"r\.yaml is not YAML: month must be in 1\.\.12"),
        (
            "- a\n",
            r"r\.yaml is a YAML list, not a mapping of keys; `nextlong init` writes a recipe",
        ),
        ("just text", r"r\.yaml is a YAML text, not a mapping of keys"),
        ("", r"r\.yaml is empty; `nextlong init` writes a recipe"),
        ("1: 2\n", r"r\.yaml: 1 is not a key; keys are strings"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path, text, message):
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(
        RecipeError,
        match=r"x\.yaml does not exist; `nextlong init .*x\.yaml` writes a commented recipe",
    ):
        Recipe.load(tmp_path / "x.yaml")
    with pytest.raises(
        RecipeError, match="cannot be read: Is a directory; use a recipe file"
    ):
        Recipe.load(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"b\.yaml is not UTF-8 text"):
        Recipe.load(tmp_path / "b.yaml")


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
    assert told.startswith(f"recipe: export: compression is {compression} but ")
    assert told.endswith(
        f"does not support it; remove it, or add a format that supports it: {takers}"
    )


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
    assert (
        told
        == "recipe: export.validation=0.1 cannot split compose.sequences=1; make more sequences"
    )


@pytest.mark.parametrize("formats", ["[megatron, torchtitan]", "[torchtitan, parquet]"])
def test_formats_that_want_sequences_of_two_lengths_are_refused_together(formats):
    told = refusal(f"export.formats={formats}")
    assert told.startswith(
        "recipe: export: these formats need sequences of different lengths ("
    )
    assert "torchtitan target_tokens + 1" in told
    assert "make a variant for each length in the same run_dir" in told


def test_a_format_whose_documents_must_end_wants_a_token_for_it():
    told = refusal("export.formats=olmo")
    assert told.startswith(
        "recipe: export.formats: olmo requires an EOS token at the end of every document, but tokenizer.eos is null"
    )
    same = ["tokenizer.eos=<|endoftext|>", "tokenizer.bos=<|endoftext|>"]
    with pytest.raises(RecipeError, match="tokenizer.bos and tokenizer.eos"):
        Recipe.from_dict(PLAIN, overrides=["export.formats=olmo", *same])
    asked = ["export.formats=olmo", "tokenizer.eos=<|endoftext|>"]
    assert Recipe.from_dict(PLAIN, overrides=asked).tokenizer.eos == "<|endoftext|>"


def test_a_shard_larger_than_its_format_can_count_is_refused():
    told = refusal("export.formats=prolong", "export.shard_mb=5000")
    assert (
        told
        == "recipe: export: shard_mb is 5000 but a prolong file holds at most 4000; lower it"
    )


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
        match=rf"run_dir={run_dir} is not a local folder: .* object stores do not support",
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
    lines = [
        line for line in commented(recipe, heading="A\n\nheading").splitlines() if line
    ]
    assert lines[:3] == ["# A", "#", "# heading"]
    keys = [line.lstrip(" -").partition(":")[0] for line in lines[3:]]
    of_methods = [
        key
        for name in ("iclm", "knn", "quest")
        for key in (name, *options_class(METHODS, name).model_fields)
    ]
    export = keys.index("export")
    # The options of every built-in encoder stand there, also of those that the recipe does not name.
    encoder, search = keys.index("encoder"), keys.index("search")
    assert set(keys[encoder + 1 : search]) >= {
        "model",
        *ENCODERS.built_in,
        "fit_chunks",
        "base_url",
        "revision",
    }
    said = [
        key
        for key in keys_of(recipe)
        if key not in {"model", "lsa", *LsaOptions.model_fields}
    ]
    assert [
        *keys[: encoder + 1],
        *keys[search : keys.index("iclm")],
        *keys[export:],
    ] == said
    assert set(of_methods) <= set(keys[keys.index("iclm") : export])
    assert [line for line in lines[3:] if "  # " not in line] == []


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
    "name", ["quickstart", "paper-64k", "paper-128k", "paper-512k"]
)
def test_every_preset_is_a_recipe(tmp_path, name):
    text = preset_path(name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert reload(tmp_path, text).run_dir == f"runs/{name}"


def test_a_preset_that_is_none():
    with pytest.raises(
        RecipeError,
        match="choose one of: paper-128k, paper-512k, paper-64k, quickstart",
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
    assert text.count("name of the source in reports") == 1
    assert reload(tmp_path, text) == recipe
