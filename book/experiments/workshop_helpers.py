"""The figures, the tables and the statistics of the page on the workshop version."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.report.intervals import Interval
from iterlin_study.runs import early_stopping
from iterlin_study.runs.merging import of
from scipy import optimize, special, stats

NAMES = ("larger", "smaller", "mean", "all", "mnist")  # of the grids of minibatch runs
ENDS = ("fit_end", "accuracy_end", "accuracy_oracle", "accuracy_validated")
# Steepness of a logistic curve over the whole range of x beyond which it is a step.
STEEPEST = 1e4


def exact_share(outcomes) -> Interval:
    """Return the share of true outcomes with its exact interval (Clopper and Pearson, 1934).

    outcomes: 0 or 1 of any shape, taken as independent; NaN (a missing run) is left out. Without
    outcomes the share is NaN, its interval [0, 1].
    """
    kept = np.ravel(np.asarray(outcomes, dtype=float))
    kept = kept[~np.isnan(kept)]
    if not kept.size:
        return Interval(*map(np.float64, (np.nan, 0, 1)))
    found = stats.binomtest(int(kept.sum()), kept.size)
    return Interval(*map(np.float64, (found.statistic, *found.proportion_ci())))


def half_point(x, outcomes) -> Interval:
    """Return where the probability of a true outcome passes 1/2 as x grows, by a logistic fit.

    The probability is 1 / (1 + exp(-b (x - m))), b >= 0; m is given with the interval of its
    profile likelihood, which is well defined where x separates the outcomes, too: the estimate is
    then the middle of the gap. Where the outcomes have no order in x it is NaN, and a limit that
    they do not set is infinite. x and outcomes (0 or 1) have one shape and are taken as
    independent; pairs with a NaN are left out.
    """
    x, outcomes = np.asarray(x, dtype=float), np.asarray(outcomes, dtype=float)
    paired = ~(np.isnan(x) | np.isnan(outcomes))
    x, outcomes = x[paired], outcomes[paired]
    if not 0 < outcomes.sum() < outcomes.size:
        return Interval(np.float64(np.nan), np.float64(-np.inf), np.float64(np.inf))
    scale = np.ptp(x) or 1.0

    def loss(m):
        """Minus the largest log likelihood of any steepness: convex in b, which may be infinite."""
        aligned = np.where(outcomes == 1, x - m, m - x) / scale

        def of(b):
            return -np.sum(special.log_expit(b * aligned))

        found = optimize.minimize_scalar(of, bounds=(0, STEEPEST), method="bounded")
        return min(of(0.0), float(found.fun), of(STEEPEST))

    # In the logistic curve's slope and intercept the loss is convex, so that where it is at most
    # some value is an interval of m, found from any place inside.
    grid = np.linspace(x.min(), x.max(), 101)
    losses = [loss(m) for m in grid]
    start, best = grid[np.argmin(losses)], min(losses)
    near = start - scale / 100, start + scale / 100
    found = optimize.minimize_scalar(loss, bounds=near, method="bounded")
    if found.fun < best:
        start, best = found.x, found.fun

    def limit(side, allowed):
        inside = start
        for outside in start + side * scale * np.geomspace(1e-6, 1e3, 91):
            if loss(outside) > allowed:
                return optimize.brentq(lambda m: loss(m) - allowed, inside, outside)
            inside = outside
        return side * np.inf

    def limits(more):
        return limit(-1, best + more), limit(1, best + more)

    # Across a gap between the outcomes the likelihood is flat.
    flat = limits(1e-4)
    estimate = np.mean(flat) if np.isfinite(flat).all() else np.nan
    return Interval(*map(np.float64, (estimate, *limits(stats.chi2.ppf(0.95, 1) / 2))))


def failed(ds):
    """Return 1 for a run that diverged or whose training loss rose in all, else 0."""
    loss = early_stopping.trained(ds, "train_loss")
    worse = ~(loss.isel(evaluation=-1) <= loss.isel(evaluation=0))
    return ((ds.diverged_at >= 0) | worse).astype(float).where(ds.diverged_at.notnull())


def counted(ds):
    """Return the finite periods above 5 with at least three updates in a run."""
    steps = ds.step.max()
    periods = ds.period[(ds.period > 5) & np.isfinite(ds.period)]
    enough = periods[(steps - 1) // periods >= 3]
    if not enough.size:
        raise ValueError(f"no period above 5 has three updates in {int(steps)} steps")
    return enough


def in_linearization(ds):
    """Return where full-batch runs failed, and whether they did.

    The first is eta lambda_max of the linearisation in which the loss of the proxy rose, or of a
    run without such a linearisation the largest that it met.
    """
    ended = ds.train_loss_proxy.isel(evaluation=slice(1, None))
    began = ds.train_loss.isel(evaluation=slice(None, -1))
    bad = ~(ended <= began)
    fails = bad.any("evaluation")
    sharpness = ds.step_size * ds.next_eigenvalue.isel(evaluation=slice(None, -1))
    in_bad = sharpness.isel(evaluation=bad.argmax("evaluation"))
    sharpness = xr.where(fails, in_bad, sharpness.max("evaluation"))
    known = ds.diverged_at.notnull()
    return sharpness.where(known), fails.astype(float).where(known)


def half_failing(ds, periods):
    """Return eta lambda_max at which half of the runs of these periods fail, by a logistic fit."""
    at = ds.sel(period=periods)
    sharpness, fails = xr.broadcast(at.sharpness, at.fails)
    logarithms = half_point(np.log2(sharpness), fails)
    return Interval(*(2**value for value in logarithms))


def add_stability(ds):
    """Add which runs fail, and the step size times eigenvalue at which full-batch runs do."""
    for name in ("larger", "smaller"):
        at = of(ds, name)
        share = exact_share(at.failed.sel(period=counted(at)))
        ds[f"{name}_beyond_share"] = share.variable()
    runs_about = of(ds, "boundary")
    sharpness, fails = in_linearization(runs_about)
    runs_about = runs_about.assign(sharpness=sharpness, fails=fails)
    own = {"period": "boundary_period"}
    ds["boundary_sharpness"], ds["boundary_fails"] = sharpness.rename(own), fails.rename(own)
    first, short, long = runs_about.period.values
    half = half_failing(runs_about, [short, long])
    ds["boundary_half"] = half.variable()
    ds["boundary_off"] = Interval(*(value / 2 - 1 for value in half)).variable()
    # Limits of a quotient from those of both: wider than need be.
    above, below = half_failing(runs_about, [long]), half_failing(runs_about, [short])
    ratio = Interval(
        above.estimate / below.estimate, above.lower / below.upper, above.upper / below.lower
    )
    ds["boundary_ratio"] = ratio.variable()
    # K = 1, at the step sizes at which every run of the longest period fails.
    beyond = (fails.sel(period=long) == 1).all("seed")
    ended = failed(runs_about.assign_coords(period=runs_about.period.astype(float)))
    chosen = ended.sel(period=first).where(beyond)
    ds["first_beyond_share"] = exact_share(chosen).variable()
    return ds


def add_mnist(ds):
    """Add how far the runs on MNIST are apart, and where in a period its proxy rises."""
    end = ds.mnist_accuracy_end
    finite = end.mnist_period[np.isfinite(end.mnist_period)]
    kept = end.sel(mnist_period=finite)
    spread = kept.max("mnist_period", skipna=False) - kept.min("mnist_period", skipna=False)
    ds["mnist_spread"] = intervals.over_seeds(spread)
    fit = ds.mnist_fit_end.sel(mnist_period=finite).min("mnist_period", skipna=False)
    ds["mnist_fit"] = intervals.over_seeds(fit)
    curve = 100 * ds.mnist_test_accuracy
    alike = curve.mnist_period[(curve.mnist_period > 1) & (curve.mnist_period <= 100)]
    apart = abs(curve.sel(mnist_period=alike) - curve.sel(mnist_period=1)).mean("mnist_evaluation")
    ds["mnist_alike"] = intervals.over_seeds(apart.max("mnist_period", skipna=False))
    if np.isinf(end.mnist_period.values).any():
        lazy = kept.min("mnist_period", skipna=False) - end.sel(mnist_period=np.inf)
        ds["mnist_lazy_gap"] = intervals.over_seeds(lazy)
    # Rises of the proxy's accuracy in the first and last fifth of each period.
    proxy, starts = ds.plateau_test_accuracy_proxy, ds.plateau_test_accuracy
    look = {"plateau_evaluation": slice(1, None, 5)}, {"plateau_evaluation": slice(0, -1, 5)}
    early = proxy.isel(look[0]) - starts.isel(look[1])
    late = proxy.isel(plateau_evaluation=slice(5, None, 5)) - proxy.isel(
        plateau_evaluation=slice(4, None, 5)
    )
    total = {"dim": "plateau_evaluation", "skipna": False}
    ds["plateau_ratio"] = intervals.over_seeds(late.sum(**total) / early.sum(**total))
    return ds


def add_any(ds):
    """Add K = 1 against the largest finite period, at the smaller step size."""
    periods = ds.smaller_period[np.isfinite(ds.smaller_period)]
    pair = {"smaller_period": [1, float(periods.max())]}
    fit = ds.smaller_fit_end.sel(pair).min("smaller_period", skipna=False)
    ds["any_fit"] = intervals.over_seeds(fit)
    for reading in ("end", "oracle"):
        one, few = ds[f"smaller_accuracy_{reading}"].sel(pair).transpose("smaller_period", ...)
        ds[f"any_gap_{reading}"] = intervals.over_seeds(one.drop_vars("smaller_period") - few)
    return ds


def add_statistics(ds):
    """Return the merged grids with what the claims are judged by, each with its interval."""
    for name in NAMES:
        at = of(ds, name).transpose("period", "seed", ...)
        own = {"period": f"{name}_period"}
        ds[f"{name}_failed"] = failed(at).rename(own)
        for reading, read in early_stopping.READINGS.items():
            ds[f"{name}_accuracy_{reading}"] = (100 * read(at)).rename(own)
        # A run that has diverged ends at chance, that is at one class of ten.
        for kept, curve in (("accuracy", "test_accuracy"), ("fit", "train_accuracy")):
            last = early_stopping.trained(at, curve).isel(evaluation=-1)
            last = last.where(~(at.diverged_at >= 0), 0.1)
            ds[f"{name}_{kept}_end"] = (100 * last).rename(own)
    return add_any(add_mnist(add_stability(ds)))


def draw_curves(axis, ds, name):
    """Draw accuracy of the trained model against steps, a colour for each period."""
    at = of(ds, name)
    curves = 100 * early_stopping.trained(at, "test_accuracy")
    periods = at.period.values
    for period, colour in zip(periods, plotting.colours_by_period(periods), strict=True):
        one = curves.sel(period=period).transpose("seed", "evaluation")
        # As long as every run of the period goes on: a mean over survivors would mislead.
        one = one[at.diverged_at.sel(period=period).notnull().values]
        if one.sizes["seed"] == 0:  # none of a partial record
            continue
        one = one.where(one.notnull().all("seed"))
        step = at.step.sel(period=period).max("seed")
        style = {"color": colour, "ls": "-" if np.isfinite(period) else "--"}
        plotting.band(axis, step / 1000, one, label=plotting.period_label(period), **style)
    axis.set(xlabel="steps (thousands)", ylabel="test accuracy (%)", ylim=(0, 100))


def draw(ds):
    """Draw accuracy at v1's two step sizes, and full-batch runs about the boundary."""
    _, axes = plotting.panels(3)
    for axis, name, printed in zip(axes, ("larger", "smaller"), ("-4", "-5"), strict=False):
        draw_curves(axis, ds, name)
        eta = ds.attrs[f"{name}_step_size"]
        axis.set(title=rf"$\eta=10^{{{printed}}}$ ($\eta_{{\mathrm{{mean}}}}={eta:g}$)")
        axis.legend()
    at = of(ds, "boundary")
    for index, period in enumerate(at.period.values[1:]):
        one = at.sel(period=period)
        heights = one.fails + 0.05 * (index - 0.5)
        label = plotting.period_label(period)
        axes[2].plot(one.sharpness.values.ravel(), heights.values.ravel(), "o|"[index], label=label)
    axes[2].axvspan(*ds.boundary_half.values[1:], color="0.3", alpha=0.15, lw=0)
    axes[2].axvline(2, color="0.4", ls="--", lw=1.2)
    axes[2].set(xlabel=r"$\eta\,\lambda_{\max}$ of the linearisation")
    axes[2].set_yticks([0, 1], ["stable", "fails"])
    axes[2].legend(loc="center left")
    plt.show()


