"""Schedules with one long period, and what the runs on them are compared by."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import xarray as xr
from iterlin.kernels.ntk import kernel_alignment
from jax import Array
from jax.typing import ArrayLike
from scipy import stats


def label(places: Sequence[int]) -> str:
    """Return the places in words.

    >>> [label(places) for places in ([], [3], [6, 7, 8], [1, 4])]
    ['none', '3', '6 to 8', '1, 4']
    """
    places = sorted(places)
    if not places:
        return "none"
    if len(places) > 1 and places == list(range(places[0], places[-1] + 1)):
        return f"{places[0]} to {places[-1]}"
    return ", ".join(map(str, places))


def ends_of_periods(short: int, long: int, count: int, places: Sequence[int]) -> np.ndarray:
    """Return the steps at which `count` periods end, those at `places` (from 1 on) being long.

    >>> ends_of_periods(10, 100, 4, [2]).tolist()
    [10, 110, 120, 130]
    """
    if not set(places) <= set(range(1, count + 1)):
        raise ValueError(f"places must lie between 1 and {count}, got {list(places)}")
    lengths = np.full(count, short)
    lengths[np.asarray(places, int) - 1] = long
    return np.cumsum(lengths)


def single(ds: xr.Dataset) -> xr.Dataset:
    """Return the settings with one long period, in the order of its place.

    "place" is 0 for settings with none or several.
    """
    return ds.isel(setting=np.flatnonzero(ds.place > 0)).sortby("place")


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's correlation over all entries of two arrays of one shape.

    Entries that are NaN in either array (missing runs) are left out. NaN if fewer than three are
    left, or if one array is constant.
    """
    one, other = np.ravel(one), np.ravel(other)
    there = np.isfinite(one) & np.isfinite(other)
    one, other = one[there], other[there]
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return np.nan
    return float(stats.spearmanr(one, other).statistic)


def relative_change(history: xr.DataArray, dims: str | Sequence[str]) -> xr.DataArray:
    """Return how far a vector or a matrix, over `dims`, is from its value at the first evaluation,
    relative to the norm of that value."""
    start = history.isel(evaluation=0)
    return (history - start).reduce(np.linalg.norm, dims) / start.reduce(np.linalg.norm, dims)


def alignments(kernels: xr.DataArray, others: xr.DataArray) -> xr.DataArray:
    """Return the `centred_alignment` of kernels with others, over their axes named kernel_0 and
    kernel_1."""
    return xr.apply_ufunc(
        lambda one, other: float(centred_alignment(one, other)),
        *(kernels, others),
        input_core_dims=[["kernel_0", "kernel_1"]] * 2,
        vectorize=True,
    )


def centred_alignment(one: ArrayLike, other: ArrayLike) -> Array:
    """Return the alignment of two kernels whose rows and columns have mean zero.

    Kernels are (N, N). Without their means, two kernels of positive entries are not aligned for
    this reason alone. NaN if a kernel holds NaN.
    """
    return kernel_alignment(*(_centred(jnp.asarray(kernel)) for kernel in (one, other)))


def same_class(labels: ArrayLike) -> np.ndarray:
    """Return the kernel that is 1 for two examples of one class and else 0.

    >>> same_class(np.array([4, 7, 4])).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    labels = np.asarray(labels)
    return (labels[:, None] == labels).astype(float)


def _centred(matrix):
    return matrix - matrix.mean(0, keepdims=True) - matrix.mean(1, keepdims=True) + matrix.mean()
