"""Trees of rows: who owns a token, the nodes between forks, values and credit of nodes.

A row is a path from the prompt to a leaf. `parent` and `fork_at` say it all: row n shares its places before
fork_at[n] with its parent and owns what comes after, so every token of a tree is owned by one row. A row
forks after its own fork point: fork_at[n] > fork_at[parent[n]] (`fork_source` sees to it).
"""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import groups, keys
from rlvr_jax.core.types import Array, Rows, places

VALUES = ("leaf", "child", "softmax", "policy")
ADVANTAGES = ("leaf_group", "sibling", "mix", "depth", "value_minus_parent")


# --------------------------------------------------------------------------------------------------
# Rows


def owned(rows: Rows) -> Array:
  """bool [N,T]: response tokens that the row owns; those of a tree, each once."""
  return rows.response_mask & (places(rows.tokens) >= rows.fork_at[:, None])


def leaves_through(rows: Rows) -> Array:
  """int32 [N,T]: valid rows that share the token, for tokens of valid rows; 0 elsewhere."""
  n, t = rows.tokens.shape
  owner = _owners(rows.parent, rows.fork_at, t)
  at = jnp.broadcast_to(places(rows.tokens), (n, t))
  count = jnp.zeros((n, t), jnp.int32).at[owner, at].add(rows.loss_mask.astype(jnp.int32))
  return jnp.where(rows.loss_mask, count[owner, at], 0)


def _owners(parent, fork_at, num_places):
  """int32 [N,T]: the row that owns each place of each row."""
  at = jnp.arange(num_places, dtype=jnp.int32)[None]
  first = jnp.broadcast_to(
    jnp.arange(len(parent), dtype=jnp.int32)[:, None], (len(parent), num_places)
  )
  above = lambda row: (at < fork_at[row]) & (parent[row] >= 0)
  return jax.lax.while_loop(
    lambda row: above(row).any(), lambda row: jnp.where(above(row), parent[row], row), first
  )


def root(parent: Array) -> Array:
  """int32 [N]: the topmost ancestor, of rows or of nodes; itself where parent is -1."""
  up = lambda x: jnp.where(parent[x] >= 0, parent[x], x)
  first = jnp.arange(len(parent), dtype=jnp.int32)
  return jax.lax.while_loop(lambda x: (parent[x] >= 0).any(), up, first)


def descendants(parent: Array, of: Array) -> Array:
  """bool [N]: `of` and everything below."""
  below = lambda x: x | (x[parent] & (parent >= 0))
  return jax.lax.while_loop(lambda x: (below(x) != x).any(), below, of)


def adopt(parent: Array, fork_at: Array, gone: Array) -> tuple[Array, Array]:
  """(parent, fork_at) of the rows that stay, so that each of their tokens is again owned once.

  The child that shares most with a row that goes, the first of several, takes its place; its other children
  become that child's. Rows that go are left without parent and children.

  Args:
    gone: bool [N].
  """
  n = len(parent)
  index = jnp.arange(n, dtype=jnp.int32)
  # Rows that go and have nobody below who stays are of no account.
  above = lambda x: x | (jnp.zeros(n + 1, bool).at[jnp.where(x, parent, n)].set(True)[:n])
  needed = jax.lax.while_loop(lambda x: (above(x) != x).any(), above, ~gone)
  parent = jnp.where(needed, parent, -1)
  has_children = lambda p: jnp.zeros(n + 1, bool).at[jnp.where(p >= 0, p, n)].set(True)[:n]

  def replace(tree):
    parent, fork_at = tree
    row = jnp.argmax(gone & has_children(parent))
    children = parent == row
    heir = jnp.argmax(jnp.where(children, fork_at, -1)).astype(jnp.int32)
    new = jnp.where(children & (index != heir), heir, parent).at[heir].set(parent[row])
    return new, fork_at.at[heir].set(fork_at[row])

  parent, fork_at = jax.lax.while_loop(
    lambda tree: (gone & has_children(tree[0])).any(), replace, (parent, fork_at)
  )
  return jnp.where(gone, -1, parent).astype(jnp.int32), jnp.where(gone, 0, fork_at)


def without(rows: Rows, gone: Array) -> Rows:
  """The rows with some, bool [N], not valid; what others shared with these, `adopt` passes on."""
  parent, fork_at = adopt(rows.parent, rows.fork_at, gone)
  return rows.replace(parent=parent, fork_at=fork_at, valid=rows.valid & ~gone)


