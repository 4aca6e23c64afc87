"""The figure, the tables and the statistics of the page on ResNet18."""

import matplotlib.pyplot as plt
import numpy as np
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping

TITLES = {
    "plain": "no normalisation, no augmentation",
    "batch": "batch normalisation",
    "frozen": "batch normalisation, frozen",
}
KEPT = ["step", "updates", "diverged_at", "accuracy_oracle", "accuracy_validated", "test_accuracy"]
KEPT += ["test_accuracy_proxy", "train_accuracy", "train_loss"]


def with_name(ds, name):
    """Return what is kept of one variant, its variables, periods and evaluations under its name."""
    ds = early_stopping.add_accuracies(ds)
    ds = ds[[variable for variable in KEPT if variable in ds]]
    names = {old: f"{old}_{name}" for old in [*ds.data_vars, "period", "evaluation"]}
    return ds.rename(names).drop_attrs()


def variant(ds, name):
    """Return one variant of a record, as `grids.grid` returned it."""
    ending = f"_{name}"
    chosen = ds[[v for v in ds.data_vars if v.endswith(ending)]]
    chosen = chosen.drop_vars([v for v in chosen.data_vars if v.removesuffix(ending) not in KEPT])
    names = [*chosen.data_vars, f"period_{name}", f"evaluation_{name}"]
    return chosen.rename({old: old.removesuffix(ending) for old in names})


def variants(ds):
    """Return the names of the variants that a record holds."""
    return [name for name in TITLES if f"step_{name}" in ds]


def draw(ds):
    """Draw test accuracy against steps, a panel for each variant."""
    names = variants(ds)
    _, axes = plotting.panels(len(names), sharey=True, squeeze=False)
    for axis, name in zip(axes[:, 0], names, strict=True):
        one = variant(ds, name)
        colours = plotting.colours_by_period(one.period.values)
        for index, period in enumerate(one.period.values):
            at, colour = one.isel(period=index), colours[index]
            x = at.step.isel(seed=0)
            label = plotting.period_label(float(period))
            plotting.band(axis, x, 100 * at.test_accuracy, color=colour, label=label)
            if period > 1:
                proxy = 100 * at.test_accuracy_proxy
                plotting.band(
                    axis, x, proxy, color=colour, ls="--", lw=1.2, label=f"{label}, proxy"
                )
        axis.set(title=TITLES[name], xlabel="steps", ylabel="test accuracy (%)")
        axis.legend(loc="upper left")
    highest = max(100 * float(variant(ds, name).test_accuracy.max()) for name in names)
    axes[0, 0].set_ylim(0, min(100, 1.3 * highest))
    plt.show()


def add_statistics(ds, names):
    """Return the runs with what the claim is judged by: the gap of each of the named variants.

    A gap is the best accuracy at K = 1 minus that at the large period, in percentage points, with
    its interval over seeds; NaN of a variant without finished runs.
    """
    for name in names:
        gap = np.full(ds.sizes["seed"], np.nan)
        if name in variants(ds):
            best = variant(ds, name).accuracy_oracle
            gap = best.sel(period=1) - best.isel(period=-1)
        ds[f"gap_{name}"] = intervals.over_seeds(gap)
    return ds


def summary(ds):
    """Return the table of `tables.readings` of every variant."""
    return [tables.readings(variant(ds, name), title=TITLES[name]) for name in variants(ds)]
