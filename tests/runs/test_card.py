"""What a card tells of a recipe: everything but the machine that it ran on; and the page, read back as a hub would read it."""

import json
import re
from importlib.metadata import PackageNotFoundError, version

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nextlong.engine import runner
from nextlong.export.formats.base import format_of
from nextlong.methods.base import NEXTLONG, Method
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe
from nextlong.runs import export as runs_export
from nextlong.runs.card import Laid, Split, card, front_matter
from nextlong.runs.public_recipe import public_recipe
from nextlong.schemas import Layout
from nextlong.text import public_name

PLAIN = {
    "run_dir": "/home/ann/runs/my",
    "ingest": {
        "sources": [
            {"path": "/data/private/wiki/*.jsonl.zst", "name": "wiki"},
            {"path": "s3://secret-bucket/books/"},
            {"path": "hf://datasets/allenai/c4/en/*.gz"},
        ],
        "exclude": "/home/ann/lists/marks.jsonl",
    },
    "decontaminate": {"files": ["/home/ann/eval/mmlu.csv"]},
    "encoder": {
        "model": "sentence-transformers:/home/ann/models/bge",
        "openai": {"base_url": "http://gpu7.corp.example/v1"},
    },
    "tokenizer": {"source": "/home/ann/tok/gpt2/tokenizer.json"},
    "quest": {"queries": "/home/ann/models/doc2query"},
    "export": {"push": "s3://secret-bucket/out/long-128k/"},
}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/wiki/a.jsonl", "a.jsonl"),
        ("~/wiki/", "wiki"),
        ("a.jsonl", "a.jsonl"),
        ("/data/wiki?/part-?.jsonl", "part-?.jsonl"),
        ("s3://key:secret@bucket/b/*.parquet", "*.parquet"),
        ("https://host.example/a.jsonl?signature=1/2", "a.jsonl"),
        ("hf://datasets/allenai/c4/en/*.gz", "hf://datasets/allenai/c4/en/*.gz"),
    ],
)
def test_of_a_path_or_url_the_last_name_is_told(path, name):
    assert public_name(path) == name


def test_a_recipe_is_told_without_the_paths_in_it():
    recipe = Recipe.from_dict(PLAIN)
    told = yaml.safe_load(public_recipe(recipe))
    changed = {
        f"{section}.{key}": value
        for section, before in recipe.model_dump(mode="json").items()
        if isinstance(before, dict)
        for key, value in told[section].items()
        if value != before[key]
    }
    assert told["run_dir"] == "my"
    assert [source["path"] for source in told["ingest"]["sources"]] == [
        "*.jsonl.zst",
        "books",
        "hf://datasets/allenai/c4/en/*.gz",
    ]
    assert changed.pop("ingest.sources") == told["ingest"]["sources"]
    assert changed.pop("encoder.openai")["base_url"] == "(not published)"
    assert changed == {
        "ingest.exclude": "marks.jsonl",
        "decontaminate.files": ["mmlu.csv"],
        "encoder.model": "sentence-transformers:bge",
        "tokenizer.source": "tokenizer.json",
        "quest.queries": "doc2query",
        "export.push": "long-128k",
    }


def test_names_on_the_hub_stay():
    plain = PLAIN | {
        "tokenizer": {"source": "meta-llama/Meta-Llama-3-8B"},
        "encoder": {"model": "openai:bge-m3"},
    }
    told = yaml.safe_load(public_recipe(Recipe.from_dict(plain)))
    assert told["tokenizer"]["source"] == "meta-llama/Meta-Llama-3-8B"
    assert told["encoder"]["model"] == "openai:bge-m3"
    assert told["encoder"]["openai"]["base_url"] == "https://api.openai.com/v1"


def test_a_model_that_lies_here_is_told_by_its_last_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "private" / "bge").mkdir(parents=True)
    recipe = Recipe.from_dict(
        PLAIN | {"encoder": {"model": "sentence-transformers:private/bge"}}
    )
    assert (
        yaml.safe_load(public_recipe(recipe))["encoder"]["model"]
        == "sentence-transformers:bge"
    )


def test_a_run_of_a_copied_source_tree_finishes_and_says_so(
    recipe_for, tmp_path, monkeypatch
):
    def found(package):
        if package == "nextlong":  # run from its folder, never installed
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(runner.metadata, "version", found)
    monkeypatch.setattr(runner, "_versions", runner._versions.__wrapped__)
    options = (
        "executor=serial",
        f"export.push={tmp_path / 'published'}",
        "compose.method=standard",
        "export.formats=jsonl",
    )
    written = runs_export.run(recipe_for(tmp_path / "run", *options))
    assert all(
        "nextlong" not in step.manifest["versions"] for step in written.done.values()
    )
    (record,) = (tmp_path / "published").rglob("manifest.json")
    assert (
        json.loads(record.read_text("utf-8"))["nextlong"]
        == "not installed as a package"
    )
    assert "not installed as a package" in (record.parent / "README.md").read_text(
        "utf-8"
    )


