"""Addition modulo p by a network with squares, and when its runs generalise."""

from collections.abc import Sequence

import iterlin as il
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import merging
from iterlin_study.runs.groups import Problem

from book.beyond.early_or_late_helpers import centred_alignment, same_class

# Test accuracy from which a run counts as one that generalises.
LEVEL = 0.95
KEPT = ["step", "updates", "train_accuracy", "train_accuracy_proxy", "test_accuracy"]
KEPT += ["test_accuracy_proxy", "concentration", "alignment", "diverged_at"]


def table_of_sums(modulus: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of numbers (p^2, 2) and their sums modulo p (p^2,).

    >>> pairs, sums = table_of_sums(3)
    >>> pairs[5].tolist(), int(sums[5])
    ([1, 2], 0)
    """
    pairs = np.stack(np.divmod(np.arange(modulus**2), modulus), -1)
    return pairs.astype(np.int32), (pairs.sum(1) % modulus).astype(np.int32)


def network(params, x):
    """Return the logits (N, p) of pairs (N, 2): squares of the sum of two embeddings, read out.

    On one-hot inputs this is a network of one hidden layer with squares.
    """
    return (params["left"][x[:, 0]] + params["right"][x[:, 1]]) ** 2 @ params["out"]


def initial(key, modulus: int, width: int) -> dict:
    """Draw parameters of variance 1 / n, with n the inputs of a unit."""
    shapes = {"left": (modulus, width), "right": (modulus, width), "out": (width, modulus)}
    inputs = {"left": 2 * modulus, "right": 2 * modulus, "out": width}
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(each, shape) / np.sqrt(inputs[name])
        for each, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def addition(modulus: int, width: int, share: float, kernel_size: int) -> Problem:
    """Return the problem of addition modulo a number.

    Args:
        modulus: The modulus p.
        width: Number of hidden units.
        share: Share of the p^2 pairs that a run trains on; each seed draws its own.
        kernel_size: Number of pairs on which the kernel is watched.
    """
    pairs, sums = table_of_sums(modulus)
    rng = np.random.default_rng(0)
    watched = rng.choice(modulus**2, min(kernel_size, modulus**2), replace=False)
    same = same_class(sums[watched])

    def subset(size, seed):
        return np.random.default_rng(seed).permutation(modulus**2)[:size]

    def observe(state):
        kernel = il.empirical_ntk(network, state.params, pairs[watched], trace=True)
        power = spectrum(state.params["left"])
        return {
            "alignment": centred_alignment(kernel, same),
            "concentration": concentration(power),
            "spectrum": power.sum(-1) / power.sum(),
        }

    train = jnp.asarray(pairs), jnp.asarray(sums)
    seen = tuple(part[: round(share * modulus**2)] for part in train)
    entropy = il.losses.mean(il.losses.cross_entropy)
    return Problem(
        il.Algorithm(network, entropy),
        lambda key: initial(key, modulus, width),
        train=train,
        watch=il.Watch({"train": seen, "all": train}, {"accuracy": il.losses.accuracy}),
        subset=subset,
        observe=observe,
    )


def spectrum(embedding):
    """Return the power (p // 2, units) of an embedding (p, units) at the frequencies from 1 on."""
    return jnp.abs(jnp.fft.rfft(embedding, axis=0)[1:]) ** 2


def concentration(power):
    """Return the share of all power that lies at the strongest frequency of its unit.

    1 means that every unit is a cosine of one frequency.
    """
    return power.max(0).sum() / power.sum()


def with_test_accuracy(ds: xr.Dataset, examples: int, pairs: int) -> xr.Dataset:
    """Return the runs with the accuracy on the pairs that a run was not trained on.

    Args:
        ds: Runs with "all_accuracy" and "train_accuracy", and those of the proxy.
        examples: Number of pairs in the training set.
        pairs: Number of all pairs.
    """
    found = {
        f"test_accuracy{of}": (
            pairs * ds[f"all_accuracy{of}"] - examples * ds[f"train_accuracy{of}"]
        )
        / (pairs - examples)
        for of in ("", "_proxy")
    }
    return ds.assign(found)


def generalised(ds: xr.Dataset) -> xr.Dataset:
    """Return whether and when runs reach LEVEL, with their values at that look.

    A run that does not reach it has the values of its last look in "updates" and "step", which is
    the least that it would need, and NaN for "alignment" and "concentration".
    """
    above = ds.test_accuracy >= LEVEL
    reached = above.any("look")
    at = xr.where(reached, above.argmax("look"), ds.sizes["look"] - 1)
    then = ds[["updates", "step", "alignment", "concentration"]].isel(look=at)
    inside = {name: then[name].where(reached) for name in ("alignment", "concentration")}
    made = ds.test_accuracy.notnull().any("look")  # NaN of a run that is missing
    return then.assign(reached=reached.where(made), **inside)


def longest(reached: xr.DataArray) -> xr.DataArray:
    """Return the longest period, in decay times, at which a run generalises.

    Updates at every step (0) and none (infinity) do not count. NaN if no period generalises.
    """
    times = reached.time.where(np.isfinite(reached.time) & (reached.time > 0) & (reached == 1))
    return times.max("time", skipna=True)


def add_statistics(ds: xr.Dataset, step_size: float, few: float, long: float) -> xr.Dataset:
    """Return the runs with what the claims are judged by.

    Args:
        ds: "main" runs over (decay, time, seed, look); "other" runs of other moduli, over (modulus,
            other_time, seed, look).
        step_size: Step size of the runs.
        few: Time of a period, in decay times, at which updates are counted.
        long: Time of a period at which network and proxy are compared at the end.
    """
    main, other = (merging.of(ds, name)[KEPT] for name in ("main", "other"))
    then = generalised(main)
    for name in then:
        ds[f"main_{name}_then"] = then[name]
    at_one = then.sel(decay=1)
    others = generalised(other)
    for name in ("updates", "step", "reached"):
        ds[f"other_{name}_then"] = others[name].rename(time="other_time")
    lengths = longest(then.reached) / (step_size * then.decay)
    ds["longest"] = lengths
    slopes = intervals.slope_per_decade(np.log10(lengths), "decay")
    ds["exponent_off"] = _over_seeds(slopes + 1)
    ends = 100 * main.sel(decay=1).isel(look=-1)
    ds["proxy_ahead"] = intervals.over_seeds(
        (ends.test_accuracy_proxy - ends.test_accuracy).sel(time=long)
    )
    frozen = 100 * main.sel(decay=1, time=np.inf)
    ds["frozen_fit"] = intervals.over_seeds(frozen.train_accuracy_proxy.isel(look=-1))
    best = frozen[["test_accuracy", "test_accuracy_proxy"]].max("look")
    ds["frozen_best"] = intervals.over_seeds(best.to_array().max("variable"))
    ds["all_fit"] = intervals.over_seeds(
        100 * main.sel(decay=1).train_accuracy_proxy.isel(look=-1).min("time")
    )
    first = at_one.alignment.sel(time=0)
    ds["alignment_first"] = _over_seeds(first)
    ds["alignment_change"] = _over_seeds(at_one.alignment.sel(time=few) - first)
    ratio = at_one.step.sel(time=few) / at_one.step.sel(time=0)
    ds["steps_ratio"] = intervals.over_seeds(np.log2(ratio))
    both = at_one.reached.sel(time=[0, few]).min("time", skipna=False)
    ds["both_reach"] = intervals.over_seeds(both)
    return ds


def _over_seeds(samples: xr.DataArray) -> tuple[str, np.ndarray]:
    """Return `intervals.over_seeds`; without a sample, 0 with an interval that leaves all open."""
    if samples.notnull().any():
        return intervals.over_seeds(samples)
    return "bound", np.array([0.0, -np.inf, np.inf])


def time_label(time: float) -> str:
    """Return the period in words.

    >>> [time_label(time) for time in (0, 0.5, 1, np.inf)]
    ['every step', 'every 0.5 decay times', 'every decay time', 'never']
    """
    names = {0: "every step", 1: "every decay time", np.inf: "never"}
    return names.get(time, f"every {time:g} decay times")


def draw(ds: xr.Dataset, few: float, long: float) -> None:
    """Draw accuracy against steps and against updates, and the features of one period."""
    main = merging.of(ds, "main")[KEPT].sel(decay=1).transpose("time", "seed", "look")
    fig, (top, middle, bottom) = plotting.panels(3, height=2.9)
    # Set the scale before drawing: a log axis refuses lines of missing runs, which are all NaN.
    middle.set(xscale="log", xlabel="linearisations")
    shown = zip((0, few, long, np.inf), plotting.COLOURS, strict=False)
    for time, colour in shown:
        at = main.sel(time=time)
        accuracy, steps = 100 * at.test_accuracy.mean("seed"), at.step.mean("seed")
        top.plot(steps, accuracy, color=colour, label=time_label(time))
        if time < np.inf:
            middle.plot(at.updates.mean("seed") + 1, accuracy, color=colour)
        if time == long:
            label = f"{time_label(time)}, linearised network"
            proxy = 100 * at.test_accuracy_proxy.mean("seed")
            top.plot(steps, proxy, color=colour, ls="--", label=label)
    for axis in (top, middle):
        axis.set(ylabel="test accuracy (%)", ylim=(-3, 103))
    top.set(xlabel="steps")
    fig.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    spectra = ds.main_spectrum.sel(time=few).isel(seed=0).transpose("frequency", "look")
    steps = main.sel(time=few).step.isel(seed=0)
    mesh = bottom.pcolormesh(
        steps, spectra.frequency, spectra, cmap="magma", shading="nearest", rasterized=True
    )
    plt.colorbar(mesh, ax=bottom, label="share of power")
    bottom.set(xlabel=f"steps, features updated {time_label(few)}", ylabel="frequency")
    plt.show()


HEAD = ["features are updated", "runs that generalise", "updates until then", "steps until then"]


def _generalising(at: xr.Dataset, part: str) -> list[str]:
    """Return the cells of how many runs of one setting generalise, and of what they need."""
    reached = at[f"{part}_reached_then"]
    then = [at[f"{part}_{name}_then"].where(reached == 1) for name in ("updates", "step")]
    count = f"{int(reached.sum())} of {reached.sizes['seed']}"
    return [count, *(tables.interval_text(each, 0) for each in then)]


def table(ds: xr.Dataset) -> object:
    """Return a table of when runs generalise, for each decay and period."""
    head = ["weight decay", *HEAD, "network at the end (%)", "proxy at the end (%)"]
    rows = []
    for decay in ds.decay.values:
        for time in ds.time.values:
            at = ds.sel(decay=decay, time=time)
            ends = [100 * at[f"main_test_accuracy{of}"].isel(look=-1) for of in ("", "_proxy")]
            rows.append([f"{decay:g}", time_label(time), *_generalising(at, "main")])
            rows[-1] += [tables.interval_text(each, 0) for each in ends]
    return tables.table(head, rows)


def moduli_table(ds: xr.Dataset) -> object:
    """Return a table of when runs generalise, for each other modulus."""
    rows = []
    for modulus in ds.modulus.values:
        for time in ds.other_time.values:
            at = ds.sel(modulus=modulus, other_time=time)
            rows.append([int(modulus), time_label(time), *_generalising(at, "other")])
    return tables.table(["modulus", *HEAD], rows)


def looks(units: float, per_unit: int, unit: float) -> Sequence[int]:
    """Return the steps of looks, `per_unit` in each decay time of `unit` steps.

    >>> looks(1, 4, 100)
    (0, 25, 50, 75, 100)
    """
    steps = np.rint(np.arange(round(units * per_unit) + 1) * unit / per_unit)
    return tuple(np.unique(steps.astype(int)).tolist())
