"""Makes the verifiers of these tests importable, here and in verifier processes."""

import importlib
import pathlib

import pytest


@pytest.fixture
def verifiers(monkeypatch):
  monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent / "importable"))
  return importlib.import_module("unruly_verifiers")
