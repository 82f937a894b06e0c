"""The words of refused recipes: where, which value, and what to do."""

import contextlib

import pytest

from nextlong.errors import RecipeError
from nextlong.recipe import Recipe

PLAIN = {
    "run_dir": "r",
    "ingest": {"sources": [{"path": "a.jsonl"}]},
    "tokenizer": {"train": 300},
}


def refusal(*overrides):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(PLAIN, overrides=overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workers=0", "recipe: workers must be greater than 0 or 'auto' (it is 0)"),
        ("workers=many", "recipe: workers must be an integer or 'auto' (it is 'many')"),
        ("seed=x", "recipe: seed must be an integer (it is 'x')"),
        ("run_dir=", "recipe: run_dir must be a string (it is None)"),
        ("run_dir=''", "recipe: run_dir must have at least 1 character (it is '')"),
        (
            "encoder={model: openai:m, openai: {base_url: 'localhost:8000'}}",
            "recipe: encoder.openai.base_url: does not start with http:// or https://; "
            "give the whole URL (it is 'localhost:8000')",
        ),
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
        (
            "chunk.max_char=3",
            "unknown key 'chunk.max_char'; did you mean 'chunk.max_chars'?",
        ),
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
            "unknown key 'encoder.lsa.dimension'; did you mean 'encoder.lsa.dimensions'?",
        ),
        (
            "ingest.sources.0.pth=b",
            "unknown key 'ingest.sources[0].pth'; did you mean 'ingest.sources[0].path'?",
        ),
        (
            "decontaminate.file=a",
            "unknown key 'decontaminate.file'; did you mean 'decontaminate.files'?",
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
        "recipe: unknown key 'chunk.max_char'; did you mean 'chunk.max_chars'?",
    ]


def test_missing_sections():
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict({"run_dir": "r"}, origin="my.yaml")
    assert str(caught.value).splitlines() == [
        "my.yaml: ingest is missing; `nextlong init` writes a recipe with every key",
        "my.yaml: tokenizer is missing; `nextlong init` writes a recipe with every key",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "compose.fit",
            "--set 'compose.fit': it is not KEY=VALUE; write --set compose.target_tokens=65536",
        ),
        ("=3", "--set '=3': it is not KEY=VALUE"),
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
            "--set 'ingest.sources.1.path=b': ingest.sources is a list of 1, and '1' is not in it",
        ),
        (
            "ingest.sources.x=b",
            "--set 'ingest.sources.x=b': ingest.sources is a list of 1, and 'x' is not in it",
        ),
        ("a..b=3", "recipe: unknown key 'a'"),
    ],
)
def test_an_override_that_is_none(override, message):
    assert refusal(override).startswith(message)


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
        ("a: \x00\n", r"r\.yaml: it is not YAML: unacceptable character"),
        ("run_dir: 2024-13-45\n", r"r\.yaml: it is not YAML: month must be in 1\.\.12"),
        (
            "- a\n",
            r"r\.yaml: it is a YAML list, not a mapping of keys; `nextlong init` writes a recipe",
        ),
        ("just text", r"r\.yaml: it is a YAML text, not a mapping of keys"),
        ("", r"r\.yaml: it is empty; `nextlong init` writes a recipe"),
        ("1: 2\n", r"r\.yaml: 1 is not a key; keys are strings"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    with contextlib.chdir(tmp_path), pytest.raises(RecipeError, match=message):
        Recipe.load("r.yaml")
