"""Lays rows out for the learner: every distinct prefix once, in bins of fixed size. Host code.

Rows are sorted by content, so that rows which agree on a prefix are neighbours, whatever made them agree:
a shared system line, the prompt of a group, or equal completions. The sorted rows are the depth-first
walk of a tree; a token is written when the walk first reaches it, and its `stop` says where its subtree
ends, which is all that attention needs to know. Shapes depend on the batch size alone: nothing recompiles.
"""

from typing import Any, NamedTuple

import numpy as np

from rlvr_jax.core import hosts
from rlvr_jax.core.types import Packed, Rows


class Layout(NamedTuple):
  """Static sizes of the packed form."""

  bins: int  # enough for any batch
  bin_tokens: int  # U, places of a bin
  bin_reads: int  # R, log-probs read from a bin


class PackInfo(NamedTuple):
  unique: int  # places in use: tokens the model runs on
  row_tokens: int  # what they would be without sharing
  bins: int  # in use


def layout(num_rows: int, num_places: int, *, bin_tokens: int = 0, bin_reads: int = 0) -> Layout:
  """Sizes that hold any `num_rows` rows of `num_places` tokens.

  Args:
    bin_tokens: places of a bin; 0 chooses. Bigger bins repeat fewer prefixes and take more memory.
    bin_reads: log-probs of a bin, at most; 0 takes bin_tokens. Only a bin with many pays for many.

  Raises:
    ValueError: if a row would not fit a bin.
  """
  longest = max(num_places - 1, 1)  # the last token of a row predicts nothing
  bin_tokens = bin_tokens or max(256, -(-longest // 128) * 128)
  bin_reads = bin_reads or bin_tokens
  if min(bin_tokens, bin_reads) < longest:
    raise ValueError(
      f"bins of {bin_tokens} tokens and {bin_reads} reads cannot hold a row of {longest}; "
      f"raise bin_tokens to at least {longest}, or shorten prompts or responses"
    )
  rows_a_bin = min(bin_tokens, bin_reads) // longest
  return Layout(-(-num_rows // rows_a_bin), bin_tokens, bin_reads)


def pack(tokens, wanted, temperature, sizes: Layout, *, lanes: int = 1) -> tuple[Packed, PackInfo]:
  """Packs the rows that have wanted tokens.

  Args:
    tokens: int [N,T].
    wanted: bool [N,T], tokens whose log-prob is needed; never the first place of a row.
    temperature: float [N]; rows share a prefix only at equal temperature.
    sizes: see `layout`.
    lanes: bins computed side by side; their number is rounded up to it.

  Returns:
    Packed numpy arrays, and how much sharing saved.

  Raises:
    ValueError: if the first token of a row is wanted (nothing predicts it), or the rows do not fit.
  """
  tokens, wanted = np.asarray(tokens, np.int32), np.asarray(wanted, bool)
  temperature = np.asarray(temperature, np.float32)
  if wanted[:, 0].any():
    raise ValueError(f"row {int(wanted[:, 0].argmax())}: nothing predicts the first token of a row")
  num_rows, num_places = tokens.shape
  end = np.where(wanted.any(1), num_places - wanted[:, ::-1].argmax(1), 0)  # last wanted token + 1
  order = _by_content(tokens, end, temperature)
  bins = -(-sizes.bins // lanes) * lanes
  walk = _Walk(bins, sizes, num_rows, num_places)
  previous = None
  for row in order:
    shared = 0
    if previous is not None and temperature[row] == temperature[previous]:
      most = min(end[row], end[previous])
      differs = np.flatnonzero(tokens[row, :most] != tokens[previous, :most])
      shared = int(differs[0]) if len(differs) else int(most)
    walk.add(row, tokens[row, : end[row]], wanted[row, : end[row]], temperature[row], shared)
    previous = row
  info = PackInfo(unique=walk.placed, row_tokens=int((end[order] - 1).sum()), bins=walk.bin + 1)
  return walk.finish(), info if len(order) else info._replace(bins=0)


def pack_rows(rows: Rows, wanted, sizes: Layout, *, lanes: int = 1) -> tuple[Packed, PackInfo]:
  """`pack` of rows that lie on the devices; wanted bool [N,T]."""
  tokens, wanted, temperature = hosts.host((rows.tokens, wanted, rows.temperature))
  return pack(tokens, wanted, temperature, sizes, lanes=lanes)


def _by_content(tokens, end, temperature):
  """Rows with something wanted, sorted by temperature and then token by token; prefixes come first."""
  rows = np.flatnonzero(end > 0)
  inside = np.arange(tokens.shape[1])[None] < end[rows, None]
  content = np.where(inside, tokens[rows], -1)
  return rows[np.lexsort((*content.T[::-1], temperature[rows]))]


class _Walk:
  """The depth-first walk: fills one bin after the other."""

  def __init__(self, bins, sizes, num_rows, num_places):
    shape, reads = (bins, sizes.bin_tokens), (bins, sizes.bin_reads)
    self.sizes, self.num_bins = sizes, bins
    self.tokens = np.zeros(shape, np.int32)
    self.position = np.zeros(shape, np.int32)
    self.stop = np.tile(np.arange(1, sizes.bin_tokens + 1, dtype=np.int32), (bins, 1))
    self.source = np.zeros(reads, np.int32)
    self.target = np.zeros(reads, np.int32)
    self.temperature = np.ones(reads, np.float32)
    self.num_reads = np.zeros(bins, np.int32)
    self.place = np.full((num_rows, num_places), bins * sizes.bin_reads, np.int32)
    self.row_bin = np.full(num_rows, -1, np.int32)
    self.bin = self.used = self.reads = self.placed = 0
    self.path = np.zeros(num_places, np.int32)  # place of each token of the row the walk stands at
    self.depth = 0  # tokens of that row that have a place
    self.read_at = np.full(num_places, -1, np.int32)  # read of each token of that row

  def add(self, row, tokens, wanted, temperature, shared):
    """Walks on to a row of `end` tokens that agrees with the last one in the first `shared`."""
    inputs = len(tokens) - 1
    known = min(shared, inputs, self.depth)
    # A read is known if both rows agree on the token itself, not only on what comes before it.
    ask = np.flatnonzero(
      wanted & ((self.read_at[: len(tokens)] < 0) | (np.arange(len(tokens)) >= shared))
    )
    full = self.used + inputs - known > self.sizes.bin_tokens
    if full or self.reads + len(ask) > self.sizes.bin_reads:
      self._next_bin()
      known, shared, ask = 0, 0, np.flatnonzero(wanted)
    self._close(known)
    self.read_at[shared:] = -1
    b, new = self.bin, np.arange(self.used, self.used + inputs - known, dtype=np.int32)
    self.tokens[b, new] = tokens[known:inputs]
    self.position[b, new] = np.arange(known, inputs)
    self.path[known:inputs] = new
    self.depth = inputs
    self.used += len(new)
    self.placed += len(new)
    at = np.arange(self.reads, self.reads + len(ask), dtype=np.int32)
    self.source[b, at], self.target[b, at] = self.path[ask - 1], tokens[ask]
    self.temperature[b, at] = temperature
    self.read_at[ask] = at
    self.reads += len(ask)
    self.num_reads[b] = self.reads
    mine = np.flatnonzero(wanted)
    self.place[row, mine] = b * self.sizes.bin_reads + self.read_at[mine]
    self.row_bin[row] = b

  def _close(self, depth):
    """Leaves the subtree below the first `depth` tokens of the path."""
    self.stop[self.bin, self.path[depth : self.depth]] = self.used

  def _next_bin(self):
    self._close(0)
    self.bin += 1
    if self.bin == self.num_bins:
      raise ValueError(f"rows do not fit {self.num_bins} bins of {self.sizes.bin_tokens} tokens")
    self.used = self.reads = self.depth = 0
    self.read_at[:] = -1

  def finish(self) -> Packed:
    self._close(0)
    in_use = np.asarray(self.bin + 1 if self.placed else 0, np.int32)
    arrays: dict[str, Any] = {
      "tokens": self.tokens,
      "position": self.position,
      "stop": self.stop,
      "source": self.source,
      "target": self.target,
      "temperature": self.temperature,
      "num_reads": self.num_reads,
      "place": self.place,
      "row_bin": self.row_bin,
      "num_bins": in_use,
    }
    return Packed(**arrays)
