"""Training of scaled outputs, the kernel's drift on the way, and fits of what was found.

The network is u(theta) = alpha (f(theta) - f(theta_0)) with one output (`networks.scaled.centred`),
the loss mean (u - y)^2 / (2 alpha^2): outputs move as fast for every alpha, parameters 1/alpha as
far. The kernels are those of f, J J^T on the training inputs, not divided by N.
"""

from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from iterlin.kernels.ntk import kernel_alignment, kernel_drift, ntk_matrix
from iterlin.linearise.linearization import Network
from iterlin.linearise.spectral_filters import flow_filter
from iterlin.networks.scaled import centred
from iterlin_study.report import intervals
from jaxtyping import Array, Float, Int, PyTree
from scipy.stats import linregress

# A linear problem ends at this share of the target, so that the network itself reaches it.
SOLVED = 0.9
BISECTIONS = 60
LONGEST = 1e9

LEVELS = (0.01, 0.1)  # of the kernel's drift, at which the critical times are read
RUNS = ("task", "dial", "seed")


class KernelPath(NamedTuple):
    """Where a run ended and what the kernel did.

    error: mean squared error of the network on the training set. linearizations: how many, or how
    many steps. drift_first, drift_mean, drift_largest: relative change (`kernel_drift`) of the
    kernel from one anchor to the next; at K = 1 over the first step of each block. drift_total:
    from the first anchor to the last that was trained from; alignment: of the kernel there with
    y y^T.
    """

    params: PyTree
    error: Float[Array, ""]
    linearizations: Int[Array, ""]
    drift_first: Float[Array, ""]
    drift_mean: Float[Array, ""]
    drift_largest: Float[Array, ""]
    drift_total: Float[Array, ""]
    alignment: Float[Array, ""]


class _State(NamedTuple):
    params: PyTree
    residual: Array
    kernel: Array
    used: Array  # the kernel of the last anchor
    count: Array
    looks: Array
    first: Array
    total: Array
    largest: Array


def flows(f: Network, params: PyTree, data, *, scale, time, target, most) -> KernelPath:
    """Linearise, follow the proxy's gradient flow for `time` in closed form, and repeat.

    data = (inputs, targets (N, 1)). The run ends when the network's mean squared error is at
    `target`, or after `most` linearisations. A linear problem ends early when its own error is 0.9
    of the target. After one linearisation the trained model is the proxy,
    `linearize(centred(f, params, scale), params)`.
    """

    def move(residual, kernel):
        values, vectors = jnp.linalg.eigh(kernel / len(residual))
        values, modes = jnp.maximum(values, 0), vectors.T @ residual
        solved = time_to(values, modes**2 / len(residual), SOLVED * target)
        moved = flow_filter(values, jnp.minimum(time, solved)) * modes
        return vectors @ moved / len(residual)

    return _run(f, params, data, scale, target, most, move)


def steps(f: Network, params: PyTree, data, *, scale, step_size, target, most, block) -> KernelPath:
    """Gradient descent (K = 1) until the mean squared error is at `target`, or for `most` steps.

    The error and the kernel are evaluated once in each block of steps.
    """

    def move(residual, kernel):
        return step_size * residual / len(residual)

    return _run(f, params, data, scale, target, most, move, block)


def time_to(values: Float[Array, " R"], weights: Float[Array, " R"], target) -> Float[Array, ""]:
    """Return the time at which sum_i weights_i exp(-2 values_i t), a flow's error, is at `target`.

    Found by bisection between 1e-9 and 1e9; a time beyond these limits is returned as the limit.
    """

    def halve(_, ends):
        low, high = ends
        middle = jnp.sqrt(low * high)
        above = jnp.sum(weights * jnp.exp(-2 * values * middle)) > target
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    ends = jnp.asarray(1 / LONGEST, values.dtype), jnp.asarray(LONGEST, values.dtype)
    return jax.lax.fori_loop(0, BISECTIONS, halve, ends)[1]


