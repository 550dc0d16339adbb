"""JAX: any tree that it knows, and a state that stays on its device."""

from meshmend.job.frameworks.jax.tree import copied as copied
from meshmend.job.frameworks.jax.tree import is_immutable as is_immutable
from meshmend.job.frameworks.jax.tree import key_of as key_of
from meshmend.job.frameworks.jax.tree import leaves_of as leaves_of
from meshmend.job.frameworks.jax.tree import placed as placed
from meshmend.job.frameworks.jax.tree import rebuilt as rebuilt
