"""Every type that two packages share: pytrees of data, and bundles of functions.

Data are `flax.struct.PyTreeNode`s of arrays; behaviour is a `NamedTuple` of functions. Letters in the
shape comments: B prompts in a round, N rows, T places of a row, M prompts in the table, V vocabulary,
E embedding, L layers, S slots or cache rows, C cache places or candidates, K key-value heads, D head
size, U places of a bin, R log-probs read from a bin.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Params = Any  # a pytree of arrays
Knobs = Mapping[str, Array]  # numbers that controllers adapt during a run

# Row status. A row is closed when it is not OPEN; the status says why.
OPEN, EOS, LENGTH, KILLED, ERROR, STOP = range(6)
STATUS_NAMES = ("open", "eos", "length", "killed", "error", "stop")


# --------------------------------------------------------------------------------------------------
# The data path


class Rows(flax.struct.PyTreeNode):
  """N rows of T places: prompts, unfinished and finished rollouts alike. Right-padded.

  Row n holds a prompt in places [0, response_start) and a response in [response_start, length).
  Every leaf has the row axis first, `extras` included, so that moving rows is one gather.
  """

  tokens: Array  # int32 [N,T]
  behavior_logprobs: Array  # float32 [N,T], under the law sampled from; 0 where not sampled
  full_logprobs: Array  # float32 [N,T], at sampling, under the whole softmax at the temperature
  entropy: Array  # float32 [N,T], of the whole softmax the token was drawn from, in nats
  version: Array  # int32 [N,T], learner step of the params that sampled the token; -1: not sampled
  response_mask: Array  # bool [N,T], True: the token is the policy's own and may be trained
  length: Array  # int32 [N], places in use
  response_start: Array  # int32 [N], places of the prompt
  limit: Array  # int32 [N], the row closes when length reaches this
  status: Array  # int32 [N], OPEN EOS LENGTH KILLED ERROR STOP
  uid: Array  # uint32 [N,2], key data of the row's own randomness; unique over a run
  group: Array  # int32 [N] < N, rows that are compared with each other
  context: Array  # int32 [N], rows of equal context have equal tokens[:response_start]
  prompt_id: Array  # int32 [N], index into the prompt table
  source: Array  # int32 [N], data source of the prompt
  temperature: Array  # float32 [N], of the law it is sampled from
  wave: Array  # int32 [N], which wave of the round drew it
  parent: Array  # int32 [N], row it forked from; -1: none
  fork_at: (
    Array  # int32 [N], places before it are its parent's, and equal to them; 0 without a parent
  )
  correct: Array  # float32 [N], the verifier's verdict; beliefs, allocators and filters read this
  reward: Array  # float32 [N], shaped from the verdict; the loss sees this
  prior: Array  # float32 [N], believed solve rate of the prompt before this step
  trials: Array  # float32 [N], rows its group had before anything was dropped
  successes: Array  # float32 [N], how many of those were correct
  valid: Array  # bool [N], False: padding, to be left alone
  extras: dict[str, Array]  # named [N,...] arrays, e.g. "reference_logprobs"

  @property
  def finished(self) -> Array:
    """bool [N]: the policy ended the response itself, with an end token or a stop string."""
    return (self.status == EOS) | (self.status == STOP)

  @property
  def truncated(self) -> Array:
    """bool [N]: cut off at the length limit."""
    return self.status == LENGTH

  @property
  def loss_mask(self) -> Array:
    """bool [N,T]: tokens of valid rows that may be trained."""
    return self.response_mask & self.valid[:, None]

  @property
  def response_length(self) -> Array:
    """int32 [N]: places after the prompt."""
    return self.length - self.response_start


class TokenStats(flax.struct.PyTreeNode):
  """What the policy being trained says of the tokens in Rows; 0 where it was not asked."""

  logprobs: Array  # float32 [N,T], log-prob of each token at the row's own temperature
  # float32 [N,T], in nats, of the whole softmax the token comes from; None unless the objective asks
  entropy: Array | None = None


class Packed(flax.struct.PyTreeNode):
  """Rows laid out for the learner: each distinct prefix once, in bins of U places.

  Token u of a bin sees token v iff v <= u < stop[v]. Padding sees itself alone.
  """

  tokens: Array  # int32 [bins,U]
  position: Array  # int32 [bins,U], position in its own row
  stop: Array  # int32 [bins,U]
  source: Array  # int32 [bins,R], place in the bin whose hidden state predicts `target`
  target: Array  # int32 [bins,R], the token predicted
  temperature: Array  # float32 [bins,R]
  num_reads: Array  # int32 [bins], reads in use; they come first
  place: Array  # int32 [N,T], index into the flat [bins*R] reads; bins*R where there is none
  row_bin: Array  # int32 [N], the bin that holds the row; -1: in none
  num_bins: Array  # int32 [], bins in use


# --------------------------------------------------------------------------------------------------
# Views: what a token may attend to


class KVCache(flax.struct.PyTreeNode):
  """Keys and values of S rows; place c of a row holds position c, unless a view says otherwise.

  Keys lie [D,C] and values [C,D], as the two products of a decoding step want them: with both as
  [C,K,D] XLA transposes the cache at every step, and attention is ten times slower on a CPU. One
  leaf a layer, not one stacked array: a stacked one is copied at each update.
  """

  k: tuple[Array, ...]  # L arrays [S,K,D,C]
  v: tuple[Array, ...]  # L arrays [S,K,C,D]
  # An int8 cache holds code = round(x / scale), with scale = max|x| / 127 of each token and head.
  k_scale: tuple[Array, ...] = ()  # L arrays float32 [S,K,C], or none
  v_scale: tuple[Array, ...] = ()

  @property
  def places(self) -> int:
    return self.v[0].shape[2]


class Shared(flax.struct.PyTreeNode):
  """A decoding view: prompts held once, and what each of S slots has beyond its prompt.

  Slot s sees the first `start[s]` places of prompt `context[s]`, and its own cache, whose place c holds
  position start[s] + c. Slots of one prompt attend to it together, W at a time: tile t is X prompts that
  lie side by side, with W slots each. A tile costs the same however many of its slots are in use.
  """

  own: KVCache  # [S,C]
  prompts: KVCache  # [B,P]
  start: Array  # int32 [S]
  tile_slot: Array  # int32 [tiles,X,W], S where there is none
  tile_prompt: Array  # int32 [tiles], the first of the tile's X prompts
  num_tiles: Array  # int32 [], tiles in use; they come first


class Spans(flax.struct.PyTreeNode):
  """No cache: token u of a row sees token v iff v <= u < stop[v].

  One integer a key carries plain causal rows (stop = T), packing, shared prefixes and padding.
  """

  stop: Array  # int32 [N,T]


View = KVCache | Shared | Spans


class Policy(NamedTuple):
  """A language model as pure functions; the rest of the code sees nothing else of it."""

  init: Callable[[Array], Params]  # (key) -> params
  # (params, tokens [N,T], positions [N,T], valid [N,T], view) -> (hidden [N,T,E], view).
  # With a cache the keys of valid tokens are written at their positions, and a token sees every
  # place up to its own position: places that do not hold the row's tokens must lie beyond it.
  hidden: Callable[..., tuple[Array, Any]]
  logits: Callable[[Params, Array], Array]  # (params, hidden [...,E]) -> float32 [...,V]
  init_cache: Callable[[int, int], KVCache]  # (rows S, places C) -> empty cache
  axes: Any  # like params, a tuple of logical axis names for each leaf (core.sharding)
  vocab_size: int
  config: Any = None


# --------------------------------------------------------------------------------------------------
# Prompts, beliefs and selection


class PromptTable(flax.struct.PyTreeNode):
  """All prompts of a task, tokenised, right-padded."""

  tokens: Array  # int32 [M,P]
  length: Array  # int32 [M]
  source: Array  # int32 [M], index into the task's source names
  difficulty: Array | None = None  # int32 [M], level by the source's own measure; 0: not known


def plain_table(num_prompts: int, *, source=None, difficulty=None) -> PromptTable:
  """A table of prompts without tokens, for what asks only how many there are, and of which kind.

  Args:
    source: [M] whole numbers; None: all 0.
    difficulty: [M] whole numbers; None: not known.
  """
  zeros: Any = np.zeros(num_prompts, np.int32)  # on the host: `init` reads numbers off it
  tokens: Any = np.zeros((num_prompts, 0), np.int32)
  as_table: Any = lambda x: zeros if x is None else np.asarray(x, np.int32)
  return PromptTable(
    tokens=tokens,
    length=zeros,
    source=as_table(source),
    difficulty=None if difficulty is None else as_table(difficulty),
  )


class Belief(flax.struct.PyTreeNode):
  """What is believed of the solve rate of C prompts."""

  mean: Array  # float32 [C]
  variance: Array  # float32 [C], spread of the belief, not p(1-p)
  evidence: Array  # float32 [C], pseudo-observations
  tokens: Array | None = None  # float32 [C], response tokens a rollout is expected to take


class Candidates(flax.struct.PyTreeNode):
  """What `select` may know, one entry a candidate prompt."""

  id: Array  # int32 [C]
  score: Array  # float32 [C]
  source: Array  # int32 [C]
  belief: Belief  # of [C] each
  taken: Array  # bool [C], already rolled out in this step
  visited: Array  # bool [C], already drawn in this epoch


class Selection(NamedTuple):
  index: Array  # int32 [B], into the candidates
  valid: Array  # bool [B], False where there were too few candidates
  consumed: Array  # bool [C], spent for this epoch: chosen, or passed over on purpose


class Prompts(flax.struct.PyTreeNode):
  """The B prompts of one round."""

  id: Array  # int32 [B]
  tokens: Array  # int32 [B,P]
  length: Array  # int32 [B]
  source: Array  # int32 [B]
  score: Array  # float32 [B]
  belief: Belief  # of [B] each
  valid: Array  # bool [B]


class Round(flax.struct.PyTreeNode):
  """Prompts of a round and every row so far: what a later wave may look at."""

  prompts: Prompts
  rows: Rows
  wave: Array  # int32 []
  step: Array  # int32 []


class Tally(flax.struct.PyTreeNode):
  """Everything generated in a step, for each prompt of the table, dropped rows included."""

  trials: Array  # float32 [M], verified rows
  successes: Array  # float32 [M]
  drawn: Array  # int32 [M], rows sampled, whatever became of them; row uids count on it
  tokens: Array  # int32 [M], response tokens generated


class Feedback(flax.struct.PyTreeNode):
  """What controllers learn from, after the update."""

  rows: Rows
  advantage: Array  # float32 [N,T]
  entropy: Array  # float32 [], mean over trained tokens, in nats
  tally: Tally
  epoch: Array  # int32 []
  step: Array  # int32 []


# --------------------------------------------------------------------------------------------------
# Slots: bundles of functions that a recipe chooses


class BeliefModel(NamedTuple):
  init: Callable  # (table) -> state
  update: Callable  # (state, tally) -> state, once a step over the whole table
  belief: Callable  # (state, id [C]) -> Belief


class PromptPosterior(NamedTuple):
  """A belief model with an acquisition: see posterior.acquisition.scored."""

  init: Callable  # (table) -> state
  update: Callable  # (state, tally) -> state
  belief: Callable  # (state, id [C]) -> Belief
  score: Callable  # (state, key, id [C], knobs) -> float32 [C]


class Allocator(NamedTuple):
  """How many rows each prompt of a round gets, in one or more waves."""

  plan: Callable  # (num_prompts, budget) -> static rows of each wave, summing to at most budget
  init: Callable  # (prompts, knobs) -> state
  next: Callable  # (state, round, width static, knobs) -> (counts int32 [B], sum <= width; state)


class Objective(NamedTuple):
  """The loss of each token. A row's loss may depend on that row alone: see train.learn."""

  loss: Callable  # (stats, rows, advantage, knobs) -> (loss float32 [N,T], metrics)
  # True: loss and gradient are 0 where the advantage is, so that rows without any advantage need not be
  # computed. False for a loss with terms of its own (a KL term, distillation).
  needs_advantage: bool
  # What of its row the loss of a token reads: "token" (itself), "prefix" (up to itself) or "row" (all of
  # it). Tokens that nothing of weight reads are not computed.
  reads: str = "row"
  needs: tuple[str, ...] = ()  # policies whose log-probs it reads: see Recipe.annotate
  survey: Callable | None = None  # (rows) -> rows with more extras; sees the whole batch, once
  needs_entropy: bool = False  # True: stats.entropy is there, with a gradient


