"""Figures show the numbers that they were given."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from iterlin_study.report import plotting
from iterlin_study.report.intervals import mean_interval


@pytest.fixture
def axis():
    plotting.use_style()
    figure, axis = plt.subplots()
    yield axis
    plt.close(figure)


def test_infinity_lies_a_decade_beyond_the_finite_periods():
    places = plotting.period_positions([1, 10, 3000, math.inf])
    np.testing.assert_array_equal(places, [1, 10, 3000, 1e5])
    np.testing.assert_array_equal(plotting.period_positions([2, 5]), [2, 5])


@pytest.mark.parametrize("geometric", [False, True])
def test_band_draws_the_mean_and_its_interval(axis, geometric):
    samples = np.exp(np.random.default_rng(0).normal(size=(6, 4)))
    plotting.band(axis, np.arange(4), samples, geometric=geometric, label="mean")
    estimate, lower, upper = mean_interval(np.log(samples) if geometric else samples)
    if geometric:
        estimate, lower, upper = map(np.exp, (estimate, lower, upper))
    np.testing.assert_allclose(axis.get_lines()[0].get_ydata(), estimate)
    edges = axis.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([edges.min(), edges.max()], [lower.min(), upper.max()])


def test_points_draw_error_bars_and_none_for_three_samples(axis):
    samples = np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, np.nan]])
    plotting.points(axis, [1, 2], samples)
    interval = mean_interval(samples)
    segments = axis.collections[0].get_segments()
    np.testing.assert_allclose(segments[0][:, 1], [interval.lower[0], interval.upper[0]])
    np.testing.assert_allclose(segments[1][:, 1], [6, 6])


def test_the_print_of_a_figure_can_be_read_on_a_phone():
    plotting.use_style()
    figure, axes = plotting.panels(3, 2, height=2.0, squeeze=False)
    np.testing.assert_allclose(figure.get_size_inches(), [plotting.WIDTH, 6.0])
    axes[0, 0].set(xlabel="x", ylabel="y", title="title")
    axes[0, 0].plot([1, 2], label="label")
    axes[0, 0].legend()
    figure.canvas.draw()
    texts = [text for text in figure.findobj(plt.Text) if text.get_text()]
    # Points of the figure to pixels where it is 350 pixels wide.
    pixels = [text.get_fontsize() * 350 / (72 * plotting.WIDTH) for text in texts]
    assert min(pixels) >= 9
    plt.close(figure)
