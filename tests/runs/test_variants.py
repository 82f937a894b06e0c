import pytest

from nextlong.engine import store
from nextlong.runs.variants import bytes_of, list_variants, manifest_of


def test_a_variant_alone_frees_all_that_its_steps_hold(shared_run):
    (variant,) = list_variants(shared_run)
    assert variant.is_current
    assert variant.differs == {}
    assert (variant.sequences, variant.tokens_each) == (12, 2048)
    steps = [folder for folder in shared_run.iterdir() if (folder / store.MANIFEST).is_file()]
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