SPLITS = (
    Split("train", "train/*.parquet", 90, 90, 800, 92_160, 184_320),
    Split("validation", "validation/*.parquet", 10, 10, 95, 10_240, 20_480),
)
FACTS = {
    "name": "My long texts",
    "laid": [Laid(format_of("parquet"), SPLITS, 1024)],
    "splits": SPLITS,
    "left_out": (0, 0),
    "methods": {"nextlong": "hard"},
    "target_tokens": [1024],
    "tokenizer": "meta-llama/Meta-Llama-3-8B",
    "vocabulary": 128_256,
    "citations": [NEXTLONG],
    "eos": None,
    "sources": [
        ("wiki", "wiki/*.jsonl", "CC-BY-SA-4.0"),
        ("books", "s3://key:secret@host/b", "CC-BY-SA-4.0"),
    ],
    "recipes": ["run_dir: x\ningest:\n  sources:\n  - path: s3://key:secret@host/b\n"],
    "runs": [],
    "version": "0.3.0",
    "statistics": {"uses of a chunk": "1.20 on average, 4 at most"},
    "warnings": [],
}


def laid(form="parquet", room=1024, keys=(), **changes):
    """Return the facts about one format; `changes` are those of the first split."""
    splits = (SPLITS[0]._replace(**changes), *(() if changes else SPLITS[1:]))
    return FACTS | {
        "laid": [Laid(format_of(form, dict(keys)), splits, room)],
        "splits": splits,
    }