def draw_mnist(ds):
    """Draw the accuracy on MNIST, and that of the proxy within long periods."""
    _, (top, bottom) = plotting.panels(2)
    draw_curves(top, ds, "mnist")
    top.set(title=rf"$\eta_{{\mathrm{{mean}}}}={ds.mnist_step_size:g}$")
    top.legend(loc="lower right")
    at = of(ds, "plateau")
    for update in range(0, at.sizes["evaluation"] - 1, 5):
        part = at.isel(evaluation=slice(update, update + 6))
        # A period begins at the network's accuracy: the proxy of that look is the one before.
        first = part.test_accuracy.isel(evaluation=[0])
        curve = xr.concat([first, part.test_accuracy_proxy[..., 1:]], "evaluation")
        steps = part.step.max("seed") / 1000
        curve = 100 * curve.transpose("seed", "evaluation")
        plotting.band(bottom, steps, curve, color=plotting.COLOURS[0], marker=".")
        bottom.axvline(float(steps[0]), color="0.6", ls=":", lw=0.8)
    bottom.set(xlabel="steps (thousands)", ylabel="test accuracy of the proxy (%)", ylim=(0, 100))
    bottom.set(title=rf"$K=1000$, $\eta_{{\mathrm{{mean}}}}={ds.plateau_step_size:g}$")
    plt.show()


