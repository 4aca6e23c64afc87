"""The figures, the table and the statistics of the page on XOR."""

import jax
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin import Status
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import features

STEP_SIZE = 0.05  # of gradient descent: eta K is the time of a period
WIDEST, STEPS, POINTS = 100.0, 401, 101


def stretch(x, a, u, b) -> float:
    """Return the factor c for which the curve b over c u lies nearest to the curve a over x.

    x, a (M,), u, b (L,): two curves over positive axes, in increasing order. Nearest is where the
    mean square of a(x) - b(x / c), over x spread evenly in log x between its ends, is least. Both
    curves are linear in the logarithm of their axis between its points, and keep their last values
    beyond its ends. c is one of 401 values from 1/100 to 100, 2.3 % apart; the least if several do.
    """
    x, u = np.log(x), np.log(u)
    places = np.linspace(x[0], x[-1], POINTS)
    shifts = np.linspace(-np.log(WIDEST), np.log(WIDEST), STEPS)
    apart = np.interp(places, x, a) - np.interp(places - shifts[:, None], u, b)
    return float(np.exp(shifts[np.argmin(np.mean(apart**2, axis=1))]))


def learnt(view, axis, name):
    """Return a quantity of the runs that fit; NaN where the training error exceeds 1."""
    return view[name].where(view[f"train_mse_{axis}"] <= 1)


def exchange_rate(ds):
    """Return c of lambda = c / (eta K), which brings both curves of the alignment closest."""
    ds = ds.sel(scale="small").sortby("period").sortby("damping", ascending=False)
    by_period, by_damping = (
        learnt(ds, axis, f"alignment_{axis}").mean("unit").transpose("seed", axis)
        for axis in ("period", "damping")
    )
    by_period = by_period.sel(period=slice(10, 1e5))  # beyond, the runs that fit are a selection
    times, lengths = STEP_SIZE * by_period.period.values, 1 / by_damping.damping.values
    return intervals.bootstrap_interval(
        lambda a, b: stretch(times, np.nanmean(a, 0), lengths, np.nanmean(b, 0)),
        by_period,
        by_damping,
    )


def add_statistics(ds):
    """Return the runs with what the claims are judged by, each with its interval over seeds."""
    ends = {"period": (10.0, 1e5), "damping": (2.0, 2e-4)}
    for scale in ds.scale.values:
        for axis, (most, least) in ends.items():
            mean = learnt(ds, axis, f"alignment_{axis}").sel(scale=scale).mean("unit")
            drop = mean.sel({axis: most}) - mean.sel({axis: least})
            ds[f"alignment_drop_{axis}_{scale}"] = intervals.over_seeds(drop)
        # Diverged runs count here: they are what it costs.
        accuracy = ds.test_accuracy_period.sel(scale=scale)
        change = 100 * (accuracy.sel(period=1e5) - accuracy.sel(period=10))
        ds[f"accuracy_change_{scale}"] = intervals.over_seeds(change)
    ds["exchange_rate"] = exchange_rate(ds).variable()
    return ds


def dataset_of(found, scales, periods, dampings):
    """Return the runs as one data set: every alignment, and the features of the first seed.

    found: by dial ("period", "damping") and by scale, arrays that lead with (dial, seed).
    """
    variables = {}
    for axis, per_scale in found.items():
        stacked = jax.tree.map(lambda *parts: np.stack(parts), *per_scale.values())
        feature = stacked.pop("feature")
        output_weight = stacked.pop("output_weight")
        dims = ("scale", axis, "seed")
        alignment = np.asarray(features.alignment(feature), np.float32)
        variables[f"alignment_{axis}"] = ((*dims, "unit"), alignment)
        first = (*dims[:2], "unit")
        variables[f"feature_{axis}"] = ((*first, "coordinate"), feature[:, :, 0].astype(np.float32))
        variables[f"output_weight_{axis}"] = (first, output_weight[:, :, 0].astype(np.float32))
        for name, value in stacked.items():
            variables[f"{name}_{axis}"] = (dims, np.asarray(value))
    coordinates = {
        "scale": list(scales),
        "period": np.asarray(periods, float),
        "damping": np.asarray(dampings, float),
        "seed": np.arange(alignment.shape[2]),
    }
    return xr.Dataset(variables, coordinates)


