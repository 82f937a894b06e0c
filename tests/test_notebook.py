"""The notebook is checked in with what it prints, and executed as it stands, in a kernel of its own."""

import ast
import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples/strings-to-batch.ipynb"


def test_the_notebook_shows_what_it_prints_and_nothing_of_the_machine_that_ran_it():
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    install, first, *_ = cells
    assert "".join(install["source"]) == "%pip install -q nextlong datasets torch"
    assert "nextlong.synthesize([" in "".join(first["source"])
    # Neither the installation nor a report of half a megabyte is checked in.
    is_empty = [
        cell["metadata"].get("tags", []) for cell in cells if not cell["outputs"]
    ]
    assert is_empty == [["skip-execution"], ["large-output"]]
    assert (
        re.findall(r"(?<![\w.])/(?:home|root|tmp|opt|work|Users|usr)/[^\"\s]*", text)
        == []
    )
    assert "error" not in {
        output["output_type"] for cell in cells for output in cell["outputs"]
    }


@pytest.mark.heavy
def test_the_notebook_goes_from_strings_to_a_batch(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    _, first, *others, last = (
        cell for cell in notebook.cells if cell.cell_type == "code"
    )
    assert "torch.Size([3, 96])" in "".join(output["text"] for output in first.outputs)
    pictures = [
        output["data"]["text/html"]
        for cell in others
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    ]
    run, sequence, report = pictures
    assert "8 of exactly 16,384 tokens" in run
    assert "<svg" in sequence
    assert report.startswith("<iframe srcdoc=")
    shapes = ast.literal_eval(last.outputs[0]["data"]["text/plain"])
    assert shapes["input_ids"] == (2, 16384)
    texts = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    assert "8 sequences of 16,384 tokens" in texts
    assert "negative" in texts
