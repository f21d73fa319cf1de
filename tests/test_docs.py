"""Documents that are made from the code are up to date."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture
def make_methods():
  spec = importlib.util.spec_from_file_location("make_methods", DOCS / "make_methods.py")
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_methods_page_is_up_to_date(make_methods):
  assert make_methods.PAGE.read_text() == make_methods.page(), "run: python docs/make_methods.py"


def _recipe(monkeypatch, make_methods, **header):
  """Makes a module with this header the only recipe."""
  module = types.ModuleType("toy_recipe", "A toy.\n\nDiffers: it is one.")
  module.toy = lambda *, group_size=4, scale="std | none", **options: None
  for name, value in {"PAPER": ("Toys", "arXiv 1234.5678"), **header}.items():
    setattr(module, name, value)
  monkeypatch.setitem(sys.modules, "toy_recipe", module)
  monkeypatch.setattr(make_methods, "RECIPES", {"toy": "toy_recipe:toy"})


def test_a_row_of_the_methods_page(monkeypatch, make_methods):
  header = {"STAGES": ("filter",), "CHANGES": ("choose", "refill"), "EVIDENCE": "notes"}
  _recipe(monkeypatch, make_methods, **header)
  lines = make_methods.page().splitlines()
  assert (
    "| [`toy`](#toy) | Toys ([arXiv 1234.5678](https://arxiv.org/abs/1234.5678)) | filter |"
    r" `choose`, `refill` | notes | `group_size=4`, `scale='std \| none'`, ... |"
  ) in lines
  assert lines[-5:] == ["## toy", "", "A toy.", "", "Differs: it is one."]


@pytest.mark.parametrize(
  ("header", "message"),
  [
    ({"STAGES": ("filter",)}, "needs the module constant CHANGES"),
    ({"STAGES": ("filtre",), "CHANGES": ()}, "'filtre'.* not among"),
    ({"STAGES": (), "CHANGES": ("chose",)}, "'chose'.* not among"),
    ({"STAGES": (), "CHANGES": (), "PAPER": ("Toys",)}, "title, identifier"),
    ({"STAGES": (), "CHANGES": (), "EVIDENCE": "hearsay"}, "'hearsay'.* not among"),
  ],
)
def test_an_incomplete_header_is_refused(monkeypatch, make_methods, header, message):
  _recipe(monkeypatch, make_methods, **header)
  with pytest.raises(ValueError, match=message):
    make_methods.page()