def labels_of(ds):
    """Return the names of the readings of the loss, by grid."""
    return {
        "mean": "mean, 10⁻⁴",
        "smaller": f"sum over {ds.attrs['sum_over']}, 10⁻⁵",
        "larger": f"sum over {ds.attrs['sum_over']}, 10⁻⁴",
        "all": f"sum over {ds.attrs['sum_over_all']:,}, 10⁻⁵",
    }


def draw_reduction(ds):
    """Draw the largest step size times curvature of each reading of the loss."""
    labels = labels_of(ds)
    _, axis = plotting.panels(1, height=3.4)
    everything = np.unique(np.concatenate([of(ds, name).period.values for name in labels]))
    places = dict(zip(everything, plotting.period_axis(axis, everything), strict=True))
    for index, ((name, label), marker) in enumerate(zip(labels.items(), "osD^", strict=True)):
        at = of(ds, name)
        top = ds.attrs[f"{name}_step_size"] * at.curvature.max("evaluation")
        x = np.asarray([places[period] for period in at.period.values]) * 1.08 ** (index - 1.5)
        style = {"color": plotting.COLOURS[index], "marker": marker, "ls": "none", "ms": 7}
        axis.plot(x, np.exp(np.log(top).mean("seed")), label=label, **style)
    axis.axhline(2, color="0.4", ls="--", lw=1.2)
    axis.set(ylabel=r"largest $\eta_{\mathrm{mean}}\times$ curvature", yscale="log")
    axis.legend()
    plt.show()


