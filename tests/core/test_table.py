"""Names to things, and errors that say which names there are."""

import math

import pytest

from rlvr_jax.core import table

THINGS = {
  "plain": f"{__name__}:plain",
  "plainer": f"{__name__}:plain",
  "outer": f"{__name__}:outer",
  "broken": f"{__name__}:broken",
  "no_module": "rlvr_jax.core.nothing:here",
  "no_attribute": "rlvr_jax.core.table:nothing",
}


def plain(*, width: int = 1, height: int = 2):
  return width, height


def outer(*, depth: int = 3, **options):
  return (depth, *plain(**options))


def broken(*, width: int = 1):
  return width + None  # type: ignore


def test_resolve():
  assert table.resolve("thing", "plain", THINGS) is plain
  assert table.resolve("thing", "math:hypot", THINGS) is math.hypot


def test_unknown_names_list_the_close_ones_or_all():
  with pytest.raises(ValueError, match="unknown thing 'plan'; did you mean plain, plainer"):
    table.resolve("thing", "plan", THINGS)
  with pytest.raises(ValueError, match="unknown thing 'zzz'; known: broken, no_attribute"):
    table.resolve("thing", "zzz", THINGS)


@pytest.mark.parametrize("name", ["no_module", "no_attribute", "nowhere.at.all:x"])
def test_names_that_lead_nowhere(name):
  with pytest.raises(ValueError, match=f"thing '{name}': cannot load"):
    table.resolve("thing", name, THINGS)


def test_build():
  assert table.build("thing", "plain", THINGS, {"width": 5}) == (5, 2)
  assert table.build("thing", "outer", THINGS, {"depth": 4, "height": 6}) == (4, 1, 6)


def test_T8_unknown_arguments_raise():
  with pytest.raises(
    ValueError, match="unknown argument of thing 'plain': 'widht'; did you mean width"
  ):
    table.build("thing", "plain", THINGS, {"widht": 5})
  with pytest.raises(
    ValueError, match="unknown argument of thing 'outer': 'widht'; did you mean width"
  ):
    table.build("thing", "outer", THINGS, {"widht": 5})


def test_arguments_of_the_wrong_type_name_the_factory():
  with pytest.raises(ValueError, match="thing 'broken': unsupported operand"):
    table.build("thing", "broken", THINGS, {})
