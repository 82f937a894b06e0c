"""The card of an export, read back as a hub would read it."""

import re
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nextlong.export.card import CardSource, Facts, Split, card, front_matter
from nextlong.export.formats.base import format_of
from nextlong.schemas import Layout

FACTS = Facts(
    name="My long texts",
    format=format_of("parquet"),
    splits=(
        Split("train", "train/*.parquet", 90, 90, 800, 92_160, 184_320),
        Split("validation", "validation/*.parquet", 10, 10, 95, 10_240, 20_480),
    ),
    room=1024,
    methods={"nextlong": Layout.EXTENDED},
    target_tokens=[1024],
    tokenizer="meta-llama/Meta-Llama-3-8B",
    vocabulary=128_256,
    eos=None,
    sources=(
        CardSource("wiki", "wiki/*.jsonl", "CC-BY-SA-4.0"),
        CardSource("books", "s3://key:secret@host/b", "CC-BY-SA-4.0"),
    ),
    recipes=["run_dir: x\ningest:\n  sources:\n  - path: s3://key:secret@host/b\n"],
    version="0.3.0",
    statistics={"uses of a chunk": "1.20 on average, 4 at most"},
)


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
        "tags": ["long-context", "pretraining", "synthetic", "nextlong", "method:nextlong"],
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


@pytest.mark.parametrize(
    ("licences", "told"),
    [
        (("MIT", "mit"), {"license": "mit"}),
        (("ODC-By-1.0", "odc-by"), {"license": "other", "license_name": "several"}),
        (("ODC-By-1.0", "ODC-By-1.0"), {"license": "odc-by"}),
        (("GPL-3.0-only", "GPL-3.0-only"), {"license": "gpl-3.0"}),
        (("Our own terms", "Our own terms"), {"license": "other", "license_name": "our-own-terms"}),
        (("MIT", "Apache-2.0"), {"license": "other", "license_name": "several"}),
        (("MIT", ""), {"license": "other", "license_name": "several"}),
        (("", ""), {}),
    ],
)
def test_a_licence_is_told_only_where_all_sources_agree(licences, told):
    sources = [replace(source, licence=licence) for source, licence in zip(FACTS.sources, licences, strict=True)]
    matter, page = parsed(replace(FACTS, sources=sources))
    assert {key: value for key, value in matter.items() if key.startswith("license")} == told
    for licence in licences:
        assert f"| {licence or 'not given'} |" in page


@pytest.mark.parametrize(
    ("rows", "category"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**6, "1M<n<10M"), (10**12, "n>1T")],
)
def test_size_categories(rows, category):
    facts = replace(FACTS, splits=(replace(FACTS.splits[0], rows=rows),))
    assert parsed(facts)[0]["size_categories"] == [category]


@given(name=st.text(min_size=1), path=st.text(min_size=1))
def test_any_name_survives(name, path):
    facts = replace(FACTS, name=name, splits=(replace(FACTS.splits[0], files=path),))
    text = card(facts)
    end = text.index("\n---\n", 3)
    matter = yaml.safe_load(text[4 : end + 1])
    assert matter["pretty_name"] == name
    assert matter["configs"][0]["data_files"][0]["path"] == path


def test_passwords_in_urls_are_left_out():
    text = card(FACTS)
    assert "secret" not in text
    assert "s3://host/b" in text


def test_tables_hold_together_whatever_stands_in_them():
    odd = replace(FACTS, sources=(CardSource("a | b\nc", "x`y", ""),))
    row = next(line for line in card(odd).splitlines() if line.startswith("| a"))
    assert row == "| a \\| b c | `` x`y `` | not given |"


def test_a_recipe_with_fences_stays_in_its_block():
    odd = replace(FACTS, recipes=["separator: '```'\n"])
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
        ("megatron", "train/tokens", "IndexedDataset(f'{folder}/train/tokens')"),
        ("torchtitan", "*.parquet", "load_dataset(folder, split='train')"),
        (
            "olmo",
            "train/",
            "glob(f'{folder}/train' + '/*.npy')), sequence_length=1024, vocab_size=128256, pad_token_id=128001",
        ),
    ],
)
def test_each_format_says_how_to_load_it(form, files, needle):
    facts = replace(FACTS, eos=128_001, format=format_of(form), splits=(replace(FACTS.splits[0], files=files),))
    matter, page = parsed(facts)
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert needle in code
    compile(code, "card", "exec")
    assert ("configs" in matter) == (form in ("parquet", "jsonl", "torchtitan"))


def test_other_methods_are_not_told_as_hard_negatives():
    page = parsed(replace(FACTS, methods={"standard": Layout.CONCATENATED}))[1]
    assert "look-alikes" not in page
    assert "by the method `standard`" in page


def test_a_mix_of_methods_names_each():
    matter, page = parsed(replace(FACTS, methods={"nextlong": Layout.EXTENDED, "iclm": Layout.CONCATENATED}))
    assert matter["tags"][-2:] == ["method:nextlong", "method:iclm"]
    assert "Those of `nextlong` are one short document cut into chunks" in page
    assert "Those of `iclm` are made of whole short documents." in page


def test_each_split_is_counted():
    page = parsed(FACTS)[1]
    assert (
        "100 sequences of 1,024 tokens (102,400 in all), tokenized with `meta-llama/Meta-Llama-3-8B` of 128,256" in page
    )
    assert "| train | `train/*.parquet` | 90 | 90 | 800 | 92,160 | 100.0 % | 0.2 MB |" in page
    assert "| validation | `validation/*.parquet` | 10 | 10 | 95 | 10,240 | 100.0 % | 0.0 MB |" in page


def test_a_card_says_how_far_rows_are_filled():
    page = parsed(replace(FACTS, room=1536))[1]
    assert "A row has room for 1,536 tokens." in page
    assert "| 92,160 | 66.6 % | 0.2 MB |" in page


def test_a_card_of_padded_documents_says_what_counts_padding():
    padded = format_of("parquet", {"pad_documents_to": 16})
    page = parsed(replace(FACTS, format=padded))[1]
    assert (
        "A row has room for 1,024 tokens, and for the padding of its documents besides; padding is not counted" in page
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
    page = parsed(replace(FACTS, left_out=(25, 125)))[1]
    assert "25 of 125 sequences are in neither split, because they share a chunk with validation." in page


@pytest.mark.heavy
def test_the_hubs_own_class_reads_the_same_front_matter():
    from huggingface_hub import DatasetCard

    for facts in (FACTS, replace(FACTS, format=format_of("mds"))):
        hub_card = DatasetCard(card(facts))
        assert hub_card.data.to_dict() == front_matter(facts)
        assert hub_card.text == parsed(facts)[1]
