"""How filters change, on weights that move along known directions."""

import numpy as np
from numpy.testing import assert_allclose

from book.experiments.filters_helpers import add_statistics, measured


def test_change_cosine_and_the_fraction_at_which_k_1_has_moved_as_far():
    times = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    start, along, across = np.eye(3 * 3 * 4)[:3].reshape(3, 3, 3, 1, 4)
    directions = along, np.sqrt(0.75) * across + 0.5 * along  # 60 degrees apart
    lengths = times, times / 2
    one = [
        start + length[:, None, None, None, None] * direction
        for length, direction in zip(lengths, directions, strict=True)
    ]
    weights = np.repeat(np.array(one)[:, None], 4, axis=1)
    found = measured(weights, times, num_columns=2)
    assert_allclose(found.moved, np.repeat(np.array(lengths)[:, None], 4, axis=1))
    assert_allclose(found.cosine, 0.5)
    assert_allclose(found.fraction, 0.5)
    assert_allclose(found.column_time, [2, 4])
    assert found["filters"].shape == (2, 2, 3, 3, 1, 3)
    assert_allclose(found["filters"][0, 1], 4 * along[..., :3])
    judged = add_statistics(found)
    assert_allclose(judged.change_ratio, 0.5)
    assert_allclose(judged.cosine_final, 0.5)
