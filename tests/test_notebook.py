"""The notebook is executed as it stands, in a kernel of its own."""

import ast
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples/strings-to-batch.ipynb"


@pytest.mark.heavy
def test_the_notebook_goes_from_strings_to_a_batch(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [cell for cell in notebook.cells if cell.get("outputs")] == []  # checked in without outputs
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    *_, last = (cell for cell in notebook.cells if cell.cell_type == "code")
    shapes = ast.literal_eval(last.outputs[0]["data"]["text/plain"])
    assert shapes["input_ids"] == (2, 4096)
    texts = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "8 sequences of 4,096 tokens" in texts
    assert "negative" in texts
