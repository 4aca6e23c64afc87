"""The character transformer, its text and its visits."""

from functools import partial
from itertools import islice

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from curves import assert_statistics
from problems import start

from book.beyond import language_model_helpers as helpers

PARAMS = start(partial(helpers.initial, width=4, length=6))
X = jnp.asarray(np.random.default_rng(1).integers(0, len(helpers.ALPHABET), (5, 6)))


def test_a_character_is_predicted_from_those_before_it():
    changed = X.at[:, 3].set((X[:, 3] + 1) % len(helpers.ALPHABET))
    one, other = (jax.jit(helpers.network)(PARAMS, x) for x in (X, changed))
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-6)
    assert np.abs(one[:, 3:] - other[:, 3:]).max(-1).min() > 1e-4


def test_a_visit_is_one_linearisation_of_the_engine_flow(monkeypatch):
    def small(params, x):
        return jnp.tanh(jax.nn.one_hot(x, len(helpers.ALPHABET)) @ params["token"]) @ params["out"]

    monkeypatch.setattr(helpers, "network", small)
    data, params = (X, jnp.roll(X, -1, 1)), {name: PARAMS[name] for name in ("token", "out")}
    found, proxy_loss, _ = helpers.expansion(params, *data, 3.0)
    algorithm = il.Algorithm(small, helpers.ENTROPY, optimizer=0.01)
    run = {"schedule": 300, "num_steps": 300, "engine": "flow", "tolerance": helpers.TOLERANCE}
    watch = il.Watch({"train": data}, at=[300])
    state, history = il.train(algorithm, params, data, watch=watch, progress=False, **run)
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


def test_statistics_compare_the_arms_that_their_claims_name():
    nan = np.nan
    new = [[4, 3.6, 3.4, 3.2], [4, 3, 2.8, 2.6], [4, 2.9, 2.5, nan], [4, 3, 2.9, 2.7]]
    new.append([4, 3.5, 3.0, 2.7])
    same = [*new[:2], [4, 3.1, 3.3, nan], *new[3:]]
    train = np.full((2, 5, 4), nan)
    train[1, 1], train[1, 2] = [nan, 3, 2, 1], [nan, 2.5, 1, nan]
    dims, losses = ("kind", "arm", "seed", "visit"), {"held_loss": [new, same], "train_loss": train}
    variables = {n: (dims, np.repeat(np.array(v)[:, :, None], 4, 2)) for n, v in losses.items()}
    arms = ["1", "10", "100", helpers.GROWING, helpers.ADAM]
    axes = {"kind": [helpers.NEW, helpers.SAME], "arm": arms, "seed": range(4), "visit": range(4)}
    found = helpers.add_statistics(xr.Dataset(variables, axes), 2.8)
    expected = {"adam_ratio": 1.5, "ratio_10": 1, "end_gap_new": -0.3, "end_gap_1": 0.6}
    expected |= {"end_gap_same": 0.5, "long_over_10": 0.5, "grown_over_10": 0.1}
    expected |= {"matched_gap": 3.1 - 2.9, "all_reach": 1}  # between visits 1 and 2 of the other
    assert_statistics(found, expected)
    never = helpers.first_below(found.held_loss.sel(kind=helpers.NEW), 2.8, "visit")
    np.testing.assert_array_equal(never.isel(seed=0), [np.nan, 2, 2, 3, 3])


def test_a_run_that_is_kept_is_not_trained_again(tmp_path):
    trained = []

    def run():
        trained.append(1)
        return {"held_loss": np.array([3.0, 2.0])}

    for settings in ((PARAMS, 1), (PARAMS, 1), (PARAMS, 2)):
        found = helpers.kept(run, settings, tmp_path)
        np.testing.assert_array_equal(found["held_loss"], [3.0, 2.0])
    assert len(trained) == len(list(tmp_path.iterdir())) == 2