def fork_source(parent: Array, fork_at: Array, row: Array, at: Array) -> Array:
  """int32 like row: the ancestor of `row`, or itself, that owns the place before `at`."""
  up = lambda x: (at <= fork_at[x]) & (parent[x] >= 0)
  return jax.lax.while_loop(
    lambda x: up(x).any(), lambda x: jnp.where(up(x), parent[x], x), row.astype(jnp.int32)
  )


def child_uids(uid: Array, at: Array, number: Array) -> Array:
  """uint32 [N,2]: the randomness of the child `number` of the row `uid` [N,2] at place `at`."""

  def one(data, at, number):
    return jax.random.key_data(keys.stream(jax.random.wrap_key_data(data), "fork", at, number))

  return jax.vmap(one)(uid, at, number)


# --------------------------------------------------------------------------------------------------
# Nodes


class Nodes(flax.struct.PyTreeNode):
  """The stretches between forks, 3N of them, of which few are in use.

  Node n begins where row n's own tokens do; node N + n is how the parent of row n goes on after the fork,
  where n is the first row that forks there; node 2N + g is the prompt of group g, above the rows that were
  drawn from it.
  """

  of: Array  # int32 [N,T], node of each trained token of a valid row; 3N elsewhere
  leaf: Array  # int32 [N], node in which a valid row ends; 3N for others
  parent: Array  # int32 [3N]; -1: none
  depth: Array  # int32 [3N], forks above: nodes with several children on the way down
  used: Array  # bool [3N]
  prompt: Array  # bool [3N], holds no tokens of the policy

  @property
  def is_leaf(self) -> Array:
    """bool [3N]."""
    return jnp.zeros(self.used.shape, bool).at[self.leaf].set(True, mode="drop")

  def at_leaves(self, x: Array) -> Array:
    """[N] -> [3N]: the number of each row on its leaf; 0 elsewhere."""
    return jnp.zeros(self.used.shape, x.dtype).at[self.leaf].set(x, mode="drop")

  def of_tokens(self, x: Array) -> Array:
    """[3N] -> [N,T]: the number of its node on each trained token; 0 elsewhere."""
    return x.at[self.of].get(mode="fill", fill_value=0)


def nodes(rows: Rows) -> Nodes:
  """The nodes of the valid rows. Rows that are not valid must be nobody's parent, see `adopt`."""
  n, t = rows.tokens.shape
  index, valid = jnp.arange(n, dtype=jnp.int32), rows.valid
  none = 3 * n
  child = valid & (rows.parent >= 0)
  parent, fork_at = jnp.where(child, rows.parent, -1), jnp.where(child, rows.fork_at, 0)
  # Of the children of one row at one place, the first.
  marks = jnp.full((n + 1, t + 1), n, jnp.int32)
  marks = marks.at[jnp.where(child, parent, n), fork_at].min(index)[:n]
  first = child & (marks[parent, fork_at] == index)
  begin = jnp.where(marks < n, n + marks, none).at[index, fork_at].set(index)
  last = jax.lax.cummax(jnp.where(begin < none, jnp.arange(t + 1)[None], -1), axis=1)
  stretch = jnp.where(last >= 0, jnp.take_along_axis(begin, jnp.maximum(last, 0), 1), none)
  at = jnp.broadcast_to(places(rows.tokens), (n, t))
  of = jnp.where(rows.loss_mask, stretch[_owners(parent, fork_at, t), at], none)
  before = stretch[parent, jnp.maximum(fork_at - 1, 0)]
  above_row = jnp.where(child, before, jnp.where(valid, 2 * n + rows.group, -1))
  live = jnp.zeros(n, bool).at[rows.group].max(valid)
  above = jnp.concatenate([above_row, jnp.where(first, before, -1), jnp.full(n, -1)]).astype(
    jnp.int32
  )
  return Nodes(
    of=of,
    leaf=jnp.where(valid, stretch[:, t], none),
    parent=above,
    depth=_depth(above, _num_children(above) > 1),
    used=jnp.concatenate([valid, first, live]),
    prompt=jnp.arange(none) >= 2 * n,
  )


def _num_children(parent):
  n = len(parent)
  return jnp.zeros(n + 1, jnp.int32).at[jnp.where(parent >= 0, parent, n)].add(1)[:n]


def _depth(parent, counts=None):
  """int32 [n]: nodes above each node, or those of them for which `counts` holds."""
  counts = jnp.ones(parent.shape, bool) if counts is None else counts

  def up(carry):
    x, depth = carry
    on = parent[x] >= 0
    above = jnp.where(on, parent[x], x)
    return above, depth + (on & counts[above])

  first = jnp.arange(len(parent), dtype=jnp.int32), jnp.zeros(len(parent), jnp.int32)
  return jax.lax.while_loop(lambda c: (parent[c[0]] >= 0).any(), up, first)[1]


