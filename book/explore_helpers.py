"""Turn records, and networks on XOR while they are learnt, into rows for the charts of a dial.

A row has the label of its stop ("stop"; none if it is drawn for comparison only), its time eta K or
c / lambda ("time"), the initialisation where there is a choice ("choice"), name and number of
feature updates of the run ("name", "updates"), its results in words, and what `explore_charts`
draws.
"""

import json
import math
from itertools import product

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from iterlin.training import losses
from iterlin_study.data import toy
from iterlin_study.report.intervals import mean_interval
from iterlin_study.report.tables import interval_text
from iterlin_study.runs import merging
from iterlin_study.runs.features import alignment

from book import explore_charts as charts
from book.explore_charts import Panel

EVERY_STEP, NEVER = "K = 1: new features at every step", "K = ∞: features are never updated"
# Settings of the page on XOR that its record does not hold.
XOR_STEP_SIZE, XOR_SCALES = 0.05, {"small": 0.1, "standard": None}
SIZE, UNITS, TARGET = 200, 64, 1e-3
# Runs count if their training error is below that of the constant 0; below the paper's cut.
XOR_CUT, QUINTIC_CUT = 1.0, 2.5
BINS = np.linspace(2**-0.5, 1, 25)
# Times at which the slider of training time stops, in units of the step size times steps.
TIMES = [0, *(digit * 10**power for power in range(4) for digit in (1, 2, 3, 5, 7)), 10_000, 30_000]


def quantity(value: float) -> str:
    """Write a number for reading: '0.00002', '50', '5,000', '∞'."""
    if value >= 10:
        return f"{value:,.0f}".replace("inf", "∞")
    return np.format_float_positional(value, 2, fractional=False, trim="-")


def numbers(values, digits: int = 3) -> list[float | None]:
    """Return rounded numbers for JSON, None for those that are not finite."""
    return [round(float(v), digits) if np.isfinite(v) else None for v in np.ravel(values)]


def updates_text(updates: xr.DataArray) -> str:
    """'11 feature updates', the mean over runs; NaN are left out."""
    mean = f"{updates.mean().item():,.0f}"
    return "no run kept" if mean == "nan" else f"{mean} feature update{'s' * (mean != '1')}"


def place(axis: str, value: float, unit: float) -> dict:
    """Return the stop of runs. unit: time of a step, or the c of a damping's time c / lambda."""
    if axis == "damping":
        name = f"λ = {quantity(value)}"
        return {"axis": axis, "stop": name, "name": name, "time": unit / value}
    ends = {1.0: EVERY_STEP, math.inf: NEVER}
    stop = ends.get(value, f"ηK = {quantity(unit * value)}")
    return {"axis": axis, "stop": stop, "name": f"K = {quantity(value)}", "time": unit * value}


def xor(ds: xr.Dataset, axis: str) -> list[Panel]:
    """Show features of one seed, alignments of all seeds, and their mean along the dial.

    axis: what the dial turns, "period" or "damping"; the last chart compares it with the other.
    """
    units = {"period": XOR_STEP_SIZE, "damping": float(ds.exchange_rate[0])}
    rows = []
    for scale, along in product(ds.scale.values.tolist(), units):
        for value in ds[along].values.tolist():
            run = ds.sel({"scale": scale, along: value})
            run = run.rename({v: v.removesuffix(f"_{along}") for v in run.data_vars})
            rows.append(place(along, value, units[along]) | {"choice": scale} | _xor_row(run))
        if along == "period" and scale in XOR_SCALES:
            run = before_training(XOR_SCALES[scale], ds.sizes["seed"])
            rows.append(place(along, math.inf, 1.0) | {"choice": scale} | _xor_row(run))
    rows = [row | {"stop": row["axis"] == axis and row["stop"]} for row in rows]
    return [
        Panel(charts.features, "XOR: features of one seed", rows),
        Panel(charts.histogram, "XOR: alignment of all seeds", rows),
        Panel(charts.mean_alignment, "XOR: mean alignment", rows, "XOR"),
    ]


def before_training(weight_scale: float | None, seeds: int) -> xr.Dataset:
    """Return the networks that the page on XOR starts from, as runs of one linearisation."""
    model = il.mlp([2, UNITS, 1], weight_scale=weight_scale, output_bias=False)
    keys = [jax.random.split(key, 3)[2] for key in jax.random.split(jax.random.key(7), seeds)]
    first, last = jax.vmap(model.init)(jnp.stack(keys))
    weights = np.swapaxes(first["weight"], 1, 2)
    return xr.Dataset(
        {
            "feature": (("unit", "coordinate"), weights[0]),
            "output_weight": ("unit", last["weight"][0, :, 0]),
            "alignment": (("seed", "unit"), np.asarray(alignment(weights))),
            "linearizations": ("seed", np.ones(seeds)),
            "train_mse": ("seed", np.zeros(seeds)),
        }
    )


