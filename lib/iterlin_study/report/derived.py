"""Statistics that claims are judged by and that are read off a record's runs.

A page stores most statistics in its record. Those below were asked for after the runs, or need an
interval other than the stored one. `statistic` prefers them to what the record stores.
"""

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr

from iterlin_study.records import records
from iterlin_study.report import conditions, intervals
from iterlin_study.report.intervals import Interval, exact, mean_interval
from iterlin_study.runs import early_stopping


def statistic(record: xr.Dataset, name: str) -> Interval:
    """Return the statistic of a record by name, or the condition of that name.

    Raises KeyError if the record has no such statistic and lacks what it is read off.
    """
    if find := STATISTICS.get((record.attrs.get("experiment"), name)):
        return find(record)
    if name in record and record[name].dims == ("bound",):
        return Interval(*record[name].values)
    if name in conditions.CONDITIONS:
        return conditions.CONDITIONS[name](record)
    raise KeyError(name)


# Networks that are trained until they fit (page converged), largest training set.


def _largest(record: xr.Dataset) -> xr.Dataset:
    return record.isel(size=-1, missing_dims="ignore")


def other_share(record: xr.Dataset) -> Interval:
    """Share of the way from K = infinity to K = 1 that `few` closes from other initial weights."""
    return intervals.bootstrap_interval(
        lambda few, first, never: np.mean(few - never) / np.mean(first - never),
        record.other_accuracy.values,
        record.other_sgd_accuracy.values,
        record.other_lazy_accuracy.values,
    )


def below_never(record: xr.Dataset) -> Interval:
    """Points by which the longest period ends below K = infinity, mean over sizes, by seed."""
    lost = record.lazy_accuracy - record.accuracy.sel(time=record.long)
    return mean_interval(lost.mean("size", skipna=False).transpose("seed"))


def short_moved_off(record: xr.Dataset) -> Interval:
    """How far the shortest period moves the first layer's filters, over K = 1, minus 1."""
    at = _largest(record)
    moved = at.flow_moved.isel(flow_look=-1).sel(time=record.time.min())
    return mean_interval(moved / at.sgd_moved.isel(sgd_look=-1) - 1)


def taken_at(record: xr.Dataset, place: int) -> Interval:
    """Updates of the period `few` until the network fits, on the size at this place."""
    return mean_interval(record.taken.sel(time=record.few).isel(size=place))


def few_rise(record: xr.Dataset) -> Interval:
    """Points of test accuracy by which the period `few` ends above SGD, largest training set."""
    at = _largest(record)
    return mean_interval(at.accuracy.sel(time=record.few) - at.sgd_accuracy)


def middle_rise_best(record: xr.Dataset) -> Interval:
    """Points by which the shortest period is above SGD, each at its best, largest training set."""
    at = _largest(record)
    flow = at.flow_test_accuracy.sel(time=record.time.min()).max("flow_look")
    return mean_interval(100 * (flow - at.sgd_test_accuracy.max("sgd_look")))


def sgd_level(record: xr.Dataset) -> Interval:
    """Test accuracy of SGD at its end (%), on the largest training set if there are several."""
    return mean_interval(_largest(record).sgd_accuracy)


def needed_with(record: xr.Dataset, compared: str) -> Interval:
    """Updates until a network groks with the schedule that the record compares as this."""
    return mean_interval(record.needed.sel(schedule=record.attrs[compared]))


# Augmented data at two periods (page few_updates).


def problems_of(record: xr.Dataset) -> np.ndarray:
    """Linear problems of the large period that were done at each look, (evaluation)."""
    of_one = float(record.period.max()) * record.attrs["step_size"]
    return (record.time.values * (1 - record.attrs["momentum"]) / of_one).round(6)