def parsed(facts):
    """Return the front matter and the page below it."""
    _, matter, page = re.split(r"^---\n", card(facts), maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(matter), page


def test_front_matter_has_the_keys_of_the_hub():
    matter, _ = parsed(FACTS)
    assert matter == {
        "pretty_name": "My long texts",
        "license": "cc-by-sa-4.0",
        "task_categories": ["text-generation"],
        "size_categories": ["n<1K"],
        "tags": [
            "long-context",
            "pretraining",
            "synthetic",
            "nextlong",
            "method:nextlong",
        ],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": "train", "path": "train/*.parquet"},
                    {"split": "validation", "path": "validation/*.parquet"},
                ],
            }
        ],
    }


def test_a_card_is_spelled_as_the_documentation_is():
    _, page = parsed(FACTS)
    assert "synthesized" in page
    assert "license, as given" in page
    assert not re.search("synthesis(e|ing)|licence", page)


@pytest.mark.parametrize(
    ("licences", "told"),
    [
        (("MIT", "mit"), {"license": "mit"}),
        (("ODC-By-1.0", "odc-by"), {"license": "other", "license_name": "several"}),
        (("ODC-By-1.0", "ODC-By-1.0"), {"license": "odc-by"}),
        (("GPL-3.0-only", "GPL-3.0-only"), {"license": "gpl-3.0"}),
        (
            ("Our own terms", "Our own terms"),
            {"license": "other", "license_name": "our-own-terms"},
        ),
        (("MIT", "Apache-2.0"), {"license": "other", "license_name": "several"}),
        (("MIT", ""), {"license": "other", "license_name": "several"}),
        (("", ""), {}),
    ],
)
def test_a_licence_is_told_only_where_all_sources_agree(licences, told):
    sources = [
        (name, path, licence)
        for (name, path, _), licence in zip(FACTS["sources"], licences, strict=True)
    ]
    matter, page = parsed(FACTS | {"sources": sources})
    assert {
        key: value for key, value in matter.items() if key.startswith("license")
    } == told
    for licence in licences:
        assert f"| {licence or 'not given'} |" in page


@pytest.mark.parametrize(
    ("rows", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (99_999, "10K<n<100K"),
        (10**6, "1M<n<10M"),
        (10**12, "n>1T"),
    ],
)
def test_size_categories(rows, category):
    assert parsed(laid(rows=rows))[0]["size_categories"] == [category]


@given(name=st.text(min_size=1), path=st.text(min_size=1))
def test_any_name_survives(name, path):
    text = card(laid(files=path) | {"name": name})
    end = text.index("\n---\n", 3)
    matter = yaml.safe_load(text[4 : end + 1])
    assert matter["pretty_name"] == name
    assert matter["configs"][0]["data_files"][0]["path"] == path


def test_passwords_in_urls_are_left_out():
    text = card(FACTS)
    assert "secret" not in text
    assert "s3://host/b" in text


def test_tables_hold_together_whatever_stands_in_them():
    odd = FACTS | {"sources": [("a | b\nc", "x`y", "")]}
    row = next(line for line in card(odd).splitlines() if line.startswith("| a"))
    assert row == "| a \\| b c | `` x`y `` | not given |"


def test_a_recipe_with_fences_stays_in_its_block():
    odd = FACTS | {"recipes": ["separator: '```'\n"]}
    assert "````yaml\nseparator: '```'\n````" in card(odd)


@pytest.mark.parametrize(
    ("form", "files", "needle"),
    [
        ("parquet", "*.parquet", "load_dataset(folder, split='train')"),
        ("jsonl", "*.jsonl", "load_dataset(folder, split='train')"),
        ("arrow", "train/", "load_from_disk(f'{folder}/train')"),
        ("arrow", ".", "load_from_disk(folder)"),
        ("mds", "train/", "StreamingDataset(local=f'{folder}/train'"),
        ("mds", ".", "StreamingDataset(local=folder, "),
        ("megatron", "train/part-*", "glob(f'{folder}/train/part-*' + '.bin'))"),
        ("torchtitan", "*.parquet", "load_dataset(folder, split='train')"),
        (
            "olmo",
            "train/",
            "glob(f'{folder}/train' + '/*.npy')), sequence_length=1024, vocab_size=128256, pad_token_id=128001",
        ),
    ],
)
def test_each_format_says_how_to_load_it(form, files, needle):
    matter, page = parsed(laid(form, files=files) | {"eos": 128_001})
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert needle in code
    compile(code, "card", "exec")
    assert ("configs" in matter) == (form in ("parquet", "jsonl", "torchtitan"))
    assert "docs/" not in page  # the reader of a card has no checkout


def test_other_methods_are_not_told_as_hard_negatives():
    page = parsed(FACTS | {"methods": {"standard": Layout.CONCATENATED}})[1]
    assert "look-alikes" not in page
    assert "by the method `standard`" in page


def test_a_mix_of_methods_names_each():
    matter, page = parsed(
        FACTS | {"methods": {"nextlong": "hard", "iclm": Layout.CONCATENATED}}
    )
    assert matter["tags"][-2:] == ["method:nextlong", "method:iclm"]
    assert "Those of `nextlong` are one short document cut into chunks" in page
    assert "Those of `iclm` are made of whole short documents." in page


def test_each_split_is_counted():
    page = parsed(FACTS)[1]
    assert (
        "100 sequences of 1,024 tokens (102,400 in all), tokenized with `meta-llama/Meta-Llama-3-8B` (128,256"
        in page
    )
    assert (
        "| train | `train/*.parquet` | 90 | 90 | 800 | 92,160 | 100.0 % | 0.2 MB |"
        in page
    )
    assert (
        "| validation | `validation/*.parquet` | 10 | 10 | 95 | 10,240 | 100.0 % | 0.0 MB |"
        in page
    )


def test_a_card_says_how_far_rows_are_filled():
    page = parsed(laid(room=1536))[1]
    assert "A row has room for 1,536 tokens." in page
    assert "| 92,160 | 66.6 % | 0.2 MB |" in page


def test_a_card_of_padded_documents_says_what_counts_padding():
    page = parsed(laid(keys={"pad_documents_to": 16}))[1]
    assert (
        "A row has room for 1,024 tokens, plus the padding of its documents, which is not counted"
        in page
    )
    meanings = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, flags=re.MULTILINE))
    assert meanings["seq_lengths"].endswith("without the padding")
    assert meanings["length"].endswith("with the padding")
    assert "sum to the length of the row" in meanings["seq_lengths_padded"]
    assert "no padding" in meanings["spans"]
    assert "tile" not in meanings["spans"]
    plain = parsed(FACTS)[1]
    assert "they sum to its length" in plain
    assert "padding" not in plain


def test_sequences_left_out_of_both_splits_are_told():
    assert "are in neither split" not in parsed(FACTS)[1]
    page = parsed(FACTS | {"left_out": (25, 125)})[1]
    assert (
        "25 of 125 sequences are in neither split, because they share a chunk with validation."
        in page
    )


@pytest.mark.heavy
def test_the_hubs_own_class_reads_the_same_front_matter():
    from huggingface_hub import DatasetCard

    for facts in (FACTS, laid("mds")):
        hub_card = DatasetCard(card(facts))
        assert hub_card.data.to_dict() == front_matter(facts)
        assert hub_card.text == parsed(facts)[1]


@pytest.mark.parametrize(
    ("methods", "is_hard"),
    [
        ({"nextlong": "hard"}, True),
        # Of random negatives, or of a method of another package.
        ({"other": "extended"}, False),
        ({"standard": "concatenated"}, False),
    ],
)
def test_hard_negatives_are_claimed_of_what_a_search_found(methods, is_hard):
    page = parsed(FACTS | {"methods": methods, "citations": []})[1]
    assert ("hard negatives" in page) is is_hard
    # And no paper is cited that is not that of the method.
    assert "## Cite" not in page
    assert "2501.12766" not in page


def test_a_card_cites_the_paper_of_its_method():
    page = parsed(FACTS)[1]
    assert f"see {NEXTLONG.title} (arXiv {NEXTLONG.arxiv})" in page
    assert NEXTLONG.bibtex() in page
    for name in ("nextlong", "standard", "quest"):
        citation = METHODS.load(name, Method).citation
        assert (citation == NEXTLONG) is (name == "nextlong")