class Controller(NamedTuple):
  """Numbers that adapt during a run."""

  init: Callable  # (table) -> state
  value: Callable  # (state) -> knobs
  update: Callable  # (state, feedback) -> state


class Replay(NamedTuple):
  """What is kept of one step for later ones; None: it does nothing there.

  Tokens that come back are `reused`, counted on their row.
  """

  init: Callable  # (table, num_places T) -> state
  # (state) -> int32 [M]: positive for prompts with rows that wait to go on, which the next round draws
  # first, the highest number first of all.
  held: Callable | None
  # (state, rows) -> (rows, reused int32 [N]): the seeds of a wave, with what is kept of them put in. A row
  # that comes in closed has been counted before: its wave is -1, and beliefs do not hear of it again.
  resume: Callable | None
  # (state, rows, key, step) -> (rows, reused int32 [N]): kept rows in places of padding, before `choose`.
  # Beliefs and the groups' trials and successes do not hear of them.
  merge: Callable | None
  # (state, rows, chosen, step) -> (state, banked bool [N]): what of a round is kept; banked rows leave it.
  add: Callable | None
  room: int = 0  # rows of a round that `merge` may fill, beyond those that are allocated
  check: Callable | None = None  # (state), host code after each round: raises if something was lost


class Schedule(NamedTuple):
  """When batches are collected and when they are learned from.

  Batch b is what update b learns from; version v of the parameters has had v updates. A token of version v
  in batch b has staleness b - v.
  """

  ahead: int  # batches that lie ready when an update begins; 0: each is collected after the update before
  bound: (
    int | None
  )  # no token that is trained may be staler; None: rows that are carried over may be
  # (queue, collect, learn, push) -> what learn gave: one update. See schedule.bounded_staleness.
  turn: Callable