def gap_paid_by_halving(record: xr.Dataset) -> Interval:
    """Points of the gap between both periods that go in the problem after the last halving."""
    runs = record.sortby("period", ascending=False)
    last = np.atleast_1d(record.attrs["halve_after"])[-1]
    at, after = (int(np.argmin(abs(problems_of(record) - place))) for place in (last, last + 1))
    gap = 100 * runs.test_accuracy.diff("period").squeeze("period")
    return mean_interval(gap.isel(evaluation=at) - gap.isel(evaluation=after))


def first_level(record: xr.Dataset) -> Interval:
    """Test accuracy at K = 1 at its end (%)."""
    return mean_interval(100 * record.test_accuracy.sel(period=1).isel(evaluation=-1))


# Schedules (page when_to_relinearise).


def growing_over_fixed(record: xr.Dataset) -> Interval:
    """Points that growing periods gain over fixed ones at as many updates: mean over settings.

    Fixed periods are interpolated in the logarithm of updates; updates are means over seeds.
    """
    fixed, growing = (record.isel(schedule=record.family.values == n) for n in ("fixed", "growing"))
    fixed = fixed.isel(schedule=np.argsort(fixed.taken.mean("seed").values))
    places = np.log(fixed.taken.mean("seed").values)
    gained = []
    for updates, own in zip(growing.taken.mean("seed").values, growing.accuracy, strict=True):
        weights = [np.interp(np.log(updates), places, unit) for unit in np.eye(len(places))]
        beside = (fixed.accuracy * xr.DataArray(weights, dims="schedule")).sum(
            "schedule", skipna=False
        )
        gained.append((own - beside).transpose("seed").values)
    return mean_interval(np.mean(gained, axis=0))


def rarest_event(record: xr.Dataset) -> Interval:
    """Test accuracy of the event-triggered setting with fewest updates, in per cent of SGD's."""
    events = record.isel(schedule=record.family.values == "event")
    own = events.accuracy.isel(schedule=int(events.taken.mean("seed").argmin("schedule")))
    return intervals.bootstrap_interval(
        lambda one, other: 100 * np.mean(one) / np.mean(other),
        own.values,
        record.sgd_accuracy.values,
    )


def censored_sizes(record: xr.Dataset) -> Interval:
    """Number of sizes at which fixed periods need the fewest updates that were tried.

    There U* is only bounded from above. The record keeps the runs of the largest size alone. On a
    smaller one, U* between two settings is no mean over seeds of whole numbers, as the fewest is.
    """
    found = record.enough_by_size.sel(of_family="fixed").isel(bound=0)
    fixed = record.taken.isel(schedule=record.family.values == "fixed")
    total = found * fixed.sizes["seed"]
    censored = np.abs(total - np.round(total)) < 1e-6
    censored[-1] = found[-1] <= float(fixed.mean("seed").min()) + 1e-9
    return exact(float(censored.sum()))


# Full solves (page exact_solves).


def minimum_over_long(record: xr.Dataset) -> Interval:
    """Points by which minima of the least penalty end above flows of the longest time elsewhere.

    The flows are those of page converged on as many images; both have the same images by seed.
    """
    other = records.best("converged")
    if other is None:
        raise KeyError("converged")
    flows = other.accuracy.sel(time=other.long).isel(size=0, drop=True)
    minima = record.damped_accuracy.isel(time=-1, drop=True)
    return mean_interval((minima - flows).transpose("seed"))  # of the seeds that both have


# Step sizes at K = 1 (page data_scaling).


def first_change(record: xr.Dataset) -> Interval:
    """Points of best test accuracy at K = 1, larger step size minus smaller, largest size."""
    larger, smaller = _of_step_sizes(record)
    return mean_interval(larger - smaller)


def first_accuracy(record: xr.Dataset) -> Interval:
    """Best test accuracy at K = 1 (%), at the step size with the lower one, largest size."""
    return mean_interval(np.minimum(*_of_step_sizes(record)))


