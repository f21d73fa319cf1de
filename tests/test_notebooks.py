"""Every notebook runs from top to bottom, and is committed without outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
  assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  notebook = nbformat.read(path, as_version=4)
  assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"
  resources = {"metadata": {"path": str(tmp_path)}}
  nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
  text = str([cell.get("outputs") for cell in notebook.cells])
  assert "image/png" in text and "eval/heldout/pass@1" in text
