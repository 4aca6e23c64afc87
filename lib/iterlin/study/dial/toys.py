"""The views of the two toy experiments: features on XOR, functions on the quintic."""

import json
import math

import numpy as np
import xarray as xr

from iterlin.features import RANDOM_ALIGNMENT
from iterlin.study import data
from iterlin.study.dial.scale import Track, View, bounds, number, quantity, run_name, short
from iterlin.study.intervals import mean_interval
from iterlin.study.tables import interval_text

# A feature that is aligned this well points at a cluster, within so many degrees.
DEGREES = 10
ALIGNED = math.cos(math.radians(DEGREES))
BINS = np.linspace(2**-0.5, 1, 25)
# Training errors of runs that count: below that of the constant 0; below the paper's cut.
XOR_CUT, QUINTIC_CUT = 1.0, 2.5
XOR = {
    "features": (
        "XOR: the features of one seed",
        "A dot is a feature; the clusters lie on the diagonals. Filled: positive output weight.",
    ),
    "histogram": (
        "XOR: alignments of all seeds",
        "Of all features. Upright: the mean; dashed: random directions.",
    ),
    "alignment": (
        "XOR: mean alignment",
        "Solid: period; dashed: damping, at c/λ; dotted: random directions. Dot: the dial.",
    ),
}
FUNCTIONS = ("Thin: a seed each; dashed: the quintic; dots: training points.", "functions")
ERRORS = (
    "Lines: worst 5 %, median, best 5 % of all seeds. Dashes: each seed, where the dial stands.",
    "errors",
)
# Functions are cut far beyond the frame that shows them.
FAR = 40.0


def xor(ds: xr.Dataset, rate: float, step_size: float) -> list[View]:
    """Features of one seed, alignments of those of all seeds, and how these go along the dial.

    step_size: of its gradient descent. Tracks are "axis|scale": what is turned, period or damping,
    and the scale of the initialisation.
    """
    views = {
        kind: View(f"xor-{kind}", title, key, kind, ("axis", "scale"))
        for kind, (title, key) in XOR.items()
    }
    for axis in ("period", "damping"):
        values = ds[axis].values.astype(float)
        times = step_size * values if axis == "period" else rate / values
        own = times[values > 1].tolist() if axis == "period" else ()
        first = axis == "period" and bool(values.min() == 1)
        for scale in ds["scale"].values:
            key = f"{axis}|{scale}"
            told = {kind: ([], []) for kind in views}
            for at, (value, time) in enumerate(zip(values, times, strict=True)):
                here = ds.sel({"scale": scale, axis: value})
                here = here.rename({v: v.removesuffix(f"_{axis}") for v in here.data_vars})
                for kind, (row, words, brief) in _xor_at(here).items():
                    row = {"track": key, "at": at, "time": number(time)} | row
                    views[kind].rows.append(row | {"axis": axis, "scale": str(scale)})
                    told[kind][0].append(f"{run_name(axis, value, time)}: {words}")
                    told[kind][1].append(brief)
            for kind, view in views.items():
                view.tracks[key] = Track(times.tolist(), *told[kind], own, first)
    return list(views.values())


def _xor_at(run: xr.Dataset) -> dict[str, tuple[dict, str, str]]:
    """What each view shows of the runs at one place: a row, words, a brief."""
    weights = run.feature.values
    reach = float(np.abs(weights).max())
    pointing = run.alignment.isel(seed=0).values > ALIGNED
    fits = run.train_mse <= XOR_CUT
    every = run.alignment.where(fits)
    kept = every.values[np.isfinite(every.values)]
    seeds, lost = run.sizes["seed"], int((~fits).sum())
    shares = np.histogram(kept, BINS)[0] * 100 / max(kept.size, 1)
    mean = mean_interval(every.mean("unit").values)
    directions = weights / reach if reach else weights
    return {
        "features": (
            {"w1": short(directions[:, 0]), "w2": short(directions[:, 1])}
            | {"sign": np.where(run.output_weight.values > 0, "positive", "negative").tolist()},
            f"{pointing.sum()} of the {pointing.size} features of one seed point at a cluster "
            f"within {DEGREES}°; the largest weight is {reach:.2f}.",
            "",
        ),
        "histogram": (
            {"left": short(BINS[:-1], 4), "right": short(BINS[1:], 4), "share": short(shares, 2)}
            | {"mean": number(mean.estimate), "random": number(RANDOM_ALIGNMENT)},
            f"{100 * np.mean(kept > ALIGNED) if kept.size else 0:.0f} % of the features of "
            f"{seeds} seeds point at a cluster within {DEGREES}°."
            + (f" {lost} of {seeds} runs diverged and are left out." if lost else ""),
            "",
        ),
        "alignment": (
            bounds(mean) | {"random": number(RANDOM_ALIGNMENT)},
            f"mean alignment {interval_text(every.mean('unit'), 3)}, where random directions have "
            f"{RANDOM_ALIGNMENT:.3f}; test accuracy {interval_text(100 * run.test_accuracy)} %.",
            f"XOR alignment {mean.estimate:.3f}",
        ),
    }


