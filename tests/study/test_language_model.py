"""The character transformer, its text and its visits."""

from itertools import islice

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from book.beyond import language_model_helpers as helpers

PARAMS = helpers.initial(jax.random.key(0), 4, 6)
X = jax.random.randint(jax.random.key(1), (5, 6), 0, len(helpers.ALPHABET))


def test_a_character_is_predicted_from_those_before_it():
    changed = X.at[:, 3].set((X[:, 3] + 1) % len(helpers.ALPHABET))
    one, other = (helpers.network(PARAMS, x) for x in (X, changed))
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-6)
    assert np.abs(one[:, 3:] - other[:, 3:]).max(-1).min() > 1e-4


def test_a_visit_is_one_linearisation_of_the_engine_flow():
    data = X, jnp.roll(X, -1, 1)
    found, proxy_loss, _ = helpers.expansion(PARAMS, *data, 3.0)
    algorithm = il.Algorithm(helpers.network, helpers.ENTROPY, optimizer=0.01)
    run = {"schedule": 300, "num_steps": 300, "engine": "flow", "tolerance": helpers.TOLERANCE}
    watch = il.Watch({"train": data}, at=[300])
    state, history = il.train(algorithm, PARAMS, data, watch=watch, progress=False, **run)
    np.testing.assert_allclose(proxy_loss, history["train_loss_proxy"][-1], rtol=1e-4)
    for name, leaf in state.params.items():
        np.testing.assert_allclose(found[name], leaf, rtol=1e-3, atol=1e-4)


def test_new_text_is_seen_once_and_the_same_text_at_every_visit():
    rows = np.arange(7)[:, None]
    text = helpers.Text((rows, rows + 1), (rows, rows))
    for again, expected in ((False, [0, 1, 1, 1, 1, 1, 1]), (True, [0, 0, 0, 0, 0, 3, 3])):
        visits = islice(helpers.batches(text, 2, again, 0), 3)
        counts = np.bincount(np.concatenate([x for x, _ in visits]).ravel(), minlength=7)
        assert sorted(counts) == expected


def test_no_paragraph_is_in_two_files():
    texts = [text for part in helpers.prose(["svm"]) for text in part]
    assert len(texts) == len(set(texts)) > 50


def test_the_gap_at_equal_training_loss_is_read_between_visits():
    losses = {
        "train_loss": (("arm", "seed", "visit"), [[[np.nan, 3.0, 1.5]], [[np.nan, 2.0, 1.0]]]),
        "held_loss": (("arm", "seed", "visit"), [[[4.0, 3.5, 3.0]], [[4.0, 2.4, 2.6]]]),
    }
    same = xr.Dataset(losses, {"arm": ["100", "10"], "seed": [0]})
    np.testing.assert_allclose(helpers.matched_gap(same, "100", "10"), [3.0 - 2.5])


def test_a_level_that_is_not_reached_has_no_visit():
    losses = xr.DataArray(
        [[3.0, 2.0, 1.0], [3.0, 2.9, np.nan]], {"visit": [0, 1, 2]}, ["s", "visit"]
    )
    np.testing.assert_array_equal(helpers.first_below(losses, 2.0, "visit"), [1, np.nan])


def test_a_run_that_is_kept_is_not_trained_again(tmp_path):
    trained = []

    def run():
        trained.append(1)
        return {"held_loss": np.array([3.0, 2.0])}

    for settings in ((PARAMS, 1), (PARAMS, 1), (PARAMS, 2)):
        found = helpers.kept(run, settings, tmp_path)
        np.testing.assert_array_equal(found["held_loss"], [3.0, 2.0])
    assert len(trained) == len(list(tmp_path.iterdir())) == 2
