"""When runs with different schedules generalise, and the transformer that they train."""

import jax
import numpy as np
import xarray as xr

from book.beyond import grokking_schedules_helpers as helpers


def test_a_run_needs_the_updates_of_its_first_look_above_the_level():
    accuracy = [[[0.1, 0.97, 0.5, 1.0], [0.1, 0.2, 0.3, 0.9]]]
    updates = np.broadcast_to([0, 2, 4, 6], (1, 2, 4))
    dims = ["schedule", "seed", "look"]
    ds = xr.Dataset(
        {"test_accuracy": (dims, accuracy), "updates": (dims, updates), "step": ("look", range(4))}
    )
    found = helpers.with_needs(ds)
    assert found.reached.values.tolist() == [[True, False]]
    assert found.needed.values.tolist() == [[2, 6]]  # a run that falls short counts in full
    assert found.needed_steps.values.tolist() == [[1, 3]]


def test_the_transformer_tells_first_from_second_number_and_treats_pairs_alone():
    params = helpers.transformer_params(jax.random.key(0), 5, 8, 8)
    pairs = np.array([[1, 3], [3, 1], [0, 4]], np.int32)
    logits = helpers.transformer(params, pairs)
    assert logits.shape == (3, 5)
    assert not np.allclose(logits[0], logits[1])
    np.testing.assert_allclose(helpers.transformer(params, pairs[:1]), logits[:1], rtol=1e-6)
