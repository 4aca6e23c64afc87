"""The factor between two curves is found again, whatever the axes, and bad curves are refused."""

import numpy as np
import pytest
from iterlin.study import curves

AXIS = np.geomspace(0.1, 1e4, 26)


def bend(x):
    return 0.9 + 0.08 / (1 + x / 30)


@pytest.mark.parametrize("factor", [0.05, 0.54, 1.0, 7.0])
def test_stretch_is_found_again(factor):
    found = curves.stretch(AXIS, bend(AXIS), AXIS, bend(factor * AXIS))
    assert found == pytest.approx(factor, rel=0.03)


def test_stretch_of_curves_on_other_axes():
    # A curve over decades, the other over thirds of a decade and shorter: 0.4 of the first's axis.
    u = np.geomspace(1.0, 3e3, 13)
    found = curves.stretch(AXIS, bend(AXIS), u, bend(0.4 * u))
    assert found == pytest.approx(0.4, rel=0.1)


def test_stretch_the_other_way_is_its_inverse():
    u = 0.3 * AXIS
    there = curves.stretch(AXIS, bend(AXIS), u, bend(AXIS))
    back = curves.stretch(u, bend(AXIS), AXIS, bend(AXIS))
    assert there == pytest.approx(1 / 0.3, rel=0.03)
    assert there * back == pytest.approx(1, rel=0.05)


def test_stretch_does_not_see_a_common_scale_of_the_values():
    once = curves.stretch(AXIS, bend(AXIS), AXIS, bend(0.54 * AXIS))
    again = curves.stretch(AXIS, 5 - 3 * bend(AXIS), AXIS, 5 - 3 * bend(0.54 * AXIS))
    assert once == again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 0.0], [1, 2], [1, 2], [1, 2]), "x must be"),
        (([1.0, 2.0], [1, 2], [2, 1], [1, 2]), "u must be two or more increasing numbers"),
        (([1.0], [1], [1, 2], [1, 2]), "x must be two or more increasing numbers"),
        (([1.0, 2.0], [1, 2, 3], [1, 2], [1, 2]), "values over x must be 2 finite numbers"),
        (([1.0, 2.0], [1, 2], [1, 2], [1, np.nan]), "values over u must be 2 finite numbers"),
    ],
)
def test_no_stretch_of_what_is_no_curve(arguments, message):
    with pytest.raises(ValueError, match=message):
        curves.stretch(*arguments)


@pytest.mark.parametrize(
    ("level", "expected"), [(0.0, 0.0), (1.5, 0.375), (2.0, 0.5), (9.0, 1.0), (np.nan, np.nan)]
)
def test_where_a_curve_first_is_at_a_level(level, expected):
    found = curves.first_reached([0.0, 1.0, 2.0, 1.0, 3.0], level, [0, 2, 4, 6, 8])
    assert found == pytest.approx(expected, nan_ok=True)


def test_a_curve_that_breaks_reaches_nothing():
    assert np.isnan(curves.first_reached([0.0, 1.0, np.nan], 0.5, [0, 1, 2]))