def _xor_row(run: xr.Dataset) -> dict:
    fits = run.train_mse <= XOR_CUT
    weights = run.feature.values / np.abs(run.feature.values).max()
    aligned, mean = run.alignment.values[fits.values], run.alignment.mean("unit").where(fits)
    accuracy = "not on record"
    if "test_accuracy" in run:
        accuracy = f"{interval_text(100 * run.test_accuracy.where(fits))} %"
    lost = f", {int((~fits).sum())} of {fits.size} diverged" * (not fits.all())
    return {
        "updates": updates_text(run.linearizations.where(fits) - 1),
        "words": [f"alignment {interval_text(mean, 3)}", f"test accuracy {accuracy}{lost}"],
        **_dots(weights, run.output_weight),
        "left": numbers(BINS[:-1], 4),
        "right": numbers(BINS[1:], 4),
        "share": numbers(100 * np.histogram(aligned, BINS)[0] / max(aligned.size, 1)),
        "mean": numbers(mean.mean(), 4)[0],
    }


def _dots(weights: np.ndarray, output_weight: xr.DataArray) -> dict:
    """Return what `charts.features` draws."""
    w1, w2 = map(numbers, weights.T)
    return {"w1": w1, "w2": w2, "positive": (output_weight.values > 0).tolist()}


def learning(runs: dict[int, xr.Dataset]) -> list[Panel]:
    """Show the features of runs by their period, as `trained` gives them, at every time."""
    return [_panel(period, run) for period, run in runs.items()]


def trained(period: int) -> xr.Dataset:
    """Train with a period K; return features, output weights, updates and error at `TIMES`.

    As on the page on XOR: the first seed, small weights; a run ends when its training error is
    small. What comes after the end of a run is left out or repeats the end.
    """
    train_key, _, init_key = jax.random.split(jax.random.split(jax.random.key(7), 1)[0], 3)
    model = il.mlp([2, UNITS, 1], weight_scale=XOR_SCALES["small"], output_bias=False)
    data = toy.xor(train_key, SIZE)
    loss, step_size = losses.mean(losses.squared_error), XOR_STEP_SIZE
    steps = [round(time / step_size) for time in TIMES]

    def observe(state):
        first, last = state.params
        return {"feature": first["weight"].T, "output_weight": last["weight"][:, 0]}

    _, history = il.train(
        il.Algorithm(model.apply, loss, step_size),
        model.init(init_key),
        data,
        schedule=period,
        num_steps=steps[-1],
        engine="steps" if period < 100 else "closed_form",
        target_loss=TARGET / 2,
        watch=il.Watch({"train": data}, at=steps, observe=observe),
        progress=False,
    )
    return xr.Dataset(
        {
            "feature": (("unit", "coordinate", "time"), history["feature"]),
            "output_weight": (("unit", "time"), history["output_weight"]),
            "updates": ("time", history["updates"]),
            "error": ("time", np.sqrt(2 * history["train_loss"])),
        },
        {"time": step_size * history["step"]},
    )


def _panel(period: int, run: xr.Dataset) -> Panel:
    largest, rows = np.abs(run.feature.values).max(), []
    for time in TIMES:
        at = run.sel(time=time, method="ffill")
        weights = at.feature.values / largest
        name = f"ηt = {quantity(time) if time else 0}"
        rows.append(
            {
                "stop": name,
                "time": time,
                "name": name,
                "updates": updates_text(at.updates),
                "words": [
                    f"alignment {float(alignment(at.feature.values).mean()):.2f}",
                    f"training error {float(at.error):.2f}",
                ],
                **_dots(weights, at.output_weight),
            }
        )
    name = f"K = {period:,}"
    return Panel(charts.features, f"XOR, {name}", rows, name)


