import json

import pytest

from nextlong.errors import RunError
from nextlong.verify.step import locate, open_step

ENTRY = {"bytes": 1, "xxh3": "0"}


def manifest(*names):
    parts = [{"files": dict.fromkeys(names, ENTRY)}]
    return {"fingerprint": "f", "inputs": {}, "parts": parts}


def test_files_stand_in_the_order_of_their_numbers(tmp_path):
    names = ["part-2.10.npy", "part-10.1.npy", "part-2.9.npy", "part-1.json"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest(*names)))
    step = open_step("a", tmp_path)
    assert step.damage == ""
    assert [path.name for path in step.files(".npy")] == ["part-2.9.npy", "part-2.10.npy", "part-10.1.npy"]


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "is not the manifest of a step"),
        ('{"fingerprint": "f", "inputs": {}, "parts": [{}]}', "is not the manifest of a step"),
    ],
)
def test_a_damaged_manifest_is_told_and_no_error(tmp_path, text, damage):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    step = open_step("a", tmp_path)
    assert step.damage.startswith(damage)
    assert step.files("") == []


def test_a_run_is_its_current_variant_and_a_name_another(tmp_path):
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "b.json").write_text("{}")
    (tmp_path / "run.json").write_text('{"variant": "a"}')
    assert locate(tmp_path) == (tmp_path, tmp_path / "variants" / "a.json")
    assert locate(tmp_path.with_name(f"{tmp_path.name}@b")) == (tmp_path, tmp_path / "variants" / "b.json")
    odd = tmp_path / "a@c"  # a folder of that name, no variant
    assert locate(odd) == (odd, odd / "run.json")


def test_a_damaged_record_is_the_users_to_mend(tmp_path):
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RunError, match=r"run\.json is not the record of a run .*`nextlong run` rewrites it"):
        locate(tmp_path)
