"""Records of rollouts: what is written, bounded, cut short, rewound and read back."""

import json

import numpy as np
import pytest

from rlvr_jax.train.records import (
  COMPLETIONS_FILE,
  ROLLOUTS_FILE,
  Records,
  Rollout,
  clip,
  read_completions,
  read_rollouts,
)

NASTY = "</script>\x00\ud800\u202e\u2028 é\n"


def _rollouts(step, num=6):
  return [
    Rollout(
      prompt_id=i // 2,
      prompt=f"{step}+{i}=",
      completion=f"{step + i}{NASTY}",
      reward=float("nan") if i == 5 else i / 3,
      correct=float(i % 2),
      length=step + i,
      status="eos",
      source="add",
      rule="number",
      rewards={"brief": 0.5} if i else {},
    )
    for i in range(num)
  ]


def _write(folder, steps, **options):
  with Records(folder, **options) as records:
    for step in steps:
      records.write(step, _rollouts(step))


def _files(folder):
  return [(folder / name).read_bytes() for name in (ROLLOUTS_FILE, COMPLETIONS_FILE)]


def test_all_numbers_and_some_texts_come_back(tmp_path):
  _write(tmp_path, [0, 1], completions=3)
  columns = read_rollouts(tmp_path)
  assert columns["step"].tolist() == [0] * 6 + [1] * 6
  assert columns["prompt"].tolist() == [0, 0, 1, 1, 2, 2] * 2
  assert columns["correct"].tolist() == [0, 1] * 6
  assert columns["length"].tolist() == [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]
  np.testing.assert_allclose(columns["reward"][:5], [0, 1 / 3, 2 / 3, 1, 4 / 3], atol=1e-6)
  assert np.isnan(columns["reward"][[5, 11]]).all()
  assert set(columns["status"]) == {"eos"}
  texts = read_completions(tmp_path)
  assert [(one["step"], one["prompt"]) for one in texts] == [
    (0, "0+0="), (0, "0+2="), (0, "0+4="), (1, "1+0="), (1, "1+2="), (1, "1+4="),
  ]  # fmt: skip
  assert texts[1]["completion"] == "2" + NASTY
  assert texts[1]["rewards"] == {"brief": 0.5} and texts[1]["rule"] == "number"


def test_no_completions_and_no_rollouts(tmp_path):
  with Records(tmp_path, completions=0) as records:
    records.write(0, _rollouts(0))
    records.write(1, [])
  assert read_completions(tmp_path) == []
  assert read_rollouts(tmp_path)["step"].tolist() == [0] * 6


def test_a_workdir_without_records(tmp_path):
  assert read_completions(tmp_path) == []
  assert {name: len(column) for name, column in read_rollouts(tmp_path).items()} == dict.fromkeys(
    ("step", "prompt", "reward", "correct", "length", "status"), 0
  )


def test_files_stay_below_their_limit_and_cover_the_run_evenly(tmp_path):
  _write(tmp_path, range(200), limit_mib=0.01)
  for name in (ROLLOUTS_FILE, COMPLETIONS_FILE):
    assert (tmp_path / name).stat().st_size <= 0.01 * 2**20
  for steps in (
    set(read_rollouts(tmp_path)["step"]),
    {t["step"] for t in read_completions(tmp_path)},
  ):
    every = min(steps - {0})
    assert every & (every - 1) == 0 and every > 1  # a power of two
    assert steps == set(range(0, 200, every))
  _write(tmp_path, [201], limit_mib=0.01)  # a later process knows which steps are wanted
  assert 201 not in read_rollouts(tmp_path)["step"]


def test_a_single_step_may_exceed_the_limit(tmp_path):
  _write(tmp_path, range(9), limit_mib=0.0001)
  assert set(read_rollouts(tmp_path)["step"]) <= {0, 8}
  assert 0 in read_rollouts(tmp_path)["step"]


@pytest.mark.parametrize("limit_mib", [64.0, 0.01])
def test_a_resumed_run_writes_what_an_uninterrupted_one_does(tmp_path, limit_mib):
  _write(tmp_path / "whole", range(60), limit_mib=limit_mib)
  _write(tmp_path / "cut", range(47), limit_mib=limit_mib)
  for name in (ROLLOUTS_FILE, COMPLETIONS_FILE):
    with (tmp_path / "cut" / name).open("a") as file:
      file.write('{"step": 46, "pro')  # killed while writing
  with Records(tmp_path / "cut", limit_mib=limit_mib) as records:
    records.rewind(30)  # the checkpoint was older
    for step in range(30, 60):
      records.write(step, _rollouts(step))
  assert _files(tmp_path / "cut") == _files(tmp_path / "whole")


def test_damage_before_the_end_is_an_error(tmp_path):
  _write(tmp_path, [0, 1])
  path = tmp_path / ROLLOUTS_FILE
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join([lines[0], "garbage\n", *lines[1:]]))
  with pytest.raises(ValueError, match=r"rollouts\.jsonl, line 2"):
    read_rollouts(tmp_path)
  path.write_text(json.dumps({"step": 0, "prompt": [1]}) + "\n")
  with pytest.raises(ValueError, match="does not hold rollouts"):
    read_rollouts(tmp_path)
  with (tmp_path / COMPLETIONS_FILE).open("a") as file:
    file.write('{"step": 1, "prompt": "a"}\n')
  with pytest.raises(
    ValueError, match="a completion of step 1 lacks prompt_id, completion, reward"
  ):
    read_completions(tmp_path)


def test_long_texts_lose_their_middle(tmp_path):
  assert clip("abcdefgh", 8) == "abcdefgh"
  assert clip("abcdefghij", 8) == "abcdef\n[... 2 characters left out ...]\nij"
  with Records(tmp_path, chars=100) as records:
    records.write(0, [_rollouts(0)[0]._replace(completion="x" * 1000)])
  assert len(read_completions(tmp_path)[0]["completion"]) < 200


@pytest.mark.parametrize("options", [{"completions": -1}, {"limit_mib": 0}, {"chars": 3}])
def test_arguments_out_of_range(tmp_path, options):
  with pytest.raises(ValueError, match="want completions >= 0"):
    Records(tmp_path, **options)
