"""The figure, the tables and the statistics of the page on damping a CNN."""

import matplotlib.pyplot as plt
import numpy as np
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping


def draw(ds):
    """Draw accuracy and linearisations against damping, and accuracy along the runs."""
    _, (top, middle, bottom) = plotting.panels(3)
    for reading, marker in (("oracle", "o"), ("validated", "s")):
        label = {"oracle": "best on the test set", "validated": "chosen by validation"}[reading]
        values = ds[f"accuracy_{reading}"].transpose("seed", "penalty")
        if np.isfinite(values).any():
            plotting.points(top, ds.penalty, values, marker=marker, label=label)
    total = (1 + ds.updates.isel(evaluation=-1)).transpose("seed", "penalty")
    plotting.points(middle, ds.penalty, total, label="whole run")
    to_fit = ds.linearizations_to_fit.transpose("seed", "penalty")
    plotting.points(middle, ds.penalty, to_fit, marker="s", label="to fit the training set")
    palette = plt.get_cmap("viridis")(np.linspace(0, 0.9, ds.sizes["penalty"]))
    for penalty, colour in zip(ds.penalty.values, palette, strict=True):
        at = ds.sel(penalty=penalty)
        steps = at.step.isel(seed=0)
        mean = 100 * at.test_accuracy.mean("seed")
        bottom.plot(steps / 1000, mean, color=colour, label=rf"$\lambda={penalty:g}$")
    for penalty in np.atleast_1d(ds.attrs["compared"]):
        top.axvline(penalty, color="0.7", ls=":", lw=1, zorder=0)
    top.set(
        xlabel=r"penalty $\lambda$ (damping $2\lambda$)", xscale="log", ylabel="test accuracy (%)"
    )
    middle.set(xlabel=r"penalty $\lambda$ (damping $2\lambda$)", xscale="log", yscale="log")
    middle.set(ylabel="linearisations")
    middle.yaxis.set_major_formatter("{x:g}")
    middle.yaxis.set_minor_formatter("{x:g}")
    bottom.set(xlabel="steps of Adam (thousands)", ylabel="test accuracy (%)")
    top.legend(loc="best")
    middle.legend(loc="best")
    bottom.legend(loc="lower right")
    plt.show()


def add_statistics(ds, compared):
    """Return the runs with what the claim is judged by, each with its interval over seeds.

    A gain is the accuracy at the large of the two compared penalties minus that at the small one,
    in percentage points.
    """
    small, large = compared
    ds = early_stopping.add_accuracies(ds)
    for name in early_stopping.READINGS:
        accuracy = ds[f"accuracy_{name}"]
        gain = accuracy.sel(penalty=large) - accuracy.sel(penalty=small)
        ds[f"gain_{name}"] = intervals.over_seeds(gain)
    # Linearisations until the network itself classifies 99 % of its training examples.
    fits = ds.train_accuracy >= 0.99
    taken = 1 + ds.updates.isel(evaluation=fits.argmax("evaluation"))
    ds["linearizations_to_fit"] = taken.where(fits.any("evaluation"))
    ratio = np.log10(
        ds.linearizations_to_fit.sel(penalty=large) / ds.linearizations_to_fit.sel(penalty=small)
    )
    ds["linearizations_ratio"] = intervals.over_seeds(ratio)
    return ds


def summary(ds):
    """Return a table of how the runs end, and one of what damping gains."""
    small, large = np.atleast_1d(ds.attrs["compared"])
    rows = [
        [words, intervals.text(ds[name], 2)]
        for words, name in (
            ("accuracy, best on the test set (points)", "gain_oracle"),
            ("accuracy, chosen by validation (points)", "gain_validated"),
            ("log10 of linearisations to fit the training set", "linearizations_ratio"),
        )
    ]
    head = [f"λ = {large:g} against λ = {small:g}", "difference"]
    label = "λ = {:g}".format
    return tables.readings(ds, "penalty", label), tables.table(head, rows)
