"""The longest period that generalises, and its exponent over the weight decay."""

import numpy as np
import pytest
import xarray as xr

from book.beyond import grokking_period_helpers as helpers

DECAYS = np.array([0.5, 1.0, 2.0])


def with_edges_at(edges):
    """Return edges in cells of 10 % around given periods, over (decay, seed)."""
    edge = xr.DataArray(edges, {"decay": DECAYS}, ["decay", "seed"])
    return xr.Dataset({"low": edge / 1.05, "high": edge * 1.05, "edge": edge})


def test_the_edge_is_where_the_best_accuracy_crosses_the_level():
    best = np.array([1.0, 0.97, 0.93, 0.2])
    accuracy = xr.DataArray(np.stack([0 * best, best]), dims=["look", "place"])
    found = helpers.edges(accuracy, xr.DataArray([100, 200, 400, 800], dims="place"))
    assert (float(found.low), float(found.high)) == (200, 400)
    np.testing.assert_allclose(found.edge, np.sqrt(200 * 400))


@pytest.mark.parametrize(("level", "low", "high"), [(0.5, 0, 100), (1.0, 200, np.inf)])
def test_an_edge_outside_the_grid_is_unknown(level, low, high):
    accuracy = xr.DataArray(np.full((1, 2), level), dims=["look", "place"])
    found = helpers.edges(accuracy, xr.DataArray([100, 200], dims="place"))
    assert (float(found.low), float(found.high)) == (low, high)
    assert np.isnan(found.edge)


def test_the_exponent_of_a_power_law_lies_inside_what_its_cells_allow():
    found = with_edges_at(np.outer(1000 * DECAYS**-1.3, np.ones(5)))
    slopes, (mean, lower, upper) = helpers.exponents(found)
    np.testing.assert_allclose(slopes, -1.3)
    # The cell's width, log10(1.05) on both sides, over the weights of the outer decays.
    half = np.log10(1.05) / np.log10(2)
    np.testing.assert_allclose([mean, lower, upper], [-1.3, -1.3 - half, -1.3 + half])


def test_an_edge_outside_the_grid_leaves_the_exponent_open():
    edges = np.outer(1000 / DECAYS, np.ones(5))
    edges[0, 0] = np.nan
    slopes, (_, lower, upper) = helpers.exponents(with_edges_at(edges))
    assert (lower, upper) == (-np.inf, np.inf)
    assert helpers.over_all_seeds(slopes)[1].tolist() == [0, -np.inf, np.inf]
