"""The figures, the table and the statistics of the page on damping a quintic."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin import Status
from iterlin_study.data import toy
from iterlin_study.report import intervals, plotting, tables

RANGES = {"[-4, 4]": (-4.0, 4.0), "[-3.6, 3.8]": (-3.6, 3.8)}  # of the inputs
BIASES = {"zero": 0.0, "random": 0.5}  # scales of the initial biases
DROP_ABOVE, SHOWN_SEEDS = 2.5, 12
LOOKS = {
    "mean": {"color": plotting.COLOURS[0], "marker": "o"},
    "median": {"color": plotting.COLOURS[1], "marker": "s"},
    "worst 5 %": {"color": plotting.COLOURS[3], "ls": "--"},
    "best 5 %": {"color": plotting.COLOURS[2], "ls": "--"},
}


def kept(ds, suffix=""):
    """Return test errors and roughness of the runs that the paper keeps; NaN for the others.

    suffix: "" for the runs with damping, "_time" for those with periods.
    """
    names = {f"{name}{suffix}": name for name in ("test_rmse", "roughness")}
    return ds[list(names)].where(ds[f"train_rmse{suffix}"] <= DROP_ABOVE).rename(names)


def spread(samples):
    """Return mean, median and 5 % tails over the last axis, each with its bootstrap interval."""
    statistics = {
        "mean": mean,
        "median": quantile(0.5),
        "worst 5 %": quantile(0.95),
        "best 5 %": quantile(0.05),
    }
    return {name: intervals_of(statistic, samples) for name, statistic in statistics.items()}


def mean(samples):
    return np.nanmean(samples, -1)


def quantile(share):
    return lambda samples: intervals.nan_quantile(samples, share)


def intervals_of(statistic, samples):
    """Return the bootstrap interval of a statistic of each row: (row, bound)."""
    options = {"resamples": 500, "vectorized": True}
    return np.array([intervals.bootstrap_interval(statistic, row, **options) for row in samples])


def draw_panel(axis, dials, errors):
    """Draw the errors (dial, seed) of runs and their spread; the number of dropped runs above."""
    jitter = np.random.default_rng(0).uniform(-0.05, 0.05, errors.shape[1])
    for dial, runs in zip(dials, errors, strict=True):
        axis.plot(dial * 10**jitter, runs, ".", color="0.7", ms=2.5, zorder=0)
    for name, bounds in spread(errors).items():
        axis.plot(dials, bounds[:, 0], label=name, ms=4, **LOOKS[name])
        axis.fill_between(dials, *bounds[:, 1:].T, color=LOOKS[name]["color"], alpha=0.2, lw=0)
    for dial, count in zip(dials, np.isnan(errors).sum(1), strict=True):
        if count:
            style = {"ha": "center", "va": "top", "color": "0.3", "fontsize": 7}
            place = (dial, 0.97)
            axis.annotate(f"{count}", place, xycoords=("data", "axes fraction"), **style)


def panels(ds, bias):
    """Yield (title, dials, test errors of the runs kept) of the panels of a column."""
    by_time = kept(ds, "_time").test_rmse.sel(bias=bias)
    yield "periods, $x \\in [-4, 4]$", 1 / by_time.time.values, by_time.values
    for span in ds.range.values:
        errors = kept(ds).test_rmse.sel(range=span, bias=bias)
        yield rf"damping, $x \in {span}$", errors.damping.values, errors.values


def draw(ds):
    """Draw test errors against either dial, a column for each way to draw the biases."""
    fig, axes = plotting.panels(3, 2, height=2.9, sharex=True, sharey=True)
    for column, bias in zip(axes.T, ds.bias.values, strict=True):
        for axis, (title, dials, errors) in zip(column, panels(ds, bias), strict=True):
            draw_panel(axis, dials, errors)
            axis.set(xscale="log", yscale="log", ylim=(0.05, 2000), title=title)
        axis.set_xlabel(rf"$\lambda$ or $1/(\eta K)$, {bias} biases")
    for axis in axes[:, 0]:
        axis.set_ylabel("test RMSE")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=4)
    plt.show()


def draw_functions(ds):
    """Draw what the networks of a few dampings compute, over the data."""
    split = toy.quintic(*RANGES["[-4, 4]"])
    _, axes = plotting.panels(4, 2, height=2.2, sharex=True, sharey=True)
    for column, bias in zip(axes.T, BIASES, strict=True):
        for axis, damping in zip(column, ds.function_damping.values, strict=True):
            functions = ds.function.sel(range="[-4, 4]", bias=bias, function_damping=damping)
            axis.plot(
                split.test.x[::4, 0], functions.T, color=plotting.COLOURS[0], lw=0.7, alpha=0.6
            )
            axis.plot(*(a[:, 0] for a in split.test), color="k", ls="--", lw=1)
            axis.plot(*(a[:, 0] for a in split.train), "o", color=plotting.COLOURS[1], ms=3.5)
            axis.set(ylim=(-13, 11), title=rf"$\lambda = {damping:g}$, {bias} biases")
    for axis in axes[-1]:
        axis.set_xlabel("$x$")
    for axis in axes[:, 0]:
        axis.set_ylabel("$f(x)$")
    plt.show()


def draw_roughness(ds):
    """Draw how rough the functions are, and how many runs have not converged, against damping."""
    _, (top, bottom) = plotting.panels(2)
    split = toy.quintic(*RANGES["[-4, 4]"])
    x, y = (np.asarray(a[:, 0]) for a in split.test)
    top.axhline(
        np.abs(np.diff(np.diff(y) / np.diff(x))).sum(), color="k", ls=":", label="the quintic"
    )
    for colour, marker, bias in zip(plotting.COLOURS, "os", BIASES, strict=False):
        view = kept(ds).sel(range="[-4, 4]", bias=bias).roughness
        bounds = intervals_of(quantile(0.5), view.values)
        top.plot(view.damping, bounds[:, 0], color=colour, marker=marker, label=f"{bias} biases")
        top.fill_between(view.damping, bounds[:, 1], bounds[:, 2], color=colour, alpha=0.2, lw=0)
        unfinished = ds.status.sel(range="[-4, 4]", bias=bias) != int(Status.CONVERGED)
        style = {"color": colour, "marker": marker, "label": f"{bias} biases"}
        bottom.plot(view.damping, 100 * unfinished.mean("seed"), **style)
    for axis in (top, bottom):
        axis.set(xscale="log", xlabel=r"damping $\lambda$")
    top.set(yscale="log", ylabel="roughness (total variation of $f'$)")
    bottom.set(ylabel="runs not converged (%)", ylim=(0, 100))
    top.legend()
    bottom.legend()
    plt.show()


def dataset_of(outcomes, of_time, dampings, times, function_dampings):
    """Return the runs as one data set.

    Args:
        outcomes: of (range, bias), for each damping: the outcomes of all seeds by name, and their
            functions (seed, point).
        of_time: of a bias, for each time of a period: the outcomes of all seeds by name.
        function_dampings: the dampings whose functions are kept, of the first seeds.
    """
    variables = {}
    for name in outcomes["[-4, 4]", "zero"][0][0]:
        values = [
            [[np.asarray(o[0][name]) for o in outcomes[s, b]] for b in BIASES] for s in RANGES
        ]
        variables[name] = (("range", "bias", "damping", "seed"), np.asarray(values))
        values = [[np.asarray(o[name]) for o in of_time[b]] for b in BIASES]
        values = np.asarray(values)
        variables[f"{name}_time"] = (("bias", "time", "seed"), values)
    chosen = [dampings.index(damping) for damping in function_dampings]
    functions = [
        [[np.asarray(outcomes[s, b][i][1][:SHOWN_SEEDS]) for i in chosen] for b in BIASES]
        for s in RANGES
    ]
    dims = ("range", "bias", "function_damping", "shown_seed", "point")
    variables["function"] = (dims, np.asarray(functions, np.float32))
    coordinates = {
        "range": list(RANGES),
        "bias": list(BIASES),
        "damping": dampings,
        "time": times,
        "function_damping": function_dampings,
        "seed": np.arange(values.shape[-1]),
    }
    return xr.Dataset(variables, coordinates)


def ratio(statistic):
    """Return a function: the decimal logarithm of the ratio of a statistic of two samples."""
    return lambda a, b: np.log10(statistic(a) / statistic(b))


RATIOS = {"mean_ratio": mean, "worst_ratio": quantile(0.95), "best_ratio": quantile(0.05)}


def add_statistics(ds):
    """Return the runs with what the claims are judged by, each with its interval over seeds.

    Ratios are decimal logarithms of damping 0.001 over 1, or of periods of time 1000 over 1, for
    either way to draw the biases.
    """

    def interval(statistic, *samples):
        return intervals.bootstrap_interval(ratio(statistic), *samples, vectorized=True).variable()

    for bias in BIASES:
        ends = {
            "": [kept(ds).sel(range="[-4, 4]", bias=bias, damping=d) for d in (1e-3, 1.0)],
            "_time": [kept(ds, "_time").sel(bias=bias, time=t) for t in (1e3, 1.0)],
        }
        for suffix, (free, held) in ends.items():
            for name, statistic in RATIOS.items():
                ds[f"{name}{suffix}_{bias}"] = interval(statistic, free.test_rmse, held.test_rmse)
        rough = (end.roughness for end in ends[""])
        ds[f"roughness_ratio_{bias}"] = interval(quantile(0.5), *rough)
    return ds


def table(ds):
    """Return a table of the test errors over the seeds that are kept."""
    rows = []
    for bias in BIASES:
        by_damping = kept(ds).sel(range="[-4, 4]", bias=bias).test_rmse
        by_time = kept(ds, "_time").sel(bias=bias).test_rmse
        runs = [(f"λ = {d:.2g}", by_damping.sel(damping=d).values) for d in ds.damping.values]
        runs += [(f"ηK = {t:g}", by_time.sel(time=t).values) for t in ds.time.values]
        for dial, samples in runs:
            summary = [bounds[0] for bounds in spread(samples[None]).values()]
            cells = [f"{e:.3g} [{lo:.3g}, {up:.3g}]" for e, lo, up in summary]
            cells += [f"{extreme:.3g}" for extreme in (np.nanmin(samples), np.nanmax(samples))]
            rows.append([bias, dial, *cells, int(np.isnan(samples).sum())])
    head = [
        "biases",
        "run",
        "mean",
        "median",
        "worst 5 %",
        "best 5 %",
        "minimum",
        "maximum",
        "dropped",
    ]
    return tables.table(head, rows, "Test RMSE on [-4, 4] over the seeds kept")
