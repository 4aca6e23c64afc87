"""Draw the batch, the augmentation and the network's key of a step from the key of the run.

Data are (x, y), or (x, y, indices) for a run that trains on the examples at these indices.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from iterlin.linearise import examples
from iterlin.training.state import TrainState

# Folded into the run's key. Epochs count from 0, so that these numbers do not collide with one.
AUGMENTATION, NETWORK = 2**31 - 1, 2**31 - 2


def example_indices(data: PyTree) -> Int[Array, " N"]:
    """Return the indices of the examples that a run trains on."""
    return data[2] if len(data) == 3 else jnp.arange(examples.num_examples(data[1]))


def training_examples(data: PyTree) -> tuple[PyTree, PyTree]:
    """Return the inputs and targets of all examples that a run trains on."""
    x, y = data[:2]
    return examples.take((x, y), data[2]) if len(data) == 3 else (x, y)


def batch(
    state: TrainState,
    data: PyTree,
    batch_size: int | None,
    augment: Callable[[Array, PyTree], PyTree] | None,
) -> tuple[Int[Array, " N"], PyTree, PyTree]:
    """Draw the batch of a step, without replacement within an epoch: (order, x, y).

    order: the order of the examples in this epoch (N,).
    """
    order = state.order
    if batch_size is None:
        x, y = training_examples(data)
    else:
        per_epoch = order.shape[0] // batch_size
        epoch, index = state.step // per_epoch, state.step % per_epoch
        # A sweep does not batch the step counter, so that vmap keeps this cond a branch and the
        # examples are shuffled once an epoch.
        order = jax.lax.cond(
            index == 0,
            lambda: jax.random.permutation(
                jax.random.fold_in(state.key, epoch), example_indices(data)
            ).astype(jnp.int32),
            lambda: state.order,
        )
        chosen = jax.lax.dynamic_slice_in_dim(order, index * batch_size, batch_size)
        x, y = examples.take(data[:2], chosen)
    if augment is not None:
        x = augment(step_key(state, AUGMENTATION), x)
    return order, x, y


def step_key(state: TrainState, stream: int) -> Array:
    """Return the PRNG key of this step for what is drawn by the number of a stream."""
    return jax.random.fold_in(jax.random.fold_in(state.key, stream), state.step)
