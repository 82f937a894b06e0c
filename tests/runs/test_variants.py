from types import SimpleNamespace

import pytest

from nextlong.engine import store
from nextlong.runs.variants import (
    SEARCH_INDEX,
    VARIANTS_META,
    bytes_of,
    find_pages,
    find_search_index,
    list_variants,
    manifest_of,
)


def test_a_variant_alone_frees_all_that_its_steps_hold(shared_run):
    (variant,) = list_variants(shared_run)
    assert variant.is_current
    assert variant.differs == {}
    assert (variant.sequences, variant.tokens_each) == (12, 2048)
    steps = [
        folder for folder in shared_run.iterdir() if (folder / store.MANIFEST).is_file()
    ]
    assert variant.bytes == variant.alone_bytes == sum(map(bytes_of, steps))
    assert set(variant.exports) == {"parquet", "jsonl"}


def test_folders_and_files_weigh_what_is_in_them(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "two").write_bytes(b"123")
    assert bytes_of(tmp_path / "a") == 8
    assert bytes_of(tmp_path / "a" / "one") == 5


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_step_without_a_manifest_is_none(tmp_path, text):
    if text is not None:
        (tmp_path / store.MANIFEST).write_text(text)
    assert manifest_of(tmp_path) == {}


def test_pages_are_found_by_the_variants_that_their_heads_name(tmp_path):
    pages = {
        "report-a.html": "a",
        "report-a@b.html": "a b",
        "report-a@variants@b.html": "a variants b",
        "report-a=1@b.html": "a=1 b",
    }
    for page, names in (pages | {"report.html": "b"}).items():
        (tmp_path / page).write_text(
            f'<head><meta name="{VARIANTS_META}" content="{names}"></head>'
        )

    def found(*names):
        return {
            waste.path.name
            for waste in find_pages(
                tmp_path, [SimpleNamespace(name=name) for name in names]
            )
        }

    assert found("b") == {
        "report-a@b.html",
        "report-a@variants@b.html",
        "report-a=1@b.html",
    }
    assert found("a=1", "other") == {"report-a=1@b.html"}
    assert found() == set()
    (tmp_path / "report-a=1@b.html").write_text(
        "<head></head>"
    )  # which does not say what it shows
    assert found("other") == {"report-a=1@b.html"}


def test_the_index_of_the_viewer_is_found_whole(tmp_path):
    assert find_search_index(tmp_path) == []
    (tmp_path / SEARCH_INDEX / "of-one").mkdir(parents=True)
    (tmp_path / SEARCH_INDEX / "of-one" / "words.arrow").write_bytes(b"12345")
    (waste,) = find_search_index(tmp_path)
    assert (waste.path, waste.bytes) == (tmp_path / SEARCH_INDEX, 5)