def _run(f, params, data, scale, target, most, move, block=1) -> KernelPath:
    inputs, y = data
    network = centred(f, params, scale)

    def residual_of(theta):
        return (network(theta, inputs) - y)[:, 0]

    def moved(theta, cotangent):
        """theta - J^T cotangent / alpha: the gradient of u is alpha J, the loss has 1/alpha^2."""
        gradient = jax.vjp(residual_of, theta)[1](-cotangent / scale**2)[0]
        return optax.tree.add(theta, gradient)

    def going(s):
        error = jnp.mean(s.residual**2)
        return (error > target) & (s.count < most) & jnp.isfinite(error)

    def advance(s):
        theta = moved(s.params, move(s.residual, s.kernel))
        kernel = ntk_matrix(f, theta, inputs)
        drift = kernel_drift(s.kernel, kernel)
        if block > 1:
            more = lambda _, p: moved(p, move(residual_of(p), None))  # noqa: E731
            theta = jax.lax.fori_loop(1, block, more, theta)
            kernel = ntk_matrix(f, theta, inputs)
        return _State(
            theta,
            residual_of(theta),
            kernel,
            used=s.kernel,
            count=s.count + block,
            looks=s.looks + 1,
            first=jnp.where(s.count == 0, drift, s.first),
            total=s.total + drift,
            largest=jnp.maximum(s.largest, drift),
        )

    kernel, residual = ntk_matrix(f, params, inputs), residual_of(params)
    none, zero = jnp.asarray(0), jnp.zeros((), residual.dtype)
    start = _State(params, residual, kernel, kernel, none, none, zero, zero, zero)
    end = jax.lax.while_loop(going, advance, start)
    return KernelPath(
        end.params,
        jnp.mean(end.residual**2),
        end.count,
        end.first,
        end.total / end.looks,
        end.largest,
        kernel_drift(kernel, end.used),
        kernel_alignment(end.used, y @ y.T),
    )


def variance_explained(x, y) -> float:
    """Return the R^2 of the best monotone function of x, rising or falling.

    It is the share of y's variance that isotonic regression on x takes away. Pairs with a NaN are
    left out. It is positive by chance, because the function is fitted to these very points. NaN
    where y does not vary.
    """
    from sklearn.isotonic import IsotonicRegression

    x, y = (np.asarray(v, dtype=float) for v in (x, y))
    paired = ~(np.isnan(x) | np.isnan(y))
    x, y = x[paired], y[paired]
    if y.size == 0 or np.ptp(y) == 0:
        return np.nan
    fits = [IsotonicRegression(increasing=rising).fit(x, y) for rising in (True, False)]
    return float(max(fit.score(x, y) for fit in fits))


