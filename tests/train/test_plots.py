"""What the picture of pass@k shows."""

import matplotlib.figure
import pytest

from rlvr_jax.train import plots


def _report(*values, name="heldout"):
  metrics = {
    f"pass@{2**i}": {"value": v, "low": v - 0.1, "high": v + 0.05} for i, v in enumerate(values)
  }
  metrics["maj@2"] = {"value": 9.0, "low": 9.0, "high": 9.0}
  return {"sets": {name: {"all": {"metrics": metrics}}}}


def test_pass_at_k_draws_each_set_of_each_report(tmp_path, monkeypatch):
  drawn = []
  save = matplotlib.figure.Figure.savefig
  monkeypatch.setattr(
    matplotlib.figure.Figure,
    "savefig",
    lambda self, *a, **k: drawn.append(self) or save(self, *a, **k),
  )
  reports = {"a": _report(0.2, 0.3, 0.5), "b": _report(0.4, 0.6), "c": _report(0.7, name="other")}
  png = plots.pass_at_k(reports, tmp_path / "new" / "pass.png", title="t")
  assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
  (axes,) = drawn[0].axes
  lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
  assert lines == {
    "a: heldout": [[1, 0.2], [2, 0.3], [4, 0.5]],
    "b: heldout": [[1, 0.4], [2, 0.6]],
    "c: other": [[1, 0.7]],
  }
  band = axes.collections[0].get_paths()[0].vertices
  assert band[:, 1].min() == pytest.approx(0.1) and band[:, 1].max() == pytest.approx(0.55)
  assert len({line.get_color() for line in axes.get_lines()}) == 3
  assert [text.get_text() for text in axes.get_legend().get_texts()] == list(lines)


def test_nothing_to_draw(tmp_path):
  with pytest.raises(ValueError, match="no evaluation to draw"):
    plots.pass_at_k({}, tmp_path / "x.png")