def quintic(ds: xr.Dataset, rate: float, step_size: float) -> list[View]:
    """Functions learnt with a damping, and test errors along the dial, on the first range.

    Tracks are "bias", how biases are drawn, and "axis|bias".
    """
    ds = ds.isel(range=0)
    split = data.quintic(*json.loads(str(ds["range"].values)))
    functions = _functions(ds, rate, np.asarray(split.test.x, float)[:, 0])
    functions.extra["target"] = _points(split.test, 20)
    functions.extra["examples"] = _points(split.train, 1)
    low, high = (float(end(np.asarray(split.test.y))) for end in (np.min, np.max))
    functions.extra["frame"] = short([1.4 * low, 1.4 * high], 1)
    return [functions, _errors(ds, rate)]


def _points(part, every: int) -> list[dict]:
    """Some of the points of a function of one variable, as rows."""
    x, y = (short(np.asarray(values, float)[::every, 0]) for values in part)
    return [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]


def _functions(ds: xr.Dataset, rate: float, x: np.ndarray) -> View:
    """x: the points of which every so many are in the record."""
    view = View("quintic-functions", "Quintic: the functions learnt", *FUNCTIONS, ("bias",))
    x = x[:: len(x) // ds.sizes["point"]]
    dampings = ds.function_damping.values
    for bias in ds.bias.values[::-1]:
        words = []
        for at, damping in enumerate(dampings):
            learnt = ds.function.sel(bias=bias, function_damping=damping)
            for seed, curve in enumerate(learnt.transpose("shown_seed", "point").values):
                place = {"track": str(bias), "at": at, "seed": seed}
                y = np.clip(curve, -FAR, FAR)
                view.rows.append(place | {"x": short(x[::2]), "y": short(y[::2], 2)})
            at_damping = {"bias": bias, "damping": damping}
            middle = float(_kept(ds, "").sel(at_damping).median("seed"))
            words.append(
                f"{run_name('damping', damping, 0)}: functions of {len(learnt)} seeds; the median "
                f"test error of {ds.sizes['seed']} is {quantity(middle)}."
            )
        view.tracks[str(bias)] = Track((rate / dampings).tolist(), words)
    return view


def _kept(ds: xr.Dataset, suffix: str) -> xr.DataArray:
    """Test errors of the runs that count, NaN of the others."""
    return ds[f"test_rmse{suffix}"].where(ds[f"train_rmse{suffix}"] <= QUINTIC_CUT)


def _errors(ds: xr.Dataset, rate: float) -> View:
    """Test errors of all seeds; a record without periods shows dampings in their place."""
    view = View("quintic-errors", "Quintic: test errors", *ERRORS, ("axis", "bias"))
    period = ("time", "_time") if "test_rmse_time" in ds else ("damping", "")
    for control, (axis, suffix) in {"period": period, "damping": ("damping", "")}.items():
        values = ds[axis].values
        times = values if axis == "time" else rate / values
        for bias in ds.bias.values[::-1]:
            key, words, briefs = f"{control}|{bias}", [], []
            for at, (value, time) in enumerate(zip(values, times, strict=True)):
                runs = _kept(ds, suffix).sel({"bias": bias, axis: value}).values
                runs = np.sort(runs[np.isfinite(runs)])
                levels = np.quantile(runs, (0.05, 0.5, 0.95)) if runs.size else [math.nan] * 3
                row = {"track": key, "at": at, "time": number(time), "runs": short(runs)}
                names = ("best", "median", "worst")
                view.rows.append(row | dict(zip(names, map(number, levels), strict=True)))
                told = "median {1:.2f}, best 5 % {0:.2f}, worst 5 % {2:.2f}".format(*levels)
                told = told if runs.size else "unknown"
                words.append(
                    f"{run_name(axis, value, time)}: test error {told}, "
                    f"over the {runs.size} of {ds.sizes['seed']} seeds with a training error up to "
                    f"{QUINTIC_CUT}."
                )
                briefs.append(f"quintic error {levels[1]:.2f}" if runs.size else "")
            view.tracks[key] = Track(list(map(float, times)), words, briefs)
    return view
