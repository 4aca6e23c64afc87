"""How the runs of a record went: what a claim may require of them before it counts as tested.

Each condition is read off the histories that a record keeps, so that it needs no new run. It is
(estimate, lower, upper) like a statistic, over seeds where there is a spread.
"""

import numpy as np
import xarray as xr

from iterlin_study.records import records
from iterlin_study.report.intervals import Interval, exact, mean_interval

ALIVE = 0.15


def fit(record: xr.Dataset) -> Interval:
    """Training accuracy of the network at the end (%), where it is lowest among the settings;
    infinite periods apart, which train no network. A run that diverged has fitted nothing."""
    ends = [_end(record, history) for history in _kept(record, "train_accuracy")]
    lowest = [end.min([d for d in end.dims if "seed" not in d], skipna=False) for end in ends]
    # A grid with seeds of its own may have fewer: then those that all have.
    named = [each.rename({d: "seed" for d in each.dims}) for each in lowest]
    common = xr.align(*named, join="inner")
    return mean_interval(100 * np.min([each.values for each in common], 0))


def updates(record: xr.Dataset) -> Interval:
    """Feature updates of a run, of the setting with the fewest, K = 1 apart."""
    history = _finite(record["updates"])
    first, last = history[..., 0], history[..., -1]
    others = [d for d in last.dims if d != "seed"]
    made = first.notnull().all(others)  # all runs of a seed
    return mean_interval(last.min(others).where(made).values)


def dead(record: xr.Dataset) -> Interval:
    """Runs of finite periods whose network ends at guessing, or nowhere: their number.

    Guessing is one of ten classes; up to 15 % counts, on the training set if it was looked at. Runs
    of one linearisation, which train no network, are left out. NaN if a run is missing.
    """
    try:
        histories = _kept(record, "train_accuracy")
    except KeyError:
        histories = _kept(record, "test_accuracy")
    ends = [_end(record, history) for history in histories if "lazy" not in str(history.name)]
    return exact(sum(_count(end <= ALIVE, end) for end in ends))


def diverged(record: xr.Dataset) -> Interval:
    """Runs that diverged, of any setting: their number; NaN if a run is missing."""
    return exact(sum(_count(runs >= 0, runs) for runs in _kept(record, "diverged_at")))


def time(record: xr.Dataset) -> Interval:
    """Time of the runs at their end."""
    return exact(float(record["time"].max()))


def longest_period(record: xr.Dataset) -> Interval:
    """Time of a step, the step size over 1 - momentum, times the largest finite period."""
    step = float(record.attrs["step_size"]) / (1 - float(record.attrs.get("momentum", 0.0)))
    periods = record["period"].values
    return exact(step * float(periods[np.isfinite(periods)].max()))


CONDITIONS = {f.__name__: f for f in (fit, updates, diverged, dead, time, longest_period)}


def _kept(record: xr.Dataset, name: str) -> list[xr.DataArray]:
    """The record's variables of that name, whatever grid's prefix or suffix they have."""
    others = ("proxy", "distance")
    found = [record[v] for v in record.data_vars if name in v and not any(o in v for o in others)]
    if not found:
        raise KeyError(name)
    return found


def _end(record: xr.Dataset, history: xr.DataArray) -> xr.DataArray:
    """Return the last values of finite periods: 0 of a run that diverged, NaN of a missing one."""
    history = _finite(history)
    first, end = history[..., 0], history[..., -1].fillna(0)
    return end.where(first.notnull()) if records.missing_runs(record) else end


def _count(found: xr.DataArray, values: xr.DataArray) -> float:
    """Return a number of runs; NaN if a value that it is read off is unknown."""
    return float(found.sum()) if bool(values.notnull().all()) else np.nan


def _finite(history: xr.DataArray) -> xr.DataArray:
    """Without infinite periods."""
    for dim in history.dims:
        if "period" in dim:
            history = history.isel({dim: np.isfinite(history[dim].values)})
    return history