def crossing(x, y, level: float) -> float:
    """Return where y (M,) first passes `level` from below, over increasing x (M,).

    x and y are positive. The curve is linear in both logarithms between its points. NaN if it never
    passes the level or is above it from the first.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    above = np.flatnonzero(y >= level)
    if len(above) == 0 or above[0] == 0:
        return np.nan
    pair = slice(above[0] - 1, above[0] + 1)
    return np.exp(np.interp(np.log(level), np.log(y[pair]), np.log(x[pair])))


def power(x, y) -> float:
    """Return the p of y ~ x^p, by least squares in the logarithms of x and y (M,).

    NaNs are left out; NaN for fewer than two points.
    """
    x, y = (np.log(np.asarray(v, dtype=float)) for v in (x, y))
    paired = ~(np.isnan(x) | np.isnan(y))
    if paired.sum() < 2:
        return np.nan
    return float(linregress(x[paired], y[paired]).slope)


def common_dials(runs: xr.Dataset) -> xr.Dataset:
    """Return the runs of the common width and initialisation, over "scale" in place of "dial"."""
    chosen = (runs.width == runs.attrs["width"]) & (runs.size_of_weights == 1)
    return runs.isel(dial=np.flatnonzero(chosen)).swap_dims(dial="scale").sortby("scale")


def flow_prediction(runs: xr.Dataset, times, scales) -> np.ndarray:
    """Predict the critical time at each scale from the displacement of the first flow.

    The displacement ||v|| at the critical time is proportional to the scale. Its constant is the
    geometric mean over the critical times that were found.

    Args:
        runs: Has "reach", ||v|| over "seed" and "moment", and "scale".
        times: Critical times at runs.scale; NaN where there is none.
        scales: Where to predict.

    Returns:
        Times at `scales`; NaN beyond the displacements of `runs`, and if no time was found.
    """
    reach, moments = np.log(runs.reach.mean("seed").values), np.log(runs.moment.values)
    times, found = np.log(times), np.isfinite(times)
    if not np.any(found):
        return np.full(len(scales), np.nan)
    moved = np.interp(times[found], moments, reach)
    constant = np.mean(moved - np.log(runs.scale.values[found]))
    return np.exp(np.interp(constant + np.log(scales), reach, moments, np.nan, np.nan))


def critical_times(runs: xr.Dataset, level: float, step: float, drift: str = "drift_largest"):
    """Return the time of a linearisation at which its drift passes `level`, over `RUNS`.

    step: the step size of K = 1 at scales from 1 on; below, it is multiplied by the scale. NaN
    where the drift does not pass the level.
    """
    times = np.append(np.nan, runs.time.values[1:-1])
    found = np.full([runs.sizes[name] for name in RUNS], np.nan)
    for place in np.ndindex(found.shape):
        at = runs.isel(dict(zip(RUNS, place, strict=True)))
        times[0] = step * min(1, float(at.scale))
        found[place] = crossing(times, at[drift].values[:-1], level)
    return found


def scale_powers(runs: xr.Dataset, times: xr.DataArray) -> np.ndarray:
    """Return the powers p of alpha in critical times and in displacements, (2, seeds).

    times: critical times over "scale" and "seed". The first power is of the times at which ||v||
    is still above half of its linear growth; the second of ||v|| at all critical times.
    """
    moments, found = np.log(runs.moment.values), []
    for seed in runs.seed:
        one, when = runs.sel(seed=seed), times.sel(seed=seed).values
        moved = np.log(one.reach.values)
        there = np.exp(np.interp(np.log(when), moments, moved))
        linear = there / when > 0.5 * np.exp(moved[0] - moments[0])
        of_times = power(one.scale, np.where(linear, when, np.nan))
        found.append((of_times, power(one.scale, there)))
    return np.transpose(found)


def explained(runs: xr.Dataset, variable: str, outcome: xr.DataArray) -> list[float]:
    """Return `variance_explained` of the outcome by the variable for each seed, over all runs."""
    x, y = xr.broadcast(runs[variable], outcome)
    return [variance_explained(x.sel(seed=s).values, y.sel(seed=s).values) for s in runs.seed]


def add_statistics(runs: xr.Dataset, step: float) -> xr.Dataset:
    """Add the critical times, and for each task what its claims are judged by.

    step: as for `critical_times`. The statistics have the task's name in front, and an interval
    over seeds.
    """
    runs = runs.assign_coords(level=list(LEVELS))
    critical = [critical_times(runs, level, step) for level in LEVELS]
    runs["critical"] = (("level", *RUNS), critical)
    runs["critical_first"] = (RUNS, critical_times(runs, LEVELS[0], step, "drift_first"))
    for task in runs.task.values:
        for name, samples in _statistics_of(runs.sel(task=task)).items():
            runs[f"{task}_{name}"] = intervals.over_seeds(samples)
    return runs


def _statistics_of(runs: xr.Dataset) -> dict:
    """One sample a seed of each statistic of a task."""
    common = common_dials(runs)
    found = {"fitted": runs.fitted.where(np.isfinite(runs.time)).mean(("dial", "time"))}
    for level in LEVELS:
        both = scale_powers(common, common.critical.sel(level=level)) - 1
        found[f"power_{100 * level:g}"], found[f"reach_power_{100 * level:g}"] = both
    found["first_power"] = scale_powers(common, common.critical_first)[1] - 1
    for over, outcome in product((runs, common), ("accuracy", "alignment")):
        ending = outcome if over is runs else f"grid_{outcome}"
        value = over[outcome]
        lost = value.isel(time=0) - value
        found[f"r2_drift_{ending}"] = explained(over, "drift_largest", value)
        found[f"r2_own_{ending}"] = explained(over, "drift_largest", lost)
        found[f"r2_total_{ending}"] = explained(over, "drift_total", value)
    ends = common.accuracy
    found["rich"] = ends.isel(time=0, scale=0) - ends.isel(time=-1, scale=0)
    found["lazy"] = ends.isel(time=0, scale=0) - ends.isel(time=0, scale=-1)
    same = runs.isel(dial=np.flatnonzero((runs.scale == 1) & (runs.size_of_weights == 1)))
    drift = same.drift_first.isel(time=1)
    found["width_power"] = [power(same.width, drift.sel(seed=s)) for s in runs.seed]
    return found