def figure7(ds, scale, values, axis, title):
    """Draw features of one seed beside the alignment histogram of all, a row per value."""
    fig, axes = plotting.panels(len(values), 2, height=2.5, sharex="col", sharey="col")
    view = ds.sel(scale=scale)
    limit = float(np.abs(view[f"feature_{axis}"].sel({axis: values})).max()) * 1.1
    span = float(np.abs(view[f"output_weight_{axis}"].sel({axis: values})).max())
    for (plane, bars), value in zip(axes, values, strict=True):
        at = view.sel({axis: value}, method="nearest")
        w = at[f"feature_{axis}"].values
        for corner in np.array([(1, 1), (1, -1)]):
            plane.axline((0, 0), corner, color="0.85", lw=0.8, zorder=0)
        style = {"cmap": "RdBu_r", "vmin": -span, "vmax": span}
        style |= {"s": 14, "edgecolor": "0.4", "linewidth": 0.3}
        dots = plane.scatter(*w.T, c=at[f"output_weight_{axis}"], **style)
        plane.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")
        plane.set(title=title(value), ylabel="weight $w_2$")
        every = at[f"alignment_{axis}"]
        bars.hist(every.values.ravel(), bins=np.linspace(2**-0.5, 1, 25), density=True)
        mean = intervals.mean_interval(every.mean("unit").values)
        bars.axvline(mean.estimate, color="k", lw=1)
        bars.axvline(features.RANDOM_ALIGNMENT, color="0.5", lw=1, ls="--")
        words = f"mean {intervals.text(mean, 3)}".replace(" [", "\n[")
        bars.text(0.04, 0.95, words, transform=bars.transAxes, va="top")
        bars.set_ylabel("density")
    axes[-1, 0].set_xlabel("first-layer weight $w_1$")
    axes[-1, 1].set_xlabel("alignment $a$")
    fig.colorbar(dots, ax=axes, location="top", label="output weight", shrink=0.5, aspect=30)
    return fig


def title_of_damping(value):
    """Return the title of a panel, such as lambda = 2 10^-4."""
    if value >= 1e-3:
        return rf"$\lambda = {value:g}$"
    digit, power = f"{value:.0e}".split("e")
    return rf"$\lambda = {digit}\cdot10^{{{int(power)}}}$"


def chosen_periods(ds):
    """Return the periods that Figure 7 shows."""
    return [k for k in ds.period.values if k in (10, 1e3, 1e4, 1e5)]


def draw_periods(ds):
    """Draw Figure 7 by period."""
    figure7(ds, "small", chosen_periods(ds), "period", plotting.period_label)
    plt.show()


def draw_dampings(ds):
    """Draw Figure 7 by damping, at the dampings paired with the periods of `draw_periods`."""
    chosen = [1 / (STEP_SIZE * k) for k in chosen_periods(ds)]
    paired = [d for d in ds.damping.values if np.isclose(d, chosen, rtol=1e-6).any()]
    figure7(ds, "small", paired, "damping", title_of_damping)
    plt.show()


def draw_collapse(ds, live=None):
    """Draw alignment and test error against either dial, with the means of a live run as well."""
    fig, (top, bottom) = plotting.panels(2)
    for colour, scale in zip(plotting.COLOURS, ds.scale.values, strict=False):
        for axis, marker, line in (("period", "o", "-"), ("damping", "s", "--")):
            view = ds.sel(scale=scale)
            x = STEP_SIZE * view.period if axis == "period" else 1 / view.damping
            label = f"{scale} init, " + (
                r"period: $\eta K$" if axis == "period" else r"damping: $1/\lambda$"
            )
            style = {"marker": marker, "ls": line, "color": colour, "label": label, "ms": 5}
            alignment = learnt(view, axis, f"alignment_{axis}").mean("unit").transpose("seed", axis)
            plotting.points(top, x, alignment, **style)
            if live is not None:
                now = live.sel(scale=scale)
                x_now = STEP_SIZE * now.period if axis == "period" else 1 / now.damping
                mean = now[f"alignment_{axis}"].mean(("unit", "seed"))
                top.plot(x_now, mean, ls="", marker=marker, mfc="none", mec="k", ms=8, mew=0.7)
            error = np.sqrt(learnt(view, axis, f"test_mse_{axis}")).transpose("seed", axis)
            plotting.points(bottom, x, error, **style)
    top.axhline(features.RANDOM_ALIGNMENT, color="0.5", ls="--", lw=1)
    top.set(xscale="log", xlabel=r"$\eta K$ or $1/\lambda$", ylabel="mean alignment")
    bottom.set(xscale="log", xlabel=r"$\eta K$ or $1/\lambda$", ylabel="test RMSE", yscale="log")
    fig.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    plt.show()