def _of_step_sizes(record: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the best test accuracy at K = 1, largest size, with the larger step size and the
    smaller."""
    at = _largest(record)
    return at.large_accuracy_oracle.sel(large_period=1), at.accuracy_oracle.sel(period=1)


# Probes (page probes).


def late_rise(record: xr.Dataset, layer: str) -> Interval:
    """Points that a probe of the large period still gains in the last quarter of training."""
    at = record.probe_accuracy.sel(layer=layer).isel(period=-1)
    start = int(np.searchsorted(record.time, 0.75 * float(record.time[-1])))
    return mean_interval(at.isel(snapshot=-1) - at.isel(snapshot=start))


# Runs that diverge, and runs that are compared at the same loss (resnet, batching, workshop).


def diverged_with_normalisation(record: xr.Dataset) -> Interval:
    """Share of runs of the large period that diverge with batch normalisation minus without."""
    runs = [record[f"diverged_at_{n}"].isel({f"period_{n}": -1}) for n in ("batch", "plain")]
    if any(bool(each.isnull().any()) for each in runs):  # a run is missing
        return exact(np.nan)
    batch, plain = (each >= 0 for each in runs)
    return intervals.difference_of_shares(
        int(batch.sum()), batch.size, int(plain.sum()), plain.size
    )


def settings_apart(record: xr.Dataset) -> Interval:
    """Number of settings beside normalisation in which the runs with it differ from the others."""
    parameters = json.loads(record.attrs["parameters"])
    plain, batch = parameters["plain"], parameters["batch"]
    differ = [plain[name] != batch[name] for name in ("step_size", "period")]
    return exact(float(sum(differ) + parameters["augment"]))  # of the normalised runs alone


def lost(record: xr.Dataset, prefix: str = "", **place: int) -> Interval:
    """Number of runs that diverged, or end at guessing; NaN if a run is missing.

    prefix: of the names of the runs' variables. place: of the period, if only one counts.
    """
    runs = record.isel(place)
    diverged_at, accuracy = runs[f"{prefix}diverged_at"], runs[f"{prefix}train_accuracy"]
    if bool(diverged_at.isnull().any()):
        return exact(np.nan)
    alive = (accuracy[..., -1] > conditions.ALIVE) & (diverged_at < 0)
    return exact(float((~alive).sum()))


def matched_gap(record: xr.Dataset, prefix: str = "", suffix: str = "") -> Interval:
    """Points by which K = 1, at the training loss of the largest finite period, is above it.

    The histories carry the prefix or the suffix in their names.
    """
    runs = _two_periods(record, prefix, suffix)
    end = runs.isel(period=1, evaluation=-1)
    matched = early_stopping.at_loss(runs.isel(period=0), end.train_loss)
    return mean_interval(100 * (matched - end.test_accuracy))


def late_gain(record: xr.Dataset, prefix: str = "", suffix: str = "") -> Interval:
    """Points of training accuracy gained in the last fifth of a run.

    Of K = 1 and the largest finite period the one that gains more; runs that diverged are left out.
    """
    curve = 100 * _two_periods(record, prefix, suffix).train_accuracy
    looks = curve.sizes["evaluation"]
    gained = curve.isel(evaluation=-1) - curve.isel(evaluation=int(0.8 * (looks - 1)))
    return mean_interval(gained.max("period").transpose("seed"))


def _two_periods(record: xr.Dataset, prefix: str, suffix: str) -> xr.Dataset:
    """Histories with a prefix or a suffix at K = 1 and at the largest finite period."""
    names = {
        f"{prefix}{name}{suffix}": name
        for name in ("train_accuracy", "train_loss", "test_accuracy")
    }
    axes = {f"{prefix}{axis}{suffix}": axis for axis in ("period", "evaluation")}
    runs = record[list(names)].rename(names | axes)
    return runs.sel(period=[1, runs.period.values[np.isfinite(runs.period.values)].max()])


def _of_few_updates(record: xr.Dataset) -> Interval:
    """Dead runs among those that the page looks into, which are few_updates' of the same tier."""
    tier = record.attrs["tier"]
    if not records.path_of("few_updates", tier).is_file():
        raise KeyError("few_updates")
    return conditions.dead(records.load("few_updates", tier))


# Addition modulo a number (page grokking).


def updates_to_grok(record: xr.Dataset, modulus: int) -> Interval:
    """Updates until test accuracy reaches 95 %, periods of the time `few`, weight decay 1."""
    if modulus == record.attrs["modulus"]:
        return mean_interval(record.main_updates_then.sel(decay=1, time=record.few))
    at = {"modulus": modulus, "other_time": record.few}
    return mean_interval(record.other_updates_then.sel(at))


def proxy_at_long_period(record: xr.Dataset) -> Interval:
    """Test accuracy (%) of AdamW's linearised network at its best, longest period, lower loss."""
    best = 100 * record.adamw_test_accuracy_proxy.isel(adamw_time=-1).max("look")
    return mean_interval(best.min("loss"))


STATISTICS: dict[tuple[str, str], Callable[[xr.Dataset], Interval]] = {
    ("grokking_solves", "adamw_proxy_best"): proxy_at_long_period,
    ("grokking_schedules", "fixed_needs"): partial(needed_with, compared="fixed"),
    ("grokking_schedules", "event_needs"): partial(needed_with, compared="event"),
    ("converged", "few_rise"): few_rise,
    ("converged", "other_share"): other_share,
    ("converged", "below_never"): below_never,
    ("converged", "short_moved_off"): short_moved_off,
    ("converged", "taken_smallest"): partial(taken_at, place=0),
    ("converged", "taken_middle"): partial(taken_at, place=1),
    ("converged", "middle_rise_best"): middle_rise_best,
    ("converged", "sgd_level"): sgd_level,
    ("width", "few_rise"): few_rise,
    ("few_updates", "gap_paid_by_halving"): gap_paid_by_halving,
    ("few_updates", "first_level"): first_level,
    ("when_to_relinearise", "growing_over_fixed"): growing_over_fixed,
    ("when_to_relinearise", "rarest_event"): rarest_event,
    ("when_to_relinearise", "censored_sizes"): censored_sizes,
    ("exact_solves", "minimum_over_long"): minimum_over_long,
    ("exact_solves", "sgd_level"): sgd_level,
    ("data_scaling", "first_change"): first_change,
    ("data_scaling", "first_accuracy"): first_accuracy,
    ("probes", "late_rise_conv1"): partial(late_rise, layer="conv1"),
    ("probes", "late_rise_conv2"): partial(late_rise, layer="conv2"),
    ("probes", "dead"): _of_few_updates,
    ("filters", "dead"): _of_few_updates,
    ("resnet", "diverged_with_normalisation"): diverged_with_normalisation,
    ("resnet", "settings_apart"): settings_apart,
    ("resnet", "gap_plain_matched"): partial(matched_gap, suffix="_plain"),
    ("resnet", "gap_batch_matched"): partial(matched_gap, suffix="_batch"),
    ("resnet", "late_gain_plain"): partial(late_gain, suffix="_plain"),
    ("resnet", "late_gain_batch"): partial(late_gain, suffix="_batch"),
    ("batching", "lost_standard"): partial(lost, period=0),
    ("batching", "lost_moderate"): partial(lost, period=1),
    ("batching", "lost_large"): partial(lost, period=2),
    ("workshop", "any_gap_matched"): partial(matched_gap, prefix="smaller_"),
    ("workshop", "lost_plateau"): partial(lost, prefix="plateau_"),
    ("workshop", "any_late_gain"): partial(late_gain, prefix="smaller_"),
}
STATISTICS |= {
    ("grokking", f"updates_{modulus}"): partial(updates_to_grok, modulus=modulus)
    for modulus in (23, 31, 41, 59, 97)
}
