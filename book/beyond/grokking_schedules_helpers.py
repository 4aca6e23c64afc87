"""Schedules for two networks that add modulo p, and how many updates they need with each."""

from dataclasses import replace

import iterlin as il
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import merging
from iterlin_study.runs.groups import Problem

from book.beyond.grokking_helpers import LEVEL, addition

KEPT = ["step", "updates", "train_accuracy_proxy", "test_accuracy", "test_accuracy_proxy"]
KEPT += ["diverged_at"]


def transformer(params, x):
    """Return the logits (N, p) of pairs (N, 2), by one block of attention and ReLU units.

    The last token asks for the sum; the head reads what the block writes there.
    """
    asks = jnp.full((len(x), 1), len(params["tokens"]) - 1, x.dtype)
    tokens = params["tokens"][jnp.concatenate([x, asks], 1)] + params["places"][None]
    last = tokens[:, -1]
    query = jnp.einsum("nd,dhe->nhe", last, params["query"])
    key, value = (jnp.einsum("ntd,dhe->nthe", tokens, params[name]) for name in ("key", "value"))
    scores = jnp.einsum("nhe,nthe->nht", query, key) / np.sqrt(query.shape[-1])
    mixed = jnp.einsum("nht,nthe->nhe", jax.nn.softmax(scores), value)
    last = last + jnp.einsum("nhe,hed->nd", mixed, params["mix"])
    last = last + jax.nn.relu(last @ params["up"]) @ params["down"]
    return last @ params["out"]


