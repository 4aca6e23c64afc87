"""The views of the experiments on images: test accuracy against time, network and proxy."""

import json
import math

import numpy as np
import xarray as xr

from iterlin.study.dial.scale import Track, View, bounds, number, run_name
from iterlin.study.intervals import Interval, mean_interval
from iterlin.study.tables import interval_text

KEY = "Mean and 95 % interval over seeds where the dial stands; pale: the other periods."


class Curves:
    """Accuracies of one experiment, run by run, on the way to its view."""

    def __init__(self, name: str, ds: xr.Dataset, size: int, how: str, *, log: bool):
        """size: of the training set; how: what else the runs have in common."""
        self.images = f"{size:,} images"
        source = ds.attrs["data"].split()[0].rstrip(",")
        title = f"{source}: {self.images}, {how}"
        self.view = View(name, title, KEY, "curves", (), extra={"log": log})
        self.times, self.words, self.briefs, self.own = [], [], [], []
        self.first, self.ordinary = None, ""

    def add(self, axis, period, time, parts, *, updates=None) -> None:
        """Runs at one place. parts: name -> (times (E,), accuracies (seed, E) in per cent)."""
        at, ends, briefs = len(self.times), [], []
        for part, (clock, accuracy) in parts.items():
            band = mean_interval(accuracy)
            columns = {name: [] for name in ("time", "mean", "lower", "upper")}
            for now, *three in zip(clock, *band, strict=True):
                values = {"time": number(now)} | bounds(Interval(*three))
                shown = None not in values.values() and (now > 0 or not self.view.extra["log"])
                for name in columns if shown else ():
                    columns[name].append(values[name])
            self.view.rows.append({"track": "", "at": at, "part": part} | columns)
            ends.append(f"{interval_text(accuracy[:, -1])} %")
            briefs.append(f"{self.images} {float(band.estimate[-1]):.1f} %")
        self.briefs.append(briefs[0])
        taken = "" if updates is None else f", after {updates:,.0f} feature updates"
        told = ", ".join(f"the {part} {end}" for part, end in zip(parts, ends, strict=True))
        self.words.append(
            f"{run_name(axis, period, time)}: test accuracy at the end{taken}: {told}."
        )
        self.times.append(float(time))
        if axis == "period" and period == 1:
            self.first, self.ordinary = at, f" Ordinary training, K = 1: {ends[0]}."
        elif math.isfinite(time):
            self.own.append(float(time))

    def done(self, seeds: int) -> View:
        """The view; beside every other run stands what K = 1 ends with."""
        words = [
            f"{said}{'' if at == self.first else self.ordinary} {seeds} seeds."
            for at, said in enumerate(self.words)
        ]
        first = self.first is not None
        self.view.tracks[""] = Track(self.times, words, self.briefs, self.own, first)
        return self.view


def _percent(accuracy: xr.DataArray) -> np.ndarray:
    """(seed, evaluation)."""
    return 100 * accuracy.transpose("seed", ...).values


def _parts(network, proxy, clock, period: float = math.nan) -> dict:
    """What is shown of runs: network and proxy, but one alone at a period that knows no other."""
    both = {"network": (clock, _percent(network)), "proxy": (clock, _percent(proxy))}
    absent = "proxy" if period == 1 else "network" if math.isinf(period) else ""
    return {name: part for name, part in both.items() if name != absent}


def few_updates(ds: xr.Dataset, rate: float, step_size: float) -> list[View]:
    """Few updates beside ordinary training; a step takes the time eta / (1 - mu)."""
    asked = json.loads(ds.attrs["parameters"])
    how = "augmented" if asked["augment"] else "as they are"
    curves = Curves("few-updates", ds, asked["train_size"], how, log=False)
    unit = ds.attrs["step_size"] / (1 - ds.attrs["momentum"])
    for period in ds.period.values.astype(float):
        at = ds.sel(period=period)
        parts = _parts(at.test_accuracy, at.test_accuracy_proxy, at.time.values, period)
        updates = float(at.updates.isel(evaluation=-1).mean())
        curves.add("period", period, unit * period, parts, updates=updates)
    never = _percent(ds.lazy_test_accuracy_proxy)
    curves.add("period", math.inf, math.inf, {"proxy": (ds.lazy_time.values, never)})
    return [curves.done(ds.sizes["seed"])]


def converged(ds: xr.Dataset, rate: float, step_size: float) -> list[View]:
    """Trained until the network fits, the largest training set."""
    size = int(ds["size"].values[-1])
    asked = json.loads(ds.attrs["parameters"])
    ds = ds.isel(size=-1)
    curves = Curves("converged", ds, size, "until they fit", log=True)

    def clock(kind, unit):
        return unit * ds[f"{kind}_step"].mean("seed")

    descent = (clock("sgd", asked["sgd_step_size"]).values, _percent(ds.sgd_test_accuracy))
    curves.add("period", 1.0, asked["sgd_step_size"], {"network": descent})
    for time in ds.time.values.astype(float):
        at = ds.sel(time=time)
        elapsed = clock("flow", asked["unit"]).sel(time=time).values
        # Runs end when they fit; what follows repeats their end.
        final = at.flow_updates.isel(flow_look=-1)
        over = np.flatnonzero((at.flow_updates == final).all("seed").values)
        shown = slice(0, int(over[0]) + 1)
        histories = (at.flow_test_accuracy, at.flow_test_accuracy_proxy)
        histories = [history.isel(flow_look=shown) for history in histories]
        parts = _parts(*histories, elapsed[shown])
        curves.add("time", time, time, parts, updates=float(final.mean()))
    never = (clock("lazy", asked["unit"]).values, _percent(ds.lazy_test_accuracy_proxy))
    curves.add("period", math.inf, math.inf, {"proxy": never})
    return [curves.done(ds.sizes["seed"])]


def period_sweep(ds: xr.Dataset, rate: float, step_size: float) -> list[View]:
    """Runs of equal length; momentum mu makes the time of a step eta / (1 - mu)."""
    asked = json.loads(ds.attrs["parameters"])
    curves = Curves("period-sweep", ds, asked["train_size"], "equal steps", log=True)
    unit = ds.attrs["step_size"] / (1 - ds.attrs.get("momentum", 0.0))
    for period in ds.period.values.astype(float):
        at = ds.sel(period=period)
        elapsed = unit * at.step.mean("seed").values
        parts = _parts(at.test_accuracy, at.test_accuracy_proxy, elapsed, period)
        updates = float(at.updates.isel(evaluation=-1).mean())
        infinite = {} if math.isinf(period) else {"updates": updates}
        curves.add("period", period, unit * period, parts, **infinite)
    return [curves.done(ds.sizes["seed"])]
