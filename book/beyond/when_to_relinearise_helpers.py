"""Accuracy against the number of feature updates, for families of schedules.

A family is a list of settings (periods, factors, thresholds), each with the number of updates that
its runs took and what they reached. Between settings a family is read by interpolation in the
logarithm of updates.
"""

import numpy as np
import xarray as xr
from iterlin.training.schedules import NEVER, Schedule, as_schedule
from iterlin_study.report import intervals
from iterlin_study.runs import early_stopping, merging

FAMILIES = ("fixed", "growing", "event")

# What `fewest_updates` gives where a family does not get there: beyond any that is counted.
OUT_OF_REACH = 1000.0
KEPT = ["step", "updates", "train_accuracy", "train_loss", "test_accuracy", "diverged_at"]


def growing(first: int, factor: float) -> Schedule:
    """Return the schedule with periods of `first`, `factor` first, factor^2 first, ... steps."""
    if not factor > 1:
        raise ValueError(f"factor must be above 1, got {factor!r}")
    ends = [first]
    while (end := ends[-1] + round(first * factor ** len(ends))) < NEVER:
        ends.append(end)
    return as_schedule(ends)


def at_updates(updates, values, wanted: float) -> np.ndarray | float:
    """The values of a family, (..., setting), at `wanted` updates: linear in the logarithm of
    `updates`, (setting,), and beyond the settings that of the nearest.

    Settings with as many updates count as their mean. NaN (a missing run) among the updates gives
    NaN.
    """
    updates, values = np.asarray(updates, float), np.asarray(values, float)
    if np.isnan([*updates, wanted]).any():
        return np.nan * values[..., 0]
    places, which = np.unique(updates, return_inverse=True)
    merged = [values[..., which == i].mean(-1) for i in range(len(places))]
    weights = [np.interp(np.log(wanted), np.log(places), unit) for unit in np.eye(len(places))]
    return np.sum([w * v for w, v in zip(weights, merged, strict=True) if w > 0], axis=0)


def fewest_updates(updates, values, least: float) -> float:
    """The updates from which on a family reaches `least`, by interpolation in their logarithm.

    updates, values: (setting,). From the setting with the most updates downwards, to the first that
    falls short: so a lucky setting of few updates below one that falls short does not count.
    `OUT_OF_REACH` where that with the most updates falls short, or a number is NaN; where all
    reach it, the fewest that a setting took.
    """
    updates, values = np.asarray(updates, float), np.asarray(values, float)
    if np.isnan(updates).any():
        return OUT_OF_REACH
    order = np.argsort(updates)
    updates, values = updates[order], values[order]
    short = np.flatnonzero(~(values >= least))
    if not short.size:
        return float(updates[0])
    last = short[-1]
    if last == len(values) - 1 or np.isnan(values[last]):
        return OUT_OF_REACH
    share = (least - values[last]) / (values[last + 1] - values[last])
    return float(updates[last] * (updates[last + 1] / updates[last]) ** share)


def at_the_end(
    flows: xr.Dataset, descent: xr.Dataset, *, families, settings, unit: float
) -> xr.Dataset:
    """Put the flows and SGD's runs into one data set, with what they have at their ends.

    Args:
        flows: Runs over "schedule" and "seed", with the step "anchored_at" of the last expansion.
        descent: SGD's runs, over "seed".
        families: The family of each schedule.
        settings: The period, factor or threshold of each schedule.
        unit: Time of a step of the flows.
    """
    flows, descent = flows.rename(evaluation="look"), descent.rename(evaluation="look")
    own = merging.named(descent[KEPT], "sgd", ["look"])
    found = xr.merge([flows[[*KEPT, "anchored_at"]], own])
    found = found.assign_coords(family=("schedule", families), value=("schedule", settings))
    found["anchored_time"] = unit * found.anchored_at
    end, sgd_end = {"look": -1}, {"sgd_look": -1}
    for name, reading in (("accuracy", "test_accuracy"), ("fit", "train_accuracy")):
        found[name] = 100 * found[reading].isel(end)
        found[f"sgd_{name}"] = 100 * found[f"sgd_{reading}"].isel(sgd_end)
    found["taken"] = found.updates.isel(end)
    return found


