"""Prints the bytes that each device will need, before anything is allocated or compiled.

python -m launch.memory --policy=smollm2-135m --mesh=v5e16 --set=budget=256 --set=bin_tokens=2048
python -m launch.memory --config=experiments/quickstart/config.py

The devices of the mesh need not be there. Weights are not read: a policy is one of the named sizes, `tiny`,
or a folder with config.json.
"""

import dataclasses
import json
import pathlib
import sys

import jax
from absl import app
from jax.sharding import AbstractMesh

from launch import meshes, train
from rlvr_jax.core import table
from rlvr_jax.core.types import plain_table
from rlvr_jax.models import configs as sizes
from rlvr_jax.models.transformer import decoder
from rlvr_jax.recipes.compose import compose
from rlvr_jax.train import memory, pack
from rlvr_jax.train.config import Config
from rlvr_jax.train.forms import make_forms
from rlvr_jax.train.state import init_state, make_optimizer, make_schedule

TINY_VOCAB = 64


def model_of(config: Config) -> sizes.ModelConfig:
  """The sizes of the policy that a config names.

  Raises:
    ValueError: if they are not known without its weights.
  """
  card = pathlib.Path(config.policy).expanduser() / "config.json"
  if config.policy == "tiny":
    model = sizes.tiny(TINY_VOCAB)
  elif config.policy in sizes.CONFIGS:
    model = sizes.CONFIGS[config.policy]
  elif card.exists():
    model = sizes.from_hf(json.loads(card.read_text()))
  else:
    raise table.unknown("policy of known sizes", config.policy, ["tiny", *sizes.CONFIGS])
  return dataclasses.replace(
    model,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    cache_dtype=config.cache_dtype or None,
    remat=config.remat,
  )


def local(model: sizes.ModelConfig, tensor: int) -> sizes.ModelConfig:
  """The model as one of `tensor` devices runs it; heads that cannot be divided count whole."""
  cut = lambda num: num // tensor if num % tensor == 0 else num
  heads, kv_heads = model.num_heads, model.num_kv_heads
  if heads % tensor == kv_heads % tensor == 0:
    heads, kv_heads = heads // tensor, kv_heads // tensor
  return dataclasses.replace(
    model,
    num_heads=heads,
    num_kv_heads=kv_heads,
    mlp_dim=cut(model.mlp_dim),
    vocab_size=cut(model.vocab_size),
  )


def plan(config: Config) -> memory.Plan:
  """The bytes on one device of the config's mesh.

  Raises:
    ValueError: as the run would: an unknown name, sizes that do not fit, an axis that does not divide.
  """
  data, fsdp, tensor = shape = meshes.mesh_shape(config.mesh)
  mesh = AbstractMesh(shape, meshes.AXES)
  model = model_of(config)
  policy = decoder(model)
  recipe = compose(config.recipe, config.recipe_args, config.slots, kl_coef=config.kl_coef)
  optimizer = make_optimizer(config, make_schedule(config, recipe.updates), recipe.step_scale)
  whole = jax.eval_shape(policy.init, jax.random.key(0))
  forms = make_forms(config, policy, whole)
  params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), forms.trained)
  learner = jax.eval_shape(
    lambda p: init_state(recipe, optimizer, p, table=plain_table(1), num_places=1, seed=0).learner,
    params,
  )
  where = meshes.learner_shardings(learner, forms.learner, mesh)
  others = len(config.models) * memory.size(whole)  # as large as the policy, for all we know
  if config.lora_rank:
    others += memory.size(whole)
  if config.lora_rank or config.rollout_quant != "none":  # the weights of the sampler are a copy
    others += memory.size(jax.eval_shape(lambda p: _rolled(make_forms(config, policy, p)), whole))
  floats = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, "float32"), params)
  num_places = config.max_prompt_length + config.max_new_tokens
  return memory.plan(
    decoder(local(model, tensor)),
    params=memory.part(params, where.params) + others // (fsdp * tensor),
    optimizer=memory.part(learner.opt_state, where.opt_state),
    gradients=memory.part(floats, where.params),
    layout=pack.layout(config.budget, num_places, bin_tokens=config.bin_tokens),
    num_rows=config.budget,
    num_places=num_places,
    prompts=config.prompts,
    prompt_places=config.max_prompt_length,
    slots=min(config.recipe_args.get("slots") or config.budget, config.budget),
    rows_parts=data * fsdp,
    entropy=recipe.objective.needs_entropy,
    read_tokens=config.read_tokens,
  )


def _rolled(forms):
  return forms.rollout(forms.trained)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  try:
    config = train.build_config()
    bytes_of = plan(config)
  except ValueError as error:
    sys.exit(f"error: {error}")
  print(f"{config.policy} on mesh {config.mesh}, MiB on each device")
  for name, value in bytes_of._asdict().items():
    print(f"  {name:<12}{value / 2**20:>12,.1f}")
  print(
    f"at most, in an update {bytes_of.learn / 2**20:,.1f}, in sampling {bytes_of.decode / 2**20:,.1f}"
  )


if __name__ == "__main__":
  app.run(main)
