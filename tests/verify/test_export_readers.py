import pytest

from exported_runs import SEQUENCES, TOKENS, breaches, change_json, folder_of


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda shard: shard.update(samples=3), "shard.00000.mds has 12 samples, index.json says 3"),
        (lambda shard: shard["raw_data"].update(bytes=9), "bytes, index.json says 9"),
        (lambda shard: shard["raw_data"].update(basename="shard.00001.mds"), "names shard.00001.mds in the place of"),
        (lambda shard: shard.update(size_limit=1), "has size_limit 8000000, index.json says 1"),
        (lambda shard: shard.pop("zip_data"), "zip_data"),
    ],
)
def test_an_index_of_mds_that_lies(run, change, problem):
    change_json(folder_of(run, "mds") / "index.json", lambda index: change(index["shards"][0]))
    (wrong,) = breaches(run)["mds rows"]
    assert wrong.startswith("mds is not as it should be from row 0 on: ")
    assert problem in wrong


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 part-00000\n", f"part-00000.bin holds {SEQUENCES * (TOKENS + 1):,} tokens, blend.txt says 1"),
        ("6156 part-00001\n", "blend.txt names part-00001.bin in the place of part-00000.bin"),
        ("", "blend.txt names 0 files, there are 1"),
    ],
)
def test_a_blend_that_lies(run, text, problem):
    (folder_of(run, "megatron") / "blend.txt").write_text(text)
    assert breaches(run) == {"megatron rows": [f"megatron is not as it should be from row 0 on: {problem}"]}


def test_megatron_documents_cut_off(run):
    path = folder_of(run, "megatron") / "part-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    assert "bytes, its index names" in breaches(run)["megatron rows"][0]


def test_what_load_from_disk_reads_must_be_what_was_written(run):
    folder = folder_of(run, "arrow")
    change_json(folder / "dataset_info.json", lambda info: info["features"]["length"].update(dtype="int64"))
    assert "has other columns than dataset_info.json says" in breaches(run)["arrow rows"][0]
    change_json(folder / "state.json", lambda state: state["_data_files"].append(state["_data_files"][0]))
    assert "state.json names 2 files, there are 1" in breaches(run)["arrow rows"][0]