def add_statistics(runs: xr.Dataset, descent: xr.Dataset) -> xr.Dataset:
    """Add to `at_the_end` what the claims are judged by, with intervals over seeds."""
    matched = 100 * early_stopping.at_loss(descent, runs.train_loss.isel(look=-1))
    runs["matched_accuracy"] = matched
    for reading, against in (("end", _sgd_level(runs)), ("matched", matched)):
        for over in ("fixed", "growing"):
            gained = advantage(runs, runs.accuracy - against, over=over)
            runs[f"over_{over}_{reading}"] = intervals.over_seeds(gained)
        for name in FAMILIES:
            samples = _of_family(runs, name, against)
            runs[f"enough_{name}_{reading}"] = intervals.bootstrap_interval(
                enough, *samples
            ).variable()
    fixed, events = (np.flatnonzero(runs.family == name) for name in ("fixed", "event"))
    for place in events:
        single = runs.isel(schedule=[*fixed, place])
        gained = advantage(single, single.accuracy)
        runs[f"gain_{float(runs.value[place]):g}"] = intervals.over_seeds(gained)
    return runs


def by_size(sets: dict[int, xr.Dataset]) -> xr.Dataset:
    """Return U* of every family for each number of images.

    "enough_growth" is U* of fixed periods on the largest set over that on the smallest.

    Args:
        sets: `at_the_end` for each number of images.
    """
    sets = dict(sorted(sets.items()))
    samples = {
        size: {name: _of_family(runs, name, _sgd_level(runs)) for name in FAMILIES}
        for size, runs in sets.items()
    }
    fewest = [
        [intervals.bootstrap_interval(enough, *of).variable()[1] for of in families.values()]
        for families in samples.values()
    ]
    smallest, *_, largest = (families["fixed"] for families in samples.values())

    def ratio(*parts):
        return enough(*parts[3:]) / enough(*parts[:3])

    growth = intervals.bootstrap_interval(ratio, *smallest, *largest)
    fit = np.min([runs.fit.min("schedule") for runs in sets.values()], axis=0)
    diverged = sum(int((runs.diverged_at >= 0).sum()) for runs in sets.values())
    level = [runs.sgd_accuracy.values for runs in sets.values()]
    return xr.Dataset(
        {
            "enough_by_size": (("size", "of_family", "bound"), np.array(fewest)),
            "enough_growth": growth.variable(),
            "size_fit": intervals.over_seeds(fit),
            "size_diverged": ("bound", np.full(3, float(diverged))),
            "size_sgd_accuracy": (("size", "seed"), np.array(level)),
        },
        {"size": list(sets), "of_family": list(FAMILIES)},
    )


def advantage(runs: xr.Dataset, of: xr.DataArray, over: str = "fixed") -> xr.DataArray:
    """Return by seed what events gain over another family at as many updates, on average.

    of: (schedule, seed). Updates are means over seeds, so that all seeds have the same weights.
    """
    ones, others = (
        runs.assign(of=of).isel(schedule=np.flatnonzero(runs.family == chosen))
        for chosen in ("event", over)
    )
    values = others.of.transpose("seed", "schedule")
    beside = [
        at_updates(others.taken.mean("seed"), values, updates)
        for updates in ones.taken.mean("seed").values
    ]
    return (ones.of.transpose("seed", "schedule") - np.stack(beside, -1)).mean("schedule")


def enough(taken, accuracy, against) -> float:
    """Return U*: the fewest updates that reach 99 % of `against`, on the means over seeds.

    taken, accuracy, against: (seed, schedule), of one family.
    """
    return fewest_updates(taken.mean(0), accuracy.mean(0) / against.mean(0), 0.99)


def family(runs: xr.Dataset, name: str) -> xr.Dataset:
    """Return the settings of a family, those with the most updates first."""
    found = runs.isel(schedule=np.flatnonzero(runs.family == name))
    return found.isel(schedule=np.argsort(-found.taken.mean("seed").values))


def event_times(runs: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers 1, 2, ... of updates and their times (seed, n), as far as all seeds go.

    runs: of one schedule. Between two looks the logarithm of time is interpolated; an update before
    the first look that has one is NaN.
    """
    runs = runs.isel(seed=np.flatnonzero(np.isfinite(runs.taken)))  # runs that are there
    count = int(runs.taken.min()) if runs.sizes["seed"] else 0
    numbers, rows = np.arange(1, count + 1), []
    for updates, times in zip(runs.updates.values, runs.anchored_time.values, strict=True):
        seen = updates > 0
        rows.append(np.exp(np.interp(numbers, updates[seen], np.log(times[seen]), left=np.nan)))
    return numbers, np.array(rows)


def _sgd_level(runs):
    return runs.sgd_accuracy.broadcast_like(runs.accuracy)


def _of_family(runs, name, against):
    """Updates, accuracy and `against` of a family, (seed, schedule) each, for `enough`."""
    at = runs.assign(against=against).isel(schedule=np.flatnonzero(runs.family == name))
    return [at[n].transpose("seed", "schedule").values for n in ("taken", "accuracy", "against")]
