"""Monotone fits against cases that are known, crossings and powers of exact laws."""

import numpy as np
import pytest
from iterlin.study.collapse import crossing, power, variance_explained


def test_a_monotone_function_is_explained_and_noise_is_not():
    rng = np.random.default_rng(0)
    x = rng.permutation(np.geomspace(1e-4, 1e4, 200))
    assert variance_explained(x, np.tanh(np.log(x))) == pytest.approx(1)
    assert variance_explained(x, -np.sqrt(x)) == pytest.approx(1)
    assert variance_explained(x, rng.normal(size=200)) < 0.2
    valley = np.log(x) ** 2
    assert 0.2 < variance_explained(x, valley) < 0.6


def test_what_is_left_is_the_variance_within_equal_x():
    x = np.repeat([1.0, 2.0], 50)
    y = np.where(x > 1, 3.0, 0.0) + np.tile([1.0, -1.0], 50)
    between, within = 1.5**2, 1.0
    assert variance_explained(x, y) == pytest.approx(between / (between + within))


def test_missing_pairs_are_left_out_and_what_does_not_vary_is_not_explained():
    assert variance_explained([1, 2, np.nan, 3], [1, 2, 9, np.nan]) == pytest.approx(1)
    assert np.isnan(variance_explained([1, 2], [5, 5]))
    assert np.isnan(variance_explained([], []))


def test_where_a_power_law_crosses():
    x = np.geomspace(0.1, 1e3, 6)
    for exponent, level in ((1, 3.0), (2.5, 40.0)):
        assert crossing(x, x**exponent, level) == pytest.approx(level ** (1 / exponent))
    assert np.isnan(crossing(x, x, 1e4))
    assert np.isnan(crossing(x, x, 1e-3))
    # A level is passed where it is met, too; the first point has none below to come from.
    assert crossing([1.0, 2.0, 8.0], [0.2, 0.5, 0.5], 0.5) == pytest.approx(2.0)
    assert np.isnan(crossing([1.0, 2.0], [0.5, 0.9], 0.5))


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda: variance_explained([1, 2], [1, 2, 3]), "one shape"),
        (lambda: crossing([2, 1], [1, 2], 1.0), "increasing"),
        (lambda: crossing([1, 2], [0, 0], 1.0), "positive"),
    ],
)
def test_what_is_no_curve_is_refused(find, message):
    with pytest.raises(ValueError, match=message):
        find()


def test_the_power_of_a_power_law():
    x = np.array([1.0, 2.0, 5.0, np.nan])
    assert power(x, 3 * x**-1.5) == pytest.approx(-1.5)
    assert power([1.0, 2.0, 4.0, 8.0], [3.0, np.nan, 48.0, 192.0]) == pytest.approx(2.0)
    assert power([1.0, 4.0], [3.0, 6.0]) == pytest.approx(0.5)
    assert np.isnan(power([1.0, np.nan], [1.0, 2.0]))
