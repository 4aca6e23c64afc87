"""The figure, the table and the statistics of the page on the period."""

import matplotlib.pyplot as plt
import numpy as np
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping, merging

# The time of the paper's K = 1e4 at eta = 1e-5: up to here the curves should coincide.
ALIKE = 0.1


def draw(ds):
    """Draw the curves of each period, and their readings against the time of a period."""
    every_period = ds.period.values
    colours = plotting.colours_by_period(every_period)
    _, (top, bottom) = plotting.panels(2)
    curves = 100 * early_stopping.trained(ds, "test_accuracy")
    start = curves.isel(evaluation=0)
    for period, colour in zip(every_period, colours, strict=True):
        at = {"period": period}
        step = ds.step.sel(at).max("seed")
        curve = curves.sel(at).where(step >= ds.first_reading.sel(at), start.sel(at))
        plotting.band(
            top,
            np.maximum(step, 50),
            curve.transpose("seed", ...),
            color=colour,
            label=plotting.period_label(period),
            ls="-" if np.isfinite(period) else "--",
        )
    top.set(xscale="log", xlabel="steps (step 0 at the left edge)", ylabel="test accuracy (%)")
    top.set_xlim(40, 1.25 * float(ds.step.max()))  # also where a partial record has no curve
    top.legend(loc="best")

    # A step of heavy-ball SGD takes the time eta / (1 - momentum).
    scaled = ds.attrs["step_size"] / (1 - ds.attrs.get("momentum", 0.0)) * every_period
    places = plotting.period_axis(bottom, scaled, r"$\eta K$")
    order = np.isfinite(every_period)
    solver = plotting.COLOURS[3]
    for name, marker, face, label in (
        ("oracle", "o", None, "best on the test set"),
        ("validated", "s", "white", "chosen by validation"),
    ):
        accuracy = ds[f"accuracy_{name}"].transpose("seed", "period")
        colour = plotting.COLOURS[0] if name == "oracle" else plotting.COLOURS[1]
        style = {"color": colour, "marker": marker, "markerfacecolor": face}
        plotting.points(bottom, places[order], accuracy[:, order], label=label, **style)
        plotting.points(bottom, places[~order], accuracy[:, ~order], ls="none", **style)
    found = intervals.mean_interval(ds.newton_accuracy_oracle)
    bottom.axhline(found.estimate, color=solver, lw=1.2, label="TGN (Adam), best on the test set")
    if np.isfinite(found.lower):
        plotting.span(bottom, found, color=solver, alpha=0.15, lw=0)
    bottom.axvspan(bottom.get_xlim()[0], ALIKE, color="0.5", alpha=0.1, lw=0)
    bottom.set(ylabel="test accuracy (%)")
    bottom.legend(loc="best")
    plt.show()


def largest(gap, keep):
    """Return the interval of the gap at the kept period whose mean gap is largest in size."""
    chosen = gap.sel(period=gap.period[keep])
    means = abs(chosen.mean("seed")).fillna(-1)
    return intervals.over_seeds(chosen.isel(period=int(means.argmax("period"))))


def add_statistics(ds, newton, step_time):
    """Return the runs of both grids with what the claims are judged by, with intervals over seeds.

    Differences are K = 1 minus the others, in percentage points. step_time: the time of a step.
    """
    first = np.maximum(100.0, ds.period).where(np.isfinite(ds.period), 100.0)
    ds["first_reading"] = first
    finite = np.isfinite(ds.period).values
    times = ds.period.values * step_time
    alike = finite & (ds.period.values > 1) & (times <= ALIKE * 1.001)
    top = float(ds.period[finite].max())
    # Truncated Gauss-Newton is read until the network itself fits.
    fits = newton.train_accuracy >= 1
    converging = newton.where(fits.cumsum("evaluation") - fits == 0)
    for name, read in early_stopping.READINGS.items():
        accuracy = 100 * read(ds, first_step=first)
        ds[f"accuracy_{name}"] = accuracy
        gap = accuracy.sel(period=1) - accuracy
        ds[f"largest_gap_{name}"] = largest(gap, alike)
        ds[f"drop_{name}"] = intervals.over_seeds(gap.sel(period=top))
        solved = 100 * read(converging)
        ds[f"newton_accuracy_{name}"] = solved.rename(seed="newton_seed")
        ds[f"newton_whole_{name}"] = 100 * read(newton).rename(seed="newton_seed")
        drop = accuracy.sel(period=1) - solved
        ds[f"newton_drop_{name}"] = intervals.over_seeds(drop)
    # 'Follows the same trajectory': the distance between the curves, averaged over the readings.
    curve = 100 * ds.test_accuracy
    apart = abs(curve.sel(period=1) - curve).where(ds.step >= first).mean("evaluation")
    ds["trajectory_distance"] = largest(apart, alike)
    kept = ["step", "updates", "test_accuracy", "test_accuracy_proxy", "train_accuracy"]
    kept += ["train_accuracy_proxy", "diverged_at"]
    return ds.merge(merging.named(newton[kept], "newton", ("evaluation", "seed")))


def newton_table(ds):
    """Return a table of the runs of truncated Gauss-Newton."""
    head = [
        "linear problems",
        "network's training accuracy at the end (%)",
        "best on the test set (%)",
    ]
    head += ["chosen by validation (%)", "best over the whole run (%)", "diverged"]
    row = [
        f"{float(ds.newton_updates.isel(newton_evaluation=-1).mean()) + 1:.0f}",
        tables.interval_text(100 * ds.newton_train_accuracy.isel(newton_evaluation=-1)),
        tables.interval_text(ds.newton_accuracy_oracle),
        tables.interval_text(ds.newton_accuracy_validated),
        tables.interval_text(ds.newton_whole_oracle),
        int((ds.newton_diverged_at >= 0).sum()),
    ]
    return tables.table(head, [row])