def quintic(ds: xr.Dataset, rate: float) -> list[Panel]:
    """Show functions learnt with a damping, and test errors of all seeds, on the first range.

    rate: the c of `place`. Test errors of runs with a period are drawn for comparison.
    """
    ds = ds.isel(range=0)
    split = toy.quintic(*json.loads(str(ds.range.values)))
    x = np.ravel(split.test.x)[:: 2 * len(split.test.x) // ds.sizes["point"]]
    parts = {"target": [values[::27] for values in split.test], "examples": split.train}
    functions = [{"part": p, "x": numbers(x), "y": numbers(y)} for p, (x, y) in parts.items()]
    errors = []
    for bias, axis in product(ds.bias.values.tolist()[::-1], ("damping", "time")):
        for value in ds[axis].values.tolist() if axis in ds else ():
            run = ds.sel({"bias": bias, axis: value})
            row = place("damping", value, rate) if axis == "damping" else {"time": value}
            row |= {"axis": axis.replace("time", "period"), "choice": bias}
            errors.append(row | _quintic_row(run, "_time" * (axis == "time")))
            if axis == "damping" and value in ds.function_damping:
                learnt = run.function.sel(function_damping=value).transpose("shown_seed", "point")
                y = numbers(np.clip(learnt[:, ::2], -40, 40), 2)
                seeds = np.repeat(range(len(learnt)), len(x)).tolist()
                row = {"part": "learnt", "x": numbers([*x] * len(learnt), 2), "y": y, "seed": seeds}
                functions.append(errors[-1] | row)
    return [
        Panel(charts.functions, "Quintic: functions of some seeds", functions),
        Panel(charts.errors, "Quintic: test errors of all seeds", errors, "Quintic"),
    ]


def _quintic_row(run: xr.Dataset, suffix: str) -> dict:
    kept = run[f"train_rmse{suffix}"] <= QUINTIC_CUT
    found = run[f"test_rmse{suffix}"].where(kept)
    levels = numbers(found.quantile((0.05, 0.5, 0.95)))
    return {
        "updates": updates_text(run[f"steps{suffix}"].where(kept) - 1),
        "words": [f"median error {levels[1]}", f"{int(kept.sum())} of {kept.size} seeds fit"],
        **dict(zip(("best", "median", "worst"), levels, strict=True)),
    }


def by_period(ds: xr.Dataset) -> Panel:
    """Show test accuracy on images after equally many steps of the time eta / (1 - mu)."""
    asked, step = json.loads(ds.attrs["parameters"]), ds.attrs["step_size"]
    step /= 1 - ds.attrs["momentum"]
    rows = [_curve(ds.sel(period=k), k, step) for k in ds.period.values.tolist()]
    if "lazy_test_accuracy_proxy" in ds:
        rows.append(_curve(ds, math.inf, step, "lazy_"))
    name = f"{asked['train_size']:,} images"
    return Panel(charts.curves, f"{name} of CIFAR-10, equal steps", rows, name)


def converged(ds: xr.Dataset) -> Panel:
    """Show test accuracy of networks that are trained until they fit, on the largest set."""
    asked, ds = json.loads(ds.attrs["parameters"]), ds.isel(size=-1)
    rows = [_curve(ds, 1.0, asked["sgd_step_size"], "sgd_")]
    for time in ds.time.values.tolist():
        run = ds.sel(time=time)
        # Runs end when they fit; what follows repeats their end.
        last = run.flow_updates[..., -1]  # NaN of a seed that is missing
        ended = ((run.flow_updates == last) | last.isnull()).all("seed").values
        run = run.isel(flow_look=slice(0, int(np.argmax(ended)) + 1))
        name = {"name": f"ηK = {quantity(time)}"}  # the flow has no steps
        rows.append(_curve(run, time / asked["unit"], asked["unit"], "flow_") | name)
    rows.append(_curve(ds, math.inf, asked["unit"], "lazy_"))
    name = f"{ds['size'].item():,} images"
    return Panel(charts.curves, f"{name} of CIFAR-10, until they fit", rows, name)


def grokking(ds: xr.Dataset) -> Panel:
    """Show test accuracy on sums modulo a prime by the period, at weight decay 1.

    A unit of time is a decay time, of 1 / step size steps.
    """
    asked, runs = json.loads(ds.attrs["parameters"]), merging.of(ds, "main").sel(decay=1)
    step, rows = asked["step_size"], []
    for time in runs.time.values.tolist():
        rows.append(_curve(runs.sel(time=time, drop=True), max(1.0, time / step), step))
    name = f"Sums modulo {asked['modulus']}"
    return Panel(charts.curves, f"{name}, trained with AdamW", rows, name)


def _curve(run: xr.Dataset, period: float, step_time: float, kind: str = "") -> dict:
    """kind: how the names of the run's variables begin."""
    steps, time = f"{kind}step", f"{kind}time"
    clock = run[time] if time in run else step_time * run[steps].mean("seed")
    shown = clock.values > 0  # on a logarithmic axis
    parts = {"network": f"{kind}test_accuracy", "proxy": f"{kind}test_accuracy_proxy"}
    # They are one at K = 1, and at K = infinity the proxy alone is trained.
    parts.pop({1.0: "proxy", math.inf: "network"}.get(period), None)
    updates = xr.DataArray(0) if math.isinf(period) else run[f"{kind}updates"][..., -1]
    row = {"part": [], "elapsed": [], "mean": [], "lower": [], "upper": []}
    ends = []
    for part, name in parts.items():
        percent = 100 * run[name].transpose("seed", ...).values
        ends.append(f"{part} {interval_text(percent[:, -1])} %")
        row["part"] += [part] * int(shown.sum())
        columns = "elapsed", "mean", "lower", "upper"
        for column, values in zip(columns, (clock.values, *mean_interval(percent)), strict=True):
            row[column] += numbers(values[shown])
    row |= {"updates": updates_text(updates), "words": ends}
    return place("period", period, step_time) | row