def tree_values(parent: Array, value: Array, leaf: Array, *, mode: str = "leaf", weight=None):
  """float32 [n]: values of nodes from those of the leaves.

  Args:
    parent: int32 [n], -1: none.
    value: float32 [n], read at leaves.
    leaf: bool [n]; a leaf has no children, and a node below which there is none gets 0.
    mode: how a node's value comes from its children's. "leaf": the mean over all leaves below; "child":
      the mean over children; "softmax": softmax over the children of `weight`, log-probs of their edges;
      "policy": sum_c w_c V_c / sum_c w_c, w the chances of the children.
    weight: float32 [n], with "softmax" and "policy".
  """
  if mode not in VALUES:
    raise ValueError(f"values of a tree are {', '.join(VALUES)}, not {mode!r}")
  if (weight is None) == (mode in ("softmax", "policy")):
    raise ValueError(f"values by {mode!r} {'need a' if weight is None else 'take no'} weight")
  n = len(parent)
  up = jnp.where(parent >= 0, parent, n)
  level = _depth(parent)
  to_parents = lambda x: jax.ops.segment_sum(x, up, n + 1)[:n]
  weight = jnp.ones(n, jnp.float32) if weight is None else weight.astype(jnp.float32)
  if mode == "softmax":
    top = jax.ops.segment_max(weight, up, n + 1)
    weight = jnp.exp(weight - jnp.where(jnp.isfinite(top), top, 0.0)[up])

  def climb(i, carry):
    """A node is numerator / denominator; the nodes of one level add to those of their parents."""
    now = (level == level.max() - i) & (parent >= 0) & (carry[1] > 0)
    given = carry if mode == "leaf" else (weight * _over(*carry), weight)
    return tuple(x + to_parents(jnp.where(now, y, 0.0)) for x, y in zip(carry, given))

  start = jnp.where(leaf, value, 0.0).astype(jnp.float32), leaf.astype(jnp.float32)
  return _over(*jax.lax.fori_loop(0, level.max(), climb, start))


def _over(a, b):
  return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 0.0)


def tree_advantage(
  value: Array, parent: Array, leaf: Array, used: Array, *, mode: str, depth=None, mix: float = 0.5,
  carry: bool = True,
) -> Array:  # fmt: skip
  """float32 [n]: credit of nodes, of which `used` [n] count.

  Args:
    value: float32 [n], see `tree_values`.
    parent, leaf: of the nodes; a tree is what hangs together.
    mode: "leaf_group": z-score over the leaves of the tree, and above them the mean over the leaves below;
      "sibling": z-score among the children of one parent, 0 for an only child and without a parent; "mix":
      mix * sibling + (1 - mix) * leaf_group; "depth": z-score among the nodes of equal `depth`, cut to +-5;
      "value_minus_parent": 0 without a parent. Standard deviations are sample ones.
    depth: int32 [n], with "depth".
    carry: with "depth", leaves stand in the mean and deviation of deeper levels too.
  """
  if mode not in ADVANTAGES:
    raise ValueError(f"advantages of a tree are {', '.join(ADVANTAGES)}, not {mode!r}")
  tree = root(parent)
  if mode == "mix":
    both = [tree_advantage(value, parent, leaf, used, mode=m) for m in ("sibling", "leaf_group")]
    return mix * both[0] + (1 - mix) * both[1]
  if mode == "value_minus_parent":
    return jnp.where(used & (parent >= 0), value - value[parent], 0.0)
  if mode == "sibling":
    return _z_score(value, jnp.where(parent >= 0, parent, 0), used & (parent >= 0))
  if mode == "leaf_group":
    credit = _z_score(value, tree, used & leaf)
    return jnp.where(used, tree_values(parent, credit, leaf & used), 0.0)
  if depth is None:
    raise ValueError("credit by depth needs the depths of the nodes")

  def level(d, credit):
    here = used & ((depth == d) | (carry & leaf & (depth < d)))
    std = groups.std(value, tree, here, ddof=1)[tree]
    z = groups.centred(value, tree, here) / (std + 1e-8)
    return jnp.where(used & (depth == d) & (std >= 1e-6), jnp.clip(z, -5.0, 5.0), credit)

  deepest = jnp.where(used, depth, 0).max()
  return jax.lax.fori_loop(0, deepest + 1, level, jnp.zeros(len(parent), jnp.float32))


def _z_score(x, group, valid):
  """float32 [n]; 0 in a group of one."""
  return groups.centred(x, group, valid) / (groups.std(x, group, valid, ddof=1)[group] + 1e-6)