class Condition(NamedTuple):
  """What rows see besides their prompt. Host code, before a wave is rolled out; None: nothing.

  A row that sees more has a longer prompt. Beliefs do not hear of it.
  """

  places: int = 0  # of a prompt, beyond those of the table
  # (policy, params, key of the run, round, rows, notes, *, version, eos_ids, texts) -> (rows, notes, cost):
  # the seeds of a wave, some of them with more in their prompts, or left out (not valid). `notes` is what it
  # keeps from wave to wave of a round, None at first; cost: ledger entry -> tokens [B] of its prompts.
  build: Callable | None = None
  strip: Callable | None = None  # (rows, prompts) -> rows as the loss sees them


class Refill(NamedTuple):
  """How rounds repeat until the batch is full: at most `rounds` (a hard cap)."""

  rounds: int = 1


class Recipe(NamedTuple):
  """One method: a choice for each slot. `recipes.grpo.grpo` fills them all."""

  posterior: PromptPosterior
  select: Callable  # (key, candidates, num static, knobs) -> Selection
  allocate: Allocator
  rollout: (
    Callable  # (policy, params, rows, version, eos_ids) -> (rows, DecodeCounts), see core.traits
  )
  reward: Callable  # (rows, knobs) -> float32 [N]
  choose: Callable  # (key, rows, knobs) -> bool [N], rows that enter the batch
  refill: Refill
  replay: Replay
  advantage: Callable  # (rows) -> float32 [N,T], 0 off the mask
  weigh: Callable  # (key, rows, advantage, knobs) -> float32 [N,T]
  objective: Objective
  aggregate: Callable  # (loss, weight, rows) -> (numerator [], denominator [])
  control: Controller
  schedule: Schedule
  # Policies whose log-probs are stored before the update, as rows.extras["<name>_logprobs"]: "old" is the
  # learner's own, before the first update on the batch; others come from the models of the run.
  annotate: tuple[str, ...] = ()
  # (update, gradient) -> factor of the step, for each tensor alone, before the learning rate.
  step_scale: Callable | None = None
  # A baseline that learns beside the policy: a name of train.critic.BASELINES, and its arguments.
  baseline: tuple[str, Any] | None = None
  updates: int = 1  # optimizer steps a batch
  condition: Condition = Condition()