def transformer_params(key, modulus: int, width: int, hidden: int, heads: int = 4) -> dict:
    """Draw parameters of variance 1 / n, with n the inputs of a unit."""
    per_head = (width, heads, width // heads)
    shapes = {
        "tokens": ((modulus + 1, width), width),
        "places": ((3, width), width),
        "query": (per_head, width),
        "key": (per_head, width),
        "value": (per_head, width),
        "mix": ((heads, width // heads, width), width),
        "up": ((width, hidden), width),
        "down": ((hidden, width), hidden),
        "out": ((width, modulus), width),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(each, shape) / np.sqrt(inputs)
        for each, (name, (shape, inputs)) in zip(keys, shapes.items(), strict=True)
    }


def transformer_problem(modulus: int, width: int, hidden: int, share: float) -> Problem:
    """Return the problem of `addition` for the transformer, without its kernel."""
    problem = addition(modulus, 1, share, 2)
    algorithm = il.Algorithm(transformer, problem.algorithm.loss)

    def init(key):
        return transformer_params(key, modulus, width, hidden)

    return replace(problem, algorithm=algorithm, init=init, observe=None)


def ends_of(periods: list[float], unit: float, length: float) -> list[int]:
    """Return the steps at which to update; the last period is repeated.

    Args:
        periods: Periods in decay times.
        unit: Steps in a decay time.
        length: Length of the run in decay times.

    >>> ends_of([0.5, 1.0], 100, 4)
    [50, 150, 250, 350]
    """
    missing = max(0, int((length - sum(periods)) / periods[-1]) + 1)
    ends = np.cumsum([*periods, *[periods[-1]] * missing])
    return [round(end * unit) for end in ends if end < length]


def with_needs(ds: xr.Dataset) -> xr.Dataset:
    """Return runs over (schedule, seed, look) with the updates and steps until `LEVEL`.

    A run that never gets there has those of its end, the least that it would need.
    """
    above = ds.test_accuracy >= LEVEL
    reached = above.any("look")
    at = xr.where(reached, above.argmax("look"), ds.sizes["look"] - 1)
    needs = {"needed": ds.updates.isel(look=at), "needed_steps": ds.step.isel(look=at)}
    made = ds.test_accuracy.notnull().any("look")  # NaN of a run that is missing
    return ds.assign(needs).assign(reached=reached.where(made))


def add_statistics(ds: xr.Dataset, growing: str, shrinking: str, fixed: str, event: str):
    """Return the runs with what the claims are judged by.

    Args:
        ds: `with_needs` of the network with squares, and of the transformer as "transformer_...".
        growing, shrinking, fixed, event: The schedules that are compared.
    """
    compared = ds.sel(schedule=[growing, shrinking, fixed])
    ds["all_reach"] = intervals.over_seeds(compared.reached.min("schedule", skipna=False))
    needed, steps = (ds[name].sel(schedule=growing) for name in ("needed", "needed_steps"))
    ds["growing_needs"] = intervals.over_seeds(needed)
    ds["fixed_over_growing"] = intervals.over_seeds(ds.needed.sel(schedule=fixed) - needed)
    for name, other in (("fixed", fixed), ("shrinking", shrinking)):
        ratio = ds.needed_steps.sel(schedule=other) / steps
        ds[f"{name}_steps_ratio"] = intervals.over_seeds(np.log2(ratio))
    ds["event_reach"] = intervals.over_seeds(ds.reached.sel(schedule=event))
    apart = ds.needed.sel(schedule=fixed) - ds.needed.sel(schedule=event)
    ds["fixed_over_event"] = intervals.over_seeds(apart)
    rare = merging.of(ds, "transformer").sel(schedule="fixed 0.2")
    ds["transformer_reach"] = intervals.over_seeds(rare.reached)
    ds["transformer_needs"] = intervals.over_seeds(rare.needed)
    return ds


def draw(ds: xr.Dataset) -> None:
    """Draw test accuracy against updates, and steps against updates at which runs generalise."""
    _, (top, bottom) = plotting.panels(2, height=3.1)
    shown = (ds.growing, ds.shrinking, ds.fixed)
    for name, colour in zip(shown, plotting.COLOURS, strict=False):
        at = ds.sel(schedule=name)
        plotting.band(
            top,
            at.step.mean("seed"),
            100 * at.test_accuracy.transpose("seed", "look"),
            color=colour,
            label=name,
        )
    top.set(xlabel="steps", ylabel="test accuracy (%)", ylim=(-3, 103))
    top.legend(loc="lower right")
    families = [str(name).split()[0] for name in ds.schedule.values]
    kinds = dict.fromkeys(families)
    for family, colour, marker in zip(kinds, plotting.COLOURS, "osD^v", strict=False):
        at = ds.isel(schedule=[name == family for name in families])
        at = at.isel(schedule=(at.reached == 1).all("seed").values)
        if not at.sizes["schedule"]:
            continue
        needed, steps = at.needed.mean("seed"), at.needed_steps.mean("seed")
        label = family if at.sizes["schedule"] > 1 else str(at.schedule.values[0])
        bottom.plot(needed, steps, marker, color=colour, label=label)
        if at.sizes["schedule"] == 1:
            continue
        place = (5, 4) if family == "fixed" else (5, -10)
        for x, y, name in zip(needed.values, steps.values, at.schedule.values, strict=True):
            detail = str(name).split()[-1]
            bottom.annotate(detail, (x, y), place, textcoords="offset points", fontsize=8)
    bottom.set(xscale="log", xlabel="feature updates until 95 %", ylabel="steps until 95 %")
    ticks = [count for count in (8, 10, 12, 15, 20, 30) if count < ds.needed.max()]
    bottom.set_xticks(ticks, map(str, ticks))
    bottom.minorticks_off()
    bottom.legend()
    plt.show()


def table(ds: xr.Dataset) -> object:
    """Return a table of how many updates and steps each schedule needs."""
    head = ["schedule", "runs that generalise", "updates until then", "steps until then"]
    rows = []
    for name in ds.schedule.values:
        at = ds.sel(schedule=name)
        needed = [each.where(at.reached == 1) for each in (at.needed, at.needed_steps)]
        count = f"{int(at.reached.sum())} of {ds.sizes['seed']}"
        row = [name, count, tables.interval_text(needed[0]), tables.interval_text(needed[1], 0)]
        rows.append([*row, tables.interval_text(100 * at.test_accuracy.max("look"), 0)])
    return tables.table([*head, "best test accuracy (%)"], rows)
