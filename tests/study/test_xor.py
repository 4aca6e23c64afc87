"""The factor between two curves is found again, whatever the axes."""

import numpy as np
import pytest

from book.experiments.xor_helpers import stretch

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


def test_stretch_the_other_way_is_its_inverse():
    u = 0.3 * AXIS
    there = stretch(AXIS, bend(AXIS), u, bend(AXIS))
    back = stretch(u, bend(AXIS), AXIS, bend(AXIS))
    assert there == pytest.approx(1 / 0.3, rel=0.03)
    assert there * back == pytest.approx(1, rel=0.05)
