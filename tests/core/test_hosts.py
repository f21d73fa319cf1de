"""Host values over processes. What several real processes do is in tests/launch/test_multiprocess.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from rlvr_jax.core import hosts


def test_one_process_reads_and_writes_plainly():
  tree = {"a": jnp.arange(3), "b": np.float32(2.0)}
  read = hosts.host(tree)
  assert isinstance(read["a"], np.ndarray) and read["a"].tolist() == [0, 1, 2] and read["b"] == 2.0
  where = SingleDeviceSharding(jax.devices()[0])
  put = hosts.put(read["a"], where)
  assert put.sharding == where and put.tolist() == [0, 1, 2]
  assert hosts.is_first() and hosts.gather("x") == ["x"]


def test_what_fails_on_the_first_process_raises():
  assert hosts.first(lambda: 7) == 7

  def refuse():
    raise ValueError("in use")

  with pytest.raises(ValueError, match="in use"):
    hosts.first(refuse)


@pytest.mark.parametrize("num", [0, 1, 2, 3, 7])
def test_work_is_split_once_each_and_put_together_in_order(num, monkeypatch):
  """Three processes, one after the other."""
  parts = []
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  monkeypatch.setattr(hosts, "gather", lambda mine: parts.append(mine) or parts)
  double = hosts.shared(lambda x, y: [(a, b) for a, b in zip(x, y, strict=True)])
  for i in range(3):
    monkeypatch.setattr(jax, "process_index", lambda i=i: i)
    whole = double(list(range(num)), "abcdefg"[:num])
  assert whole == list(zip(range(num), "abcdefg"))
  assert max(map(len, parts)) - min(map(len, parts)) <= 1
