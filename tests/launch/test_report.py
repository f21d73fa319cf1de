"""`python -m launch.report`: the data of the page, its escapes and bounds, and the page in a browser."""

import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from launch import report
from rlvr_jax.train.config import Config, to_json
from rlvr_jax.train.metrics import Writers
from rlvr_jax.train.records import Records, Rollout, read_completions

ROOT = Path(__file__).parents[2]
NASTY = (
  "</script><script>document.title='broken'</script>", "nul \x00 bell \x07", "lone \ud800 half",
  "\u202ereversed", "שלום 7", "", "<!-- <b>&amp; \u2028",
)  # fmt: skip
CHROMIUM = next(
  filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def _workdir(path, steps=30, seed=0, **config):
  path.mkdir(parents=True)
  (path / "config.json").write_text(to_json(Config(steps=steps, seed=seed, **config)))
  rng = np.random.default_rng(seed)
  with Writers(path, ["jsonl"]) as writers, Records(path, completions=4) as records:
    for step in range(steps):
      row = {
        "reward/mean": step / steps, "policy/entropy": float("nan") if step == 3 else 2.0 - step / 20,
        "tokens/generated": 90 * (step + 1), "tokens/batched": 60 * (step + 1),
        "tokens/trained": 50 * (step + 1), "tokens/rejected": 30 * (step + 1), "time/step_seconds": 2.0,
      }  # fmt: skip
      writers.write(step, row | ({"eval/test/pass@1": step / 40} if step % 10 == 0 else {}))
      rollouts = [
        Rollout(
          i // 3, f"Prompt {i // 3} of seed {seed}", NASTY[(step + i) % len(NASTY)], float(ok), float(ok),
          3 + i, "eos" if i else "length", "add", "7", f"rule {step}", None, {"brief": 0.5},
        )
        for i, ok in enumerate(rng.random(12) < 0.5)
      ]  # fmt: skip
      records.write(step, rollouts)
  return path


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs")
  return [
    _workdir(folder / "one"),
    _workdir(folder / "two<&", steps=20, seed=1, learning_rate=1e-4),
  ]


def _data(workdirs):
  return report.page_data(report.read_runs(workdirs), [read_completions(w) for w in workdirs])


def test_curves_lie_on_their_axes(workdirs):
  data = _data(workdirs)
  one, two = data["runs"]
  assert (one["name"], two["name"]) == ("one", "two<&")
  assert one["x"]["steps"]["ended"] == list(range(30))
  assert one["x"]["tokens"]["ended"][:3] == [90, 180, 270]
  assert one["x"]["tokens"]["began"][:3] == [0, 90, 180]
  assert one["x"]["seconds"]["ended"][:2] == [2, 4]
  assert two["metrics"]["reward/mean"][:3] == [0, 0.05, 0.1]
  assert one["metrics"]["policy/entropy"][2:5] == [1.9, None, 1.8]
  assert one["metrics"]["eval/test/pass@1"][:12] == [0, *[None] * 9, 0.25, None]
  assert data["described"]["policy/entropy"][0] == "nats"
  assert [title for title, _, _ in data["groups"]] == [
    "Evaluation",
    "Reward",
    "Policy",
    "Speed",
    "Token counts",
  ]


def test_ledger_summary_and_config(workdirs):
  data = _data(workdirs)
  parts = data["runs"][0]["ledger"]["parts"]
  assert [parts[name][-1] for name in data["fates"]] == [1500, 300, 900, 0, 0, 0, 0]
  entries = {name: values for name, values, _ in data["entries"]}
  assert entries["generated"] == [2700, 1800] and entries["evaluated"] == [None, None]
  summary = dict(data["summary"])
  assert summary["steps"] == [30, 20] and summary["seconds"] == [60, 40]
  assert summary["test/pass@1"] == [0.5, 0.25]
  differ = {key: values for key, values in data["config"] if values[0] != values[1]}
  assert differ == {
    "steps": ["30", "20"], "learning_rate": ["2e-05", "0.0001"], "seed": ["0", "1"]
  }  # fmt: skip


def test_rollouts_and_completions(workdirs):
  data = _data(workdirs)
  one = data["runs"][0]
  assert (
    sum(map(sum, one["histograms"]["length"])) == sum(map(sum, one["histograms"]["reward"])) == 360
  )
  assert one["rates"]["total"] == 4 and sorted(one["rates"]["labels"]) == [0, 1, 2, 3]
  assert len(data["completions"]) == 4 * 30 + 4 * 20
  first = data["completions"][0]
  assert data["prompts"][first["prompt"]] == "Prompt 0 of seed 0"
  assert (first["run"], first["step"], first["status"], first["rule"]) == (
    "one",
    0,
    "length",
    "rule 0",
  )
  assert first["rewards"] == {"brief": 0.5}


def test_long_runs_are_drawn_with_means():
  rows = [
    {"step": s, "reward/mean": float(s % 2), "policy/loss": 1.0 if s < 8 else None}
    for s in range(2000)
  ]
  empty = {
    "prompt": int,
    "reward": float,
    "correct": float,
    "length": int,
    "status": str,
    "step": int,
  }
  run = report.plots.Run("r", {}, rows, {name: np.zeros(0, kind) for name, kind in empty.items()})
  data = report.page_data([run], [[]])
  (drawn,) = data["runs"]
  assert drawn["metrics"]["reward/mean"] == [0.5] * 500  # four steps a point
  assert drawn["metrics"]["policy/loss"] == [1, 1, *[None] * 498]
  assert drawn["x"]["steps"]["ended"][:2] == [1.5, 5.5]
  assert data["notes"] == ["Curves of up to 2,000 steps are drawn with 500 points, each a mean."]
  assert drawn["rates"] is None and data["completions"] == []


def test_many_long_completions_stay_small(workdirs):
  runs = report.read_runs(workdirs[:1])
  made = [
    {"step": i, "prompt_id": i, "reward": 1.0, "correct": 1.0, "length": 9, "rewards": {}, "prompt": "p",
     "completion": f"{i} " + "\x00xxxxxxxxx" * 600}
    for i in range(12_000)
  ]  # fmt: skip
  data = report.page_data(runs, [made])
  assert len(report.html(data)) < 10e6
  shown = [one["step"] for one in data["completions"]]
  assert (
    300 < len(shown) < 10_000 and shown[0] == 0 and max(np.diff(shown)) <= 12_000 // len(shown) + 1
  )
  assert f"{len(shown):,} of 12,000 recorded completions are here, evenly spread." in data["notes"]
  assert "characters left out" in data["completions"][0]["completion"]
  assert any("lack their middle" in note for note in data["notes"])


class _Page(html.parser.HTMLParser):
  """Tags of a page, and the text of its scripts."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.scripts = [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag == "script":
      self.scripts.append("")

  def handle_data(self, data):
    if self.tags and self.tags[-1][0] == "script":
      self.scripts[-1] += data


def test_no_text_leaves_the_data(workdirs):
  text = report.html(_data(workdirs))
  page = _Page(text)
  assert text.isascii() and len(page.scripts) == 2
  assert json.loads(page.scripts[0]) == json.loads(json.dumps(_data(workdirs)))
  # Nothing is fetched: no address but the namespace of SVG, and nothing that could hold one.
  assert set(re.findall(r"\w+://[^\"'\s]*", text)) == {"http://www.w3.org/2000/svg"}
  held = {
    value for tag, attrs in page.tags for key, value in attrs.items() if key in ("src", "href")
  }
  assert held == {"data:,"}
  assert "default-src 'none'" in text


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("a\n\tb", "a\n\tb"),
    ("\x00\x1b\x85\r", r"\x00\x1b\x85\r"),
    ("\ud800x\udfff", r"\ud800x\udfff"),
    ("\u202eabc\u2069\u200f\u2028", r"\u202eabc\u2069\u200f\u2028"),
    ("שלום 👩\u200d🔬", "שלום 👩\u200d🔬"),
  ],
)
def test_visible(text, shown):
  assert report.visible(text) == shown


def test_runs_of_one_name_get_their_paths(tmp_path):
  paths = [_workdir(tmp_path / x / "run", steps=1) for x in "ab"]
  assert [run.name for run in report.read_runs(paths)] == [str(path) for path in paths]
  with pytest.raises(ValueError, match="given twice"):
    report.read_runs([paths[0], paths[0] / ".." / "run"])


def test_runs_with_little_in_them(tmp_path):
  for name, text in (("empty", ""), ("cut", '{"step": 0, "reward/mean": 0.5}\n{"step": 1, "rew')):
    (tmp_path / name).mkdir()
    (tmp_path / name / "metrics.jsonl").write_text(text)
  other = _workdir(tmp_path / "whole", steps=3)
  out = tmp_path / "new" / "report.html"
  assert report.write_report([tmp_path / "empty"], out) == []
  assert report.write_report([tmp_path / "empty", tmp_path / "cut", other], out) == []
  data = json.loads(_Page(out.read_text()).scripts[0])
  assert [list(run["metrics"]) for run in data["runs"]][:2] == [[], ["reward/mean"]]


def test_as_a_command(workdirs, tmp_path):
  code = """
import json, sys
from absl import flags
from launch import report
report.define_flags()
for args in json.loads(sys.argv[1]):
  try:
    report.main(flags.FLAGS(["report", *args]))
  except SystemExit as stop:
    print(stop.code)
"""
  cases = [
    [f"--workdir={workdirs[0]}", f"--compare={workdirs[1]}", f"--out={tmp_path / 'r.html'}"],
    [f"--workdir={tmp_path}", "--compare="],
  ]
  done = subprocess.run(
    [sys.executable, "-c", code, json.dumps(cases)], cwd=ROOT, text=True, stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )  # fmt: skip
  assert done.stdout.splitlines() == [
    f"written: {tmp_path / 'r.html'}, 0.1 MB",
    f"error: {tmp_path} has no metrics.jsonl: it is no workdir, or its first step is not done",
  ]
  assert (tmp_path / "r.html").read_text() == report.html(_data(workdirs))


# What a reader would do, and what they then see, as JSON in the page's title.
USE = """
<script>{
const shown = () => document.querySelectorAll("#completions article").length;
const change = (node, value, kind) => { node.value = value; node.dispatchEvent(new Event(kind)); };
const pick = (id, i) => document.querySelectorAll(`#${id} select`)[i];
const fields = document.querySelectorAll("#completions input");
const told = { ready: document.documentElement.dataset.ready, all: shown(),
  status: document.querySelector("[role=status]").textContent,
  charts: document.querySelectorAll("#curves svg").length,
  text: document.querySelector("#completions").innerText };
change(fields[0], "RULE 7", "input");
told.searched = document.querySelector("[role=status]").textContent;
change(fields[2], "0.5", "input");
told.rewarded = [...document.querySelectorAll("article .reward")].map(node => node.textContent);
change(fields[0], "no such text", "input");
told.none = shown();
change(pick("curves", 0), "tokens", "change");
told.axis = [...document.querySelectorAll("#curves svg .axis")].map(node => node.textContent)[0];
change(pick("ledger", 0), "1", "change");
told.perStep = document.querySelector("#ledger svg").innerHTML.includes("tokens of a step");
document.querySelectorAll("#curves input")[1].click();
told.left = document.querySelectorAll("#ledger svg").length;
change(pick("config", 0), "1", "change");
told.keys = [...document.querySelectorAll("#config tbody th")].map(node => node.textContent);
document.title = JSON.stringify(told);
}</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")
def test_in_a_browser(workdirs, tmp_path):
  def browse(name, page, *options):
    (tmp_path / name).write_text(page)
    command = [
      CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
      "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
      "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,4000",
      "--virtual-time-budget=2000", *options, f"file://{tmp_path / name}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, errors  # of scripts, or what the page's policy refused
    return done.stdout

  page = report.html(_data(workdirs))
  dom = browse("use.html", page.replace("</body>", USE + "</body>"), "--dump-dom")
  told = json.loads(html.unescape(re.search("<title>(.*?)</title>", dom, re.DOTALL)[1]))
  assert (
    told["ready"] == "yes" and told["charts"] == 3
  )  # evaluation, reward, entropy; the other groups are closed
  assert told["all"] == 20 and told["status"] == "200 of 200 completions, page 1 of 10"
  for nasty in NASTY[:5]:
    assert report.visible(nasty) in told["text"]
  assert "(empty completion)" in told["text"]
  assert told["searched"] == "8 of 200 completions, page 1 of 1"  # four of each run at step 7
  assert told["rewarded"] and set(told["rewarded"]) == {"reward 1"}
  assert told["none"] == 0
  assert told["axis"] == "response tokens generated" and told["perStep"]
  assert told["left"] == 1
  assert told["keys"] == ["steps", "learning_rate", "seed"]

  browse("look.html", page, f"--screenshot={tmp_path / 'look.png'}")
  image = matplotlib.image.imread(tmp_path / "look.png")[..., :3]
  assert image.shape[:2] == (4000, 1280)
  for color in report.plots.COLORS[:2]:  # the lines of both runs
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert (np.abs(image - rgb[None, None]).max(-1) < 0.01).sum() > 500
