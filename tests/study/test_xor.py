"""Alignment of eq. (11) against its definition; the factor between two curves is found again."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from iterlin_study.runs.features import RANDOM_ALIGNMENT, alignment

from book.experiments.xor_helpers import STEP_SIZE, add_statistics, stretch

CORNERS = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) / np.sqrt(2)


def test_alignment_is_the_largest_cosine_to_a_corner():
    limits = [[[3.0, 3.0], [-2.0, 2.0], [0.0, 5.0], [-1e-3, 0.0]]]
    weights = np.concatenate([np.random.default_rng(0).normal(size=(5, 4, 2)), limits])
    cosines = weights @ CORNERS.T / np.linalg.norm(weights, axis=-1, keepdims=True)
    np.testing.assert_allclose(alignment(jnp.asarray(weights)), cosines.max(-1), rtol=1e-12)
    assert np.isnan(alignment(jnp.zeros(2)))


def test_mean_alignment_of_random_features():
    angles = (np.arange(10_000) + 0.5) / 10_000 * 2 * np.pi
    found = alignment(jnp.stack([jnp.cos(angles), jnp.sin(angles)], 1))
    np.testing.assert_allclose(found.mean(), RANDOM_ALIGNMENT, rtol=1e-6)


AXIS = np.geomspace(0.1, 1e4, 26)
THIRDS = np.geomspace(1.0, 3e3, 13)  # of a decade, and shorter


def bend(x):
    return 0.9 + 0.08 / (1 + x / 30)


@pytest.mark.parametrize(
    ("u", "factor", "rel"), [(AXIS, 0.05, 0.03), (AXIS, 7.0, 0.03), (THIRDS, 0.4, 0.1)]
)
def test_stretch_is_found_again_whatever_the_scale_of_the_values(u, factor, rel):
    found = stretch(AXIS, bend(AXIS), u, bend(factor * u))
    assert found == pytest.approx(factor, rel=rel)
    assert stretch(AXIS, 5 - 3 * bend(AXIS), u, 5 - 3 * bend(factor * u)) == found


def test_the_exchange_rate_is_that_of_the_runs_that_fit():
    periods, rate = np.geomspace(10, 1e5, 17), 0.4
    times = STEP_SIZE * periods
    dampings = np.append(rate / times, 2.0)
    dampings[dampings.argmin()] = 2e-4
    curves = {"period": bend(times), "damping": bend(rate / dampings)}
    coordinates = {"period": periods, "damping": dampings, "scale": ["small"], "seed": range(12)}
    live = xr.Dataset(coords=coordinates)
    live["test_accuracy_period"] = ("scale", "period", "seed"), np.ones((1, 17, 12))
    for axis, values in curves.items():
        shape = (1, len(values), 12)
        fit = np.where(np.arange(12) < 11, 0.5, 2.0) * np.ones(shape)  # the last seed does not fit
        full = np.where(fit > 1, 0.1, values[:, None])[..., None]
        live[f"alignment_{axis}"] = ("scale", axis, "seed", "unit"), full
        live[f"train_mse_{axis}"] = ("scale", axis, "seed"), fit
    found = add_statistics(live)
    assert float(found.exchange_rate[0]) == pytest.approx(rate, rel=0.05)
    drop = bend(times[0]) - bend(times[-1])
    np.testing.assert_allclose(found.alignment_drop_period_small[0], drop)
    np.testing.assert_allclose(found.accuracy_change_small, 0)
