"""The factor between two curves is found again, whatever the axes, and bad curves are refused."""

import numpy as np
import pytest
from iterlin.study import curves

AXIS = np.geomspace(0.1, 1e4, 26)
THIRDS = np.geomspace(1.0, 3e3, 13)  # of a decade, and shorter


def bend(x):
    return 0.9 + 0.08 / (1 + x / 30)


@pytest.mark.parametrize(
    ("u", "factor", "rel"), [(AXIS, f, 0.03) for f in (0.05, 0.54, 1.0, 7.0)] + [(THIRDS, 0.4, 0.1)]
)
def test_stretch_is_found_again_whatever_the_scale_of_the_values(u, factor, rel):
    found = curves.stretch(AXIS, bend(AXIS), u, bend(factor * u))
    assert found == pytest.approx(factor, rel=rel)
    assert curves.stretch(AXIS, 5 - 3 * bend(AXIS), u, 5 - 3 * bend(factor * u)) == found


def test_stretch_the_other_way_is_its_inverse():
    u = 0.3 * AXIS
    there = curves.stretch(AXIS, bend(AXIS), u, bend(AXIS))
    back = curves.stretch(u, bend(AXIS), AXIS, bend(AXIS))
    assert there == pytest.approx(1 / 0.3, rel=0.03)
    assert there * back == pytest.approx(1, rel=0.05)


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
    ("curve", "level", "expected"),
    [
        ([0, 1, 2, 1, 3], 0.0, 0.0),
        ([0, 1, 2, 1, 3], 1.5, 0.375),
        ([0, 1, 2, 1, 3], 2.0, 0.5),
        ([0, 1, 2, 1, 3], 9.0, 1.0),
        ([0, 1, 2, 1, 3], np.nan, np.nan),
        ([0, 1, 2, 1, np.nan], 0.5, np.nan),
    ],
)
def test_where_a_curve_first_is_at_a_level(curve, level, expected):
    found = curves.first_reached(curve, level, [0, 2, 4, 6, 8])
    assert found == pytest.approx(expected, nan_ok=True)
