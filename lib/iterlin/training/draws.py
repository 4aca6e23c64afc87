"""What a step draws, all from its run's key: its examples, their augmentation, the network's key.

data is (x, y), or (x, y, examples) of a run that trains on some of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from iterlin.linearise import examples
from iterlin.training.state import TrainState

# Streams of the run's key beside those of the epochs, which count from 0.
_AUGMENTATION, _NETWORK = 2**31 - 1, 2**31 - 2


def chosen_examples(data) -> Int[Array, " N"]:
    """Which of the examples of x and y a run trains on."""
    return data[2] if len(data) == 3 else jnp.arange(examples.num_examples(data[1]))


def all_of(data) -> tuple[PyTree, PyTree]:
    """Inputs and targets of all the examples that a run trains on."""
    x, y = data[:2]
    return examples.take((x, y), data[2]) if len(data) == 3 else (x, y)


def batch(
    state: TrainState,
    data,
    batch_size: int | None,
    augment: Callable[[Array, PyTree], PyTree] | None,
) -> tuple[Int[Array, " N"], PyTree, PyTree]:
    """(order, x, y): the epoch's order of the examples, and those of this step."""
    order = state.order
    if batch_size is None:
        x, y = all_of(data)
    else:
        per_epoch = order.shape[0] // batch_size
        epoch, index = state.step // per_epoch, state.step % per_epoch
        # The step is not batched in a sweep, so this stays a branch: one shuffle an epoch.
        order = jax.lax.cond(
            index == 0,
            lambda: jax.random.permutation(
                jax.random.fold_in(state.key, epoch), chosen_examples(data)
            ).astype(jnp.int32),
            lambda: state.order,
        )
        chosen = jax.lax.dynamic_slice_in_dim(order, index * batch_size, batch_size)
        x, y = examples.take(data[:2], chosen)
    if augment is not None:
        x = augment(_of_step(state, _AUGMENTATION), x)
    return order, x, y


def network_key(state: TrainState) -> Array:
    """Return the key that this step gives to a keyed network."""
    return _of_step(state, _NETWORK)


def _of_step(state: TrainState, stream: int) -> Array:
    return jax.random.fold_in(jax.random.fold_in(state.key, stream), state.step)
