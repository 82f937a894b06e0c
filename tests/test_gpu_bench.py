"""What measures on a GPU runs here on a CPU, and a part that fails leaves the others."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "machine",
    "attention",
    "start_check",
    "training",
    "search",
    "encoder",
    "evaluation",
    "head",
    "experiment",
}


def measured(out, *options):
    """Run gpu.sh on this machine; return its results, and what it printed."""
    command = ["bash", "bench/gpu.sh", "--device", "cpu", "--tiny", "--out", str(out)]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    (path,) = out.glob("gpu-*.json")
    return json.loads(path.read_text()), done


@pytest.mark.heavy
def test_every_part_runs_on_a_cpu(tmp_path):
    results, done = measured(tmp_path)
    parts = results["parts"]
    assert parts.keys() == PARTS
    # The check before training computes in float32, which varlen attention refuses.
    expected = {"start_check"}
    failed = {name: one for name, one in parts.items() if one["status"] != "done"}
    assert failed.keys() <= expected, done.stdout
    figures = parts["search"]["figures"]["agreement"]
    assert figures["equal"] == figures["queries"]
    assert parts["encoder"]["figures"]["minilm_vectors"]["least_cosine"] > 0.999
    evaluated = parts["evaluation"]["figures"]["exact_float32"]
    assert evaluated["equal"] == evaluated["prompts"]


PROGRAM = """
import json, sys, time
part = sys.argv[1]
if part == "start_check":
    raise ImportError("no such package")
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
print(json.dumps({part: 1}), flush=True)
if part == "machine":
    time.sleep(1000)
if part == "attention":
    raise ValueError("no such kernel")
"""


def test_a_part_that_fails_keeps_its_figures_and_leaves_the_next(tmp_path, monkeypatch):
    (tmp_path / "gpu.py").write_text((ROOT / "bench" / "gpu.py").read_text())
    (tmp_path / "gpu_parts.py").write_text(PROGRAM)
    specification = importlib.util.spec_from_file_location("gpu", tmp_path / "gpu.py")
    gpu = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "gpu", gpu)
    specification.loader.exec_module(gpu)
    limits = {"machine": 3.0, "attention": 300, "start_check": 300, "search": 300}
    monkeypatch.setattr(gpu, "LIMITS_S", limits)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device=cpu", "--out", str(tmp_path)])
    assert gpu.main() == 1
    (path,) = tmp_path.glob("gpu-*.json")
    parts = json.loads(path.read_text())["parts"]
    assert parts["machine"]["status"].startswith("stopped")
    assert parts["machine"]["figures"] == {"machine": 1}
    assert parts["attention"]["status"].startswith("failed")
    assert parts["attention"]["figures"] == {"attention": 1}
    assert "no such kernel" in parts["attention"]["log"][-1]
    assert "no such package" in parts["start_check"]["log"][-1]
    assert parts["search"]["status"] == "done"


def page_with(tmp_path, *results):
    """Return the page that the table is written into, from these results."""
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "performance.md").read_text())
    paths = []
    for number, one in enumerate(results):
        paths.append(tmp_path / f"gpu-{number}.json")
        paths[-1].write_text(json.dumps(one))
    command = [sys.executable, str(ROOT / "bench" / "gpu_table.py"), *map(str, paths)]
    done = subprocess.run([*command, "--page", str(page)], check=False)
    return done.returncode, page.read_text()


def test_the_table_has_what_was_measured_and_no_other_figure(tmp_path):
    parts = {
        "machine": {"status": "done", "figures": {"name": "NVIDIA H100"}},
        "attention": {
            "status": "failed in part",
            "figures": {
                "varlen_error": {"output": 0.0021},
                "one_cudnn": {"failed": "RuntimeError: none | at all"},
            },
        },
    }
    results = {
        "date": "2026-01-02",
        "device": "cuda",
        "is_tiny": False,
        "packages": {"torch": "2.11.0", "transformers": "5.17.0"},
        "parts": parts,
    }
    status, page = page_with(tmp_path, results)
    assert status == 0
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert any("0.21%" in row for row in rows)
    assert any("failed: RuntimeError: none \\| at all" in row for row in rows)
    assert any("the same: MFU | – |" in row for row in rows)
    assert "attention: failed in part" in page
    assert "NVIDIA H100, 2026-01-02, torch 2.11.0" in page


def test_without_results_the_page_says_that_no_gpu_was_measured(tmp_path):
    status, page = page_with(tmp_path)
    assert status == 0
    assert "No GPU has been measured" in page


def test_results_of_a_cpu_are_refused_as_those_of_a_gpu(tmp_path):
    tiny = {"is_tiny": True, "parts": {}}
    before = (ROOT / "docs" / "performance.md").read_text()
    status, page = page_with(tmp_path, tiny)
    assert status != 0
    assert page == before