def findings(ds, rows):
    """Return a table of intervals of a record, of {words: name of the variable}."""
    cells = [[words, intervals.text(ds[name], 2)] for words, name in rows.items()]
    return tables.table(["", "found"], cells)


def stability(ds):
    """Return a table of which runs fail."""
    _, short, long = of(ds, "boundary").period.values
    enough = "finite K > 5 with three updates or more"
    half = "ηλₘₐₓ at which half of the full-batch runs fail"
    ratio = f"the same at K = {long:g} over that at K = {short:g}"
    rows = {
        f"share of runs that fail, larger step size, {enough}": "larger_beyond_share",
        "the same, smaller step size": "smaller_beyond_share",
        f"{half} (predicted: 2)": "boundary_half",
        f"{ratio} (1 if η decides, {short / long:g} if ηK does)": "boundary_ratio",
        f"share with K = 1 that fail where all with K = {long:g} do": "first_beyond_share",
    }
    return findings(ds, rows)


def on_mnist(ds):
    """Return a table of what the runs on MNIST show."""
    rows = {
        "training accuracy at the end, of the finite K with the lowest (%)": "mnist_fit",
        "largest minus smallest test accuracy over finite K at the end (points)": "mnist_spread",
        "mean distance from K = 1 of the farthest curve up to K = 100 (points)": "mnist_alike",
        "lowest finite K minus K = ∞ (points)": "mnist_lazy_gap",
        "rise in the last fifth of a period over that in the first": "plateau_ratio",
    }
    return findings(ds, rows)


def any_amount(ds):
    """Return a table of the largest finite period against K = 1."""
    longest = ds.smaller_period[np.isfinite(ds.smaller_period)].max()
    updates = ds.smaller_updates.sel(smaller_period=longest).isel(smaller_evaluation=-1)
    rows = {
        "training accuracy at the end, the lower of the two (%)": "any_fit",
        "test accuracy at the end, K = 1 minus that K (points)": "any_gap_end",
        "the same, best on the test set": "any_gap_oracle",
    }
    longest = f"{float(longest):g}, {float(updates.mean()):g}"
    cells = [[words, intervals.text(ds[name], 1)] for words, name in rows.items()]
    cells = [["the largest finite K, and its updates", longest], *cells]
    return tables.table(["", "found"], cells)


def table(ds):
    """Return a table of how the runs of every grid end."""
    labels = labels_of(ds) | {"mnist": ds.attrs["mnist_dataset"]}
    head = ["runs", "step size on the mean", "period", "feature updates"]
    head += ["training accuracy at the end (%)", "test accuracy at the end (%)"]
    head += ["best on the test set (%)", "chosen by validation (%)", "diverged", "failed"]
    rows = []
    for name in NAMES:
        at = of(ds, name)
        for period in at.period.values:
            here = at.sel(period=period)
            row = [labels[name], f"{ds.attrs[f'{name}_step_size']:g}", plotting.period_text(period)]
            updates = float(here.updates.max("evaluation").mean())
            row += [f"{updates:.0f}" if np.isfinite(updates) else "–"]
            row += [tables.interval_text(here[how]) for how in ENDS]
            row += [int((here.diverged_at >= 0).sum()), int(here.failed.sum())]
            rows.append(row)
    return tables.table(head, rows)
