"""The figure, the tables and the statistics of the page on few updates to convergence."""

import jax
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping, merging, probes, problems
from matplotlib.ticker import MultipleLocator

PAPER_UPDATES = 8, 12  # Goldwaser & Ge (2025), section 4.1: periods of time 50, all of CIFAR-10
KEPT = ["step", "updates", "train_accuracy", "train_loss", "test_accuracy", "test_accuracy_proxy"]
KEPT += ["validation_accuracy", "validation_accuracy_proxy", "diverged_at"]


def draw(ds):
    """Draw accuracy against updates, largest training set, and at the end against its size."""
    shown_times = ds.time.values
    first, *colours = plotting.colours_by_period([1, *shown_times])
    fig, (top, bottom) = plotting.panels(2, sharey=True)
    largest = ds.isel(size=-1)
    for time, colour in zip(shown_times, colours, strict=True):
        at = largest.sel(time=time)
        done = at.flow_updates.mean("seed")
        curve = 100 * at.flow_test_accuracy.transpose("seed", "flow_look")
        plotting.band(
            top, done[1:], curve[:, 1:], color=colour, marker=".", label=rf"$\tau={time:g}$"
        )
    found = intervals.mean_interval(largest.sgd_accuracy)
    plotting.span(top, found, color=first, alpha=0.2, lw=0, label="SGD, at its end")
    top.axvspan(*PAPER_UPDATES, color="0.93", lw=0)
    top.annotate(
        "the paper's updates\nuntil convergence",
        (sum(PAPER_UPDATES) / 2, 0.04),
        xycoords=("data", "axes fraction"),
        ha="center",
    )
    top.set(xlabel="feature updates", ylabel="test accuracy of the network (%)")
    top.xaxis.set_major_locator(MultipleLocator(2))
    ends = [
        ("$K=1$ (SGD)", ds.sgd_accuracy, first),
        (r"$K=\infty$ (proxy)", ds.lazy_accuracy, "0.5"),
    ]
    ends += [
        (rf"$\tau={time:g}$", ds.accuracy.sel(time=time), colour)
        for time, colour in zip(shown_times, colours, strict=True)
    ]
    spread = np.geomspace(0.95, 1.05, len(ends))
    for (label, accuracy, colour), shift in zip(ends, spread, strict=True):
        plotting.points(
            bottom,
            shift * ds["size"].values,
            accuracy.transpose("seed", "size"),
            color=colour,
            label=label,
        )
    bottom.set(xscale="log", xlabel="training examples", ylabel="test accuracy (%)")
    bottom.set_xticks(ds["size"].values, [f"{size:,}" for size in ds["size"].values])
    bottom.minorticks_off()
    fig.legend(*bottom.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    highest = 100 * float(ds.sgd_test_accuracy.mean("seed").max())
    if np.isfinite(highest):  # a partial record may have no run of SGD
        top.set_ylim(0, 1.25 * highest)
    plt.show()


def filters(problem, vector):
    """Return the weights of the first convolution, flat, of a network's parameters as a vector."""
    leaves = jax.tree.leaves(problems.restored(problem, vector))
    return np.ravel(next(leaf for leaf in leaves if np.ndim(leaf) > 2))


def moved(problem, ds):
    """Return how far the first filters are from their start, relative to their norm then."""
    found = xr.apply_ufunc(
        lambda vector: filters(problem, vector),
        ds.snapshot,
        input_core_dims=[["snapshot_0"]],
        output_core_dims=[["filter"]],
        vectorize=True,
    )
    start = found.isel(evaluation=0)
    return (found - start).reduce(np.linalg.norm, "filter") / start.reduce(np.linalg.norm, "filter")


def probed(problem, ds, size, l2, padding):
    """Return the test accuracy (%) of a probe of each layer at the end, largest training set.

    size: the number of examples that probes are fitted to. l2: the penalties to choose from.
    """
    sets = {name: problem.watch.sets[name] for name in ("validation", "test")}
    sets["train"] = tuple(part[:size] for part in problem.train)

    def accuracies(vector):
        if not np.isfinite(vector).all():
            return np.full(len(probes.LAYERS), np.nan)
        params = problems.restored(problem, vector)
        found = probes.of_layers(params, sets, l2=l2, padding=padding)
        return 100 * np.array([found[layer].test for layer in probes.LAYERS])

    found = xr.apply_ufunc(
        accuracies,
        ds.snapshot.isel(evaluation=-1, size=-1),
        input_core_dims=[["snapshot_0"]],
        output_core_dims=[["layer"]],
        vectorize=True,
    )
    return found.assign_coords(layer=list(probes.LAYERS))


def kept(problem, ds, name):
    """Return what is kept of the runs of one grid, under its name."""
    found = ds[KEPT].assign(moved=moved(problem, ds)).rename(evaluation="look")
    return merging.named(found, name, ["look"])


def from_other_weights(flows, frozen, descent):
    """Return how the runs from other initial weights end."""
    flows, frozen, descent = (
        ds.isel(size=0, evaluation=-1, drop=True) for ds in (flows.isel(time=0), frozen, descent)
    )
    found = {
        "other_accuracy": 100 * flows.test_accuracy,
        "other_fit": 100 * flows.train_accuracy,
        "other_taken": flows.updates,
        "other_sgd_accuracy": 100 * descent.test_accuracy,
        "other_sgd_fit": 100 * descent.train_accuracy,
        "other_lazy_accuracy": 100 * frozen.test_accuracy_proxy,
    }
    return xr.Dataset(
        {name: each.drop_vars("time", errors="ignore") for name, each in found.items()}
    )


def of(ds, name):
    """Return the runs of one grid, as `grids.grid` gave them."""
    return merging.of(ds, name).rename(look="evaluation")


def add_statistics(ds, few, long, other_size):
    """Return the runs with what the claims are judged by, each with its interval over seeds.

    Gaps are SGD minus the others, in percentage points of test accuracy, on the largest training
    set unless "other". few and long: the times of a period that the claims are about. other_size:
    the training set of the runs from other initial weights.
    """
    flows, frozen, descent = (of(ds, name) for name in ("flow", "lazy", "sgd"))
    last, largest = {"evaluation": -1}, {"size": ds["size"].values[-1]}
    accuracy = 100 * flows.test_accuracy.isel(last)
    first = 100 * descent.test_accuracy.isel(last)
    never = 100 * frozen.test_accuracy_proxy.isel(last)
    matched = 100 * early_stopping.at_loss(descent, flows.train_loss.isel(last))
    ds["accuracy"], ds["sgd_accuracy"], ds["lazy_accuracy"] = accuracy, first, never
    ds["matched_accuracy"] = matched
    ds["fit"] = 100 * flows.train_accuracy.isel(last)
    ds["taken"] = flows.updates.isel(last)
    ds["sgd_fit"] = 100 * descent.train_accuracy.isel(last)
    for name, time in (("few", few), ("long", long)):
        add_period(ds, name, time)
    middle = accuracy.sel(time=ds.time.min(), **largest) - first.sel(largest)
    ds["middle_rise"] = intervals.over_seeds(middle)
    slopes = intervals.slope_per_decade(never, "size") - intervals.slope_per_decade(first, "size")
    ds["lazy_slope"] = intervals.over_seeds(slopes)
    ds["lazy_gap"] = intervals.over_seeds((first - never).sel(largest))
    ds["first_fit"] = intervals.over_seeds(ds.sgd_fit.sel(largest))
    ds["other_gap"] = intervals.over_seeds(ds.other_sgd_accuracy - ds.other_accuracy)
    ds["other_lazy_gap"] = intervals.over_seeds(ds.other_sgd_accuracy - ds.other_lazy_accuracy)
    before = first.sel(size=other_size) - accuracy.sel(size=other_size, time=few)
    ds["other_change"] = intervals.over_seeds(ds.other_sgd_accuracy - ds.other_accuracy - before)
    for name in ("other_fit", "other_sgd_fit"):
        ds[f"{name}_mean"] = intervals.over_seeds(ds[name])
    ended_early = [d.diverged_at >= 0 for d in (flows, frozen, descent)]
    ds.attrs["diverged"] = sum(int(d.sum()) for d in ended_early)
    return ds


def add_period(ds, name, time):
    """Add the statistics of one period, of the given time, under a name."""
    flows, descent = of(ds, "flow"), of(ds, "sgd")
    largest = {"size": ds["size"].values[-1]}
    at = {"time": time, **largest}
    few, first, never = ds.accuracy.sel(at), ds.sgd_accuracy.sel(largest), ds.lazy_accuracy
    ds[f"{name}_gap_end"] = intervals.over_seeds(first - few)
    ds[f"{name}_gap_matched"] = intervals.over_seeds(ds.matched_accuracy.sel(at) - few)
    for reading, read in early_stopping.READINGS.items():
        apart = 100 * (read(descent).sel(largest) - read(flows).sel(at))
        ds[f"{name}_gap_{reading}"] = intervals.over_seeds(apart)
    closed = intervals.bootstrap_interval(
        lambda one, other, none: np.mean(one - none) / np.mean(other - none),
        *(each.values for each in (few, first, never.sel(largest))),
    )
    ds[f"{name}_share"] = closed.variable()
    ds[f"{name}_fit"] = intervals.over_seeds(ds.fit.sel(at))
    ds[f"{name}_taken"] = intervals.over_seeds(ds.taken.sel(at))
    ratio = flows.moved.isel(evaluation=-1).sel(at) / descent.moved.isel(evaluation=-1).sel(largest)
    ds[f"{name}_moved"] = intervals.over_seeds(ratio)
    for layer in ds.layer.values:
        apart = (ds.sgd_probe - ds.flow_probe.sel(time=time)).sel(layer=layer)
        ds[f"{name}_probe_gap_{layer}"] = intervals.over_seeds(apart)
    slopes = [
        intervals.slope_per_decade(each, "size")
        for each in (ds.accuracy.sel(time=time), ds.sgd_accuracy)
    ]
    ds[f"{name}_slope"] = intervals.over_seeds(slopes[0] - slopes[1])


def table(ds):
    """Return a table of how the runs end, for each training set."""
    head = ["examples", "run", "updates", "fit (%)", "test (%)", "below SGD", "at the same loss"]
    rows = []
    for size in ds["size"].values:
        at = ds.sel(size=size)
        text = tables.interval_text
        rows.append([size, "K = 1 (SGD)", "–", text(at.sgd_fit), text(at.sgd_accuracy), "–", "–"])
        for time in ds.time.values:
            one = at.sel(time=time)
            row = [size, f"τ = {time:g}", text(one.taken), text(one.fit), text(one.accuracy)]
            row += [text(at.sgd_accuracy - one.accuracy), text(one.matched_accuracy - one.accuracy)]
            rows.append(row)
        row = [size, "K = ∞ (proxy)", 0, "–", text(at.lazy_accuracy)]
        rows.append([*row, text(at.sgd_accuracy - at.lazy_accuracy), "–"])
    return tables.table(head, rows)


def features_table(ds):
    """Return a table of what the networks have learnt at their end, largest training set."""
    text, largest = tables.interval_text, ds.isel(size=-1)
    head = ["run", "filters moved", *(f"probe of {layer} (%)" for layer in probes.LAYERS)]
    ends = {"K = 1 (SGD)": (largest.sgd_moved.isel(sgd_look=-1), ds.sgd_probe)}
    for time in ds.time.values:
        moved = largest.flow_moved.isel(flow_look=-1).sel(time=time)
        ends[f"τ = {time:g}"] = moved, ds.flow_probe.sel(time=time)
    rows = [
        [label, text(moved, 2), *(text(probe.sel(layer=at)) for at in probes.LAYERS)]
        for label, (moved, probe) in ends.items()
    ]
    return tables.table(head, rows)


def weights_table(ds):
    """Return a table of the same periods from two kinds of initial weights, on one size."""
    text, before = tables.interval_text, ds.sel(size=ds.other_size)
    head = ["initial weights", "updates", "SGD (%)", f"τ = {ds.few:g} (%)", "below SGD"]
    head.append("K = ∞ below SGD")
    short = before.sel(time=ds.few)
    runs_of = {
        "LeCun": (short.taken, before.sgd_accuracy, short.accuracy, before.lazy_accuracy),
        ds.other_weight.capitalize(): (
            ds.other_taken,
            ds.other_sgd_accuracy,
            ds.other_accuracy,
            ds.other_lazy_accuracy,
        ),
    }
    rows = [
        [label, *map(text, (taken, sgd, flow, sgd - flow, sgd - lazy))]
        for label, (taken, sgd, flow, lazy) in runs_of.items()
    ]
    return tables.table(head, rows)


def differences_table(ds):
    """Return a table of the other numbers that the page's text gives, largest training set."""
    few, long, largest = f"τ = {ds.few:g}", f"τ = {ds.long:g}", ds.isel(size=-1)
    slow = largest.sel(time=ds.long)
    never = 100 * largest.lazy_test_accuracy_proxy.max("lazy_look") - slow.accuracy
    first_loss = intervals.mean_interval(np.log(slow.flow_train_loss.isel(flow_look=1)))
    moved = largest.flow_moved.isel(flow_look=-1) / largest.sgd_moved.isel(sgd_look=-1)
    found = {
        f"best accuracy of K = ∞ minus {long} at its end": intervals.mean_interval(never),
        f"training loss after the first period, {long}": np.exp(first_loss),
        f"accuracy gained per factor of ten in data, {few} minus SGD": ds.few_slope,
        f"the same, {long} minus SGD": ds.long_slope,
        "the same, K = ∞ minus SGD": ds.lazy_slope,
    }
    for time in ds.time.values:
        ratio = moved.sel(time=time).transpose("seed")
        found[f"filters moved, τ = {time:g} over SGD"] = intervals.mean_interval(ratio)
    for label, name in ((few, "few"), (long, "long")):
        for layer in ds.layer.values:
            found[f"probe of {layer}, SGD minus {label}"] = ds[f"{name}_probe_gap_{layer}"]
    rows = [[label, intervals.text(found[label])] for label in found]
    return tables.table(["accuracies in points", "mean [95 % interval]"], rows)
