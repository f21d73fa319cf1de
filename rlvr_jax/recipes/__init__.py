"""RECIPES: name -> "module:factory". One file a published method; a factory fills the slots of a Recipe."""

RECIPES = {
  "grpo": "rlvr_jax.recipes.grpo:grpo",
  "dapo": "rlvr_jax.recipes.dapo:dapo",
}