# --------------------------------------------------------------------------------------------------
# State of a run


class Learner(flax.struct.PyTreeNode):
  """What the update changes. Donated to it."""

  params: Params
  opt_state: Any
  control: Any
  step: Array  # int32 [], updates done = version of params
  skipped: Array  # int32 [], updates not applied because something was not finite


class Collector(flax.struct.PyTreeNode):
  """What collecting rollouts changes."""

  posterior: Any
  replay: Any
  visited: Array  # bool [M], prompts already drawn in this epoch
  epoch: Array  # int32 []
  key: Array  # key of the run; constant


class Queued(flax.struct.PyTreeNode):
  """A batch that was collected and not learned from yet."""

  rows: Rows
  tally: Tally
  epoch: Array  # int32 [], when it was collected


class RunState(flax.struct.PyTreeNode):
  learner: Learner
  collector: Collector
  ledger: dict[str, Any]  # core.ledger: host int64 arrays
  baseline: Any = ()  # of a baseline that learns: see Recipe.baseline
  frozen: Any = None  # uint32: models.lora.fingerprint of weights that are read and not trained
  offered: Any = None  # host int64 [1], where the stream of prompts is; None: there is none
  verifier: Any = None  # host int64, what became of verifications so far: tasks.pool.COUNTERS
  queue: tuple[
    Queued, ...
  ] = ()  # batches that lie ready, the next one first: Schedule.ahead of them


def places(x: Array) -> Array:
  """int32 [1,T]: the index of each place of [N,T,...] x."""
  return jnp.arange(x.shape[1], dtype=jnp.int32)[None]