def draw_rate(ds):
    """Draw alignment against either dial at the fitted exchange rate, and the rate of one mode."""
    rate, *bounds = (float(v) for v in ds.exchange_rate)
    _, (top, bottom) = plotting.panels(2)
    view, blue, orange = ds.sel(scale="small"), *plotting.COLOURS[:2]
    open_style = {"mfc": "none", "alpha": 0.6, "ls": ":"}
    for axis, x, style in (
        ("period", STEP_SIZE * view.period, {"label": r"period, at $\eta K$"}),
        ("damping", 1 / view.damping, {"label": r"damping, at $1/\lambda$"} | open_style),
        ("damping", rate / view.damping, {"label": rf"at ${rate:.2f}/\lambda$"}),
    ):
        alignment = learnt(view, axis, f"alignment_{axis}").mean("unit").transpose("seed", axis)
        style |= (
            {"marker": "o", "color": blue} if axis == "period" else {"marker": "s", "color": orange}
        )
        plotting.points(top, x, alignment, ms=5, **style)
    top.axhline(features.RANDOM_ALIGNMENT, color="0.5", ls="--", lw=1)
    top.set(xscale="log", xlabel=r"$\eta K$, $1/\lambda$ or $c/\lambda$", ylabel="mean alignment")
    top.legend()
    x = np.geomspace(1e-2, 20, 200)
    bottom.plot(x, x / np.expm1(x), color="k", label=r"one mode: $c = x/(e^x - 1)$")
    bottom.axhline(rate, color=orange, label="fitted to the alignment")
    bottom.axhspan(*bounds, color=orange, alpha=0.2, lw=0)
    bottom.set(xscale="log", xlabel=r"$x = \eta K s^2$", ylim=(0, 1.05))
    bottom.set_ylabel(r"exchange rate $c = \lambda\,\eta K$")
    bottom.legend()
    plt.show()


def rate_sentence(ds):
    """Return the fitted exchange rate in words, with the mode that has this rate."""
    rate = float(ds.exchange_rate[0])
    x = np.geomspace(1e-2, 20, 200)
    same = np.interp(-rate, -x / np.expm1(x), x)  # np.interp requires increasing values
    lower, upper = (float(v) for v in ds.exchange_rate[1:])
    return tables.said(
        f"Fitted: c = {rate:.2f}, 95 % interval [{lower:.2f}, {upper:.2f}]. It is the "
        f"rate of a mode with x = {same:.1f}, "
        f"which a period moves by {-100 * np.expm1(-same):.0f} % of its way."
    )


def table(ds):
    """Return a table of how the runs end, for each initialisation and dial."""
    rows = []
    for scale in ds.scale.values:
        for axis in ("period", "damping"):
            view = ds.sel(scale=scale)
            for value in view[axis].values:
                at = view.sel({axis: value})
                alignment = learnt(at, axis, f"alignment_{axis}").mean("unit")
                error = np.sqrt(learnt(at, axis, f"test_mse_{axis}"))
                found = (intervals.mean_interval(each.values) for each in (alignment, error))
                diverged = int((~(at[f"train_mse_{axis}"] <= 1)).sum())
                name = plotting.period_text(value) if axis == "period" else f"λ = {value:g}"
                taken = np.median(at[f"linearizations_{axis}"])
                measured = [intervals.text(interval, 3) for interval in found]
                status = at[f"status_{axis}"]
                converged = f"{int((status == Status.CONVERGED).sum())} of {status.size}"
                rows.append([scale, name, *measured, f"{taken:.0f}", converged, diverged])
    head = ["init", "run", "mean alignment", "test RMSE", "linearisations (median)", "converged"]
    return tables.table([*head, "diverged"], rows)
