"""The figures, the tables and the statistics of the page on rescaling."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables


def draw(ds):
    """Draw the collapse of step sizes over time, and where a frozen problem is unstable."""
    fig, (top, middle, bottom) = plotting.panels(3)
    styles = [(0, ()), (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2))]
    colours = plotting.colours_by_period(1 + np.arange(ds.sizes["time_period"]))  # K = 1 first
    for colour, time_period in zip(colours, ds.time_period.values, strict=True):
        for style, step_size in zip(styles, np.sort(ds.step_size.values), strict=False):
            at = ds.sel(step_size=step_size, time_period=time_period)
            top.plot(ds.time, at.train_loss.mean("seed"), color=colour, ls=style)
            middle.plot(ds.time, 100 * at.test_accuracy.mean("seed"), color=colour, ls=style)
        ball = ds.sel(time_period=time_period)
        dots = {"color": colour, "ls": "none", "marker": "o", "ms": 4}
        top.plot(ds.time, ball.momentum_train_loss.mean("seed"), **dots)
        middle.plot(ds.time, 100 * ball.momentum_test_accuracy.mean("seed"), **dots)
        label = "$K=1$" if time_period == 0 else rf"$\eta K={time_period:g}$"
        top.plot([], [], color=colour, label=label)
    for style, step_size in zip(styles, np.sort(ds.step_size.values), strict=False):
        middle.plot([], [], color="0.3", ls=style, label=rf"$\eta={step_size:g}$")
    label = rf"$\mu={ds.momentum:g}$, $\eta={ds.momentum_step_size:g}$"
    middle.plot([], [], color="0.3", ls="none", marker="o", ms=4, label=label)
    top.set(xlabel="time: steps times time of a step", ylabel="training loss")
    # A diverging run would leave no room for the others.
    top.set_ylim(0, 1.5 * float(ds.train_loss.isel(evaluation=0).mean()))
    middle.set(xlabel="time: steps times time of a step", ylabel="test accuracy (%)")
    top.legend(loc="upper right")
    middle.legend(loc="lower right")
    share = ds.unstable.mean("seed")
    for period in ds.period.values:
        at = {"period": period}
        places = np.full(ds.sizes["multiple"], float(period))
        style = {"s": 90, "edgecolor": "0.3", "linewidth": 0.6}
        style |= {"cmap": "viridis_r", "vmin": 0, "vmax": 1}
        drawn = bottom.scatter(ds.multiple, places, c=share.sel(at), **style)
    bottom.axvline(1, color="0.4", ls=":", lw=1.2)
    bottom.set(xlabel=r"$\eta\,\lambda_{\max}/2$ at initialisation")
    bottom.set(ylabel="period $K$", yscale="log")
    fig.colorbar(drawn, ax=bottom, label="share of unstable runs")
    plt.show()


def draw_orders(ds):
    """Draw the distance to the flow against the step size, beside slopes 1 and 1/2."""
    _, axis = plotting.panels(1, height=3.8)
    # Before there are lines: a log axis takes none that are NaN alone, as of runs that are missing.
    axis.set(xscale="log", yscale="log", xlabel=r"step size $\eta$", ylabel="distance to the flow")
    sizes = ds.order_step_size.values
    for index, (label, order) in enumerate({"full batch": 1, "minibatches": 0.5}.items()):
        found = ds.order_errors.isel(steps=index).transpose("order_seed", "order_step_size")
        style = {"color": plotting.COLOURS[index], "marker": "o", "label": label}
        plotting.band(axis, sizes, found, geometric=True, **style)
        middle_error = float(np.exp(np.log(found).mean()))
        reference = middle_error * (sizes / np.exp(np.log(sizes).mean())) ** order
        axis.plot(sizes, reference, color="0.4", ls=":", lw=1.2)
    axis.set_xticks(sizes, [f"{size:.2g}" for size in sizes])
    axis.set_xticks([], minor=True)
    axis.legend()
    plt.show()


def add_orders(ds, order_errors):
    """Add the errors of steps against the flow, and their orders in the step size."""
    ds["order_errors"] = order_errors
    # In logarithms of both: a slope there is an order.
    orders = intervals.slope_per_decade(np.log10(order_errors), "order_step_size")
    for index, (name, predicted) in enumerate({"full_batch": 1.0, "minibatch": 0.5}.items()):
        order = orders.isel(steps=index)
        ds[f"order_{name}"] = intervals.over_seeds(order)
        ds[f"order_{name}_off"] = intervals.over_seeds(order - predicted)
    return ds


def add_ends(ds, heavy, momentum_step_size):
    """Add differences of the test accuracy at the end, in percentage points, over seeds.

    "collapse": the largest step size minus the smallest. "momentum": the runs `heavy` with momentum
    minus those without it, at the step size that takes as long.
    """
    for name in ("train_loss", "test_accuracy", "diverged_at"):
        ds[f"momentum_{name}"] = heavy[name].astype("float32")
    end = 100 * ds.test_accuracy.isel(evaluation=-1)
    sizes = ds.step_size.values
    coarse, fine = (end.sel(step_size=size) for size in (sizes.max(), sizes.min()))
    plain = end.sel(step_size=momentum_step_size)
    ball = 100 * ds.momentum_test_accuracy.isel(evaluation=-1) - plain
    for index, name in enumerate(("plain", "short", "long")):
        at = {"time_period": index}
        ds[f"collapse_{name}"] = intervals.over_seeds((coarse - fine).isel(at))
        ds[f"momentum_{name}"] = intervals.over_seeds(ball.isel(at))
    return ds


def unstable(boundary):
    """Return 1 for a full-batch run whose proxy's loss grew tenfold or that diverged, else 0.

    NaN for a run that is missing.
    """
    loss = boundary.train_loss_proxy
    initial = loss.isel(evaluation=0)
    wild = ((loss > 10 * initial) | ~np.isfinite(loss)).any("evaluation")
    return (wild | (boundary.diverged_at >= 0)).astype(float).where(np.isfinite(initial))


def compared(collapse, boundary, times):
    """Return one data set: how far the curves are apart, and which runs are unstable.

    Distances are those of each step size to the smallest, the largest of all readings.
    """
    ds = xr.Dataset()
    for name in ("train_loss", "test_accuracy", "curvature", "diverged_at"):
        if name in collapse:
            ds[name] = collapse[name].astype("float32")
    ds["time"] = ("evaluation", times)
    finest = float(ds.step_size.min())
    others = ds.step_size.values[ds.step_size.values > finest]
    for name, factor in (("test_accuracy", 100), ("train_loss", 1)):
        apart = factor * np.abs(ds[name].sel(step_size=others) - ds[name].sel(step_size=finest))
        # skipna would call the largest of what a diverged run has left the distance.
        distance = apart.max("evaluation", skipna=False)
        ds[f"distance_{name}"] = distance.rename(step_size="coarse_step_size")
    largest = ds.distance_test_accuracy.max(["coarse_step_size", "time_period"], skipna=False)
    ds["largest_distance"] = intervals.over_seeds(largest)
    ds["unstable"] = unstable(boundary)
    # Step size over the boundary of the largest kernel that a run met, not of its first.
    kernel = boundary.kernel_eigenvalue
    ratio = kernel.max("evaluation") / kernel.isel(evaluation=0)
    ds["largest_ratio"] = boundary.multiple * ratio
    return ds


def ends(ds):
    """Return the orders as a sentence, and a table of differences of the accuracy at the end."""
    names = ("full_batch", "minibatch")
    full, noisy = (intervals.text(ds[f"order_{name}"], 2) for name in names)
    coarse, fine = float(ds.step_size.max()), float(ds.step_size.min())
    head = ["test accuracy at the end (points)", "K = 1"]
    head += [f"ηK = {time:g}" for time in ds.time_period.values[1:]]
    ball = f"momentum {ds.momentum:g} minus none, time of a step {ds.momentum_step_size:g}"
    rows = [
        [label, *(intervals.text(ds[f"{what}_{name}"], 1) for name in ("plain", "short", "long"))]
        for what, label in {
            "collapse": f"η = {coarse:g} minus {fine:g}",
            "momentum": ball,
        }.items()
    ]
    orders = f"Order in the step size: {full} on the full batch, {noisy} on minibatches."
    return tables.said(orders), tables.table(head, rows)


def summary(ds):
    """Return tables of how far the curves are apart, and of which runs are unstable."""
    finest = float(ds.step_size.min())
    head = ["ηK", "η", "test accuracy (points)", "training loss", "η × curvature, largest"]
    rows = []
    for time_period in ds.time_period.values:
        for step_size in ds.coarse_step_size.values:
            at = {"time_period": time_period, "coarse_step_size": step_size}
            largest = "–"
            if "curvature" in ds:
                curvature = ds.curvature.sel(time_period=time_period, step_size=step_size)
                largest = f"{step_size * float(curvature.max()):.2f}"
            period = "K = 1" if time_period == 0 else f"{time_period:g}"
            accuracy, loss = ds.distance_test_accuracy.sel(at), ds.distance_train_loss.sel(at)
            distances = tables.interval_text(accuracy), tables.interval_text(loss, 2)
            rows.append([period, f"{step_size:g}", *distances, largest])
    parts = [tables.said(f"Largest distance over readings to the curve of η = {finest:g}:")]
    parts += [tables.table(head, rows)]
    parts += [
        tables.said(f"The largest of all: {intervals.text(ds.largest_distance, 1)} points."),
        tables.said("Share of unstable runs, by step size in units of 2/λₘₐₓ at initialisation:"),
    ]
    share = ds.unstable.mean("seed")
    body = [
        [plotting.period_text(period), *[f"{float(v):.2f}" for v in share.sel(period=period)]]
        for period in ds.period.values
    ]
    head = ["", *[f"{multiple:g}" for multiple in ds.multiple.values]]
    return [*parts, tables.table(head, body)]
