"""Addition modulo p with short and long periods, for two losses and two ways to descend them."""

from functools import cache

import iterlin as il
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import merging

from book.beyond.grokking_helpers import LEVEL, network
from book.beyond.grokking_layers_helpers import seeded

SQUARED, ENTROPY = "squared error", "cross-entropy"
# Losses of outputs (N, p) on one-hot targets (N, p), one for each pair.
LOSSES = {
    SQUARED: lambda outputs, targets: jnp.sum((outputs - targets) ** 2, -1) / 2,
    ENTROPY: optax.softmax_cross_entropy,
}
KEPT = ["train_accuracy_proxy", "test_accuracy", "test_accuracy_proxy"]


def accuracy(outputs, targets):
    """Return the share of outputs (N, p) that are largest where the targets (N, p) are."""
    return jnp.mean(outputs.argmax(-1) == targets.argmax(-1))


def sets_of(modulus: int, width: int, share: float, seed: int) -> tuple[dict, dict]:
    """Return a seed's parameters, and its sets "train" and "test" of pairs and one-hot sums."""
    start, *parts = seeded(modulus, width, share, seed)
    one_hot = np.eye(modulus, dtype=np.float32)
    sets = {name: (x, one_hot[y]) for name, (x, y) in zip(("train", "test"), parts, strict=True)}
    return start, sets


def network_and_weights(params, x):
    """Return the logits (N, p) of pairs x (N, 2); of a row (-r, 0) the weights of number r, p each.

    A hidden unit has three such rows: its weights from the left, from the right, and outwards.
    """
    weights = jnp.concatenate([params["left"].T, params["right"].T, params["out"]])
    return jnp.where(x[:, :1] < 0, weights[-1 - x[:, 0]], network(params, jnp.maximum(x, 0)))


def with_weights(train: tuple, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training set with a row for all weights, whose targets have no class.

    >>> x, y = with_weights((np.array([[0, 4]]), np.eye(5)[4:]), 1)
    >>> x.tolist(), y.sum(1).tolist()
    ([[0, 4], [-1, 0], [-2, 0], [-3, 0]], [1.0, 0.0, 0.0, 0.0])
    """
    x, y = train
    rows = np.stack([-np.arange(1, 3 * width + 1), np.zeros(3 * width, int)], -1)
    return np.concatenate([x, rows.astype(x.dtype)]), np.pad(y, ((0, len(rows)), (0, 0)))


@cache
def flow(loss: str, decay: float, step_size: float) -> il.Algorithm:
    """Return gradient descent on the mean loss of the pairs + decay / 2 |theta|^2.

    The weights are outputs like the logits, and their squares a part of the loss: the exact engines
    know no penalty but one on the distance from the last expansion.
    """

    def objective(outputs, targets):
        pair = targets.sum(-1)
        data = jnp.sum(pair * LOSSES[loss](outputs, targets)) / pair.sum()
        return data + decay / 2 * jnp.sum((1 - pair) * jnp.sum(outputs**2, -1))

    return il.Algorithm(network_and_weights, objective, step_size)


@cache
def adamw(loss: str, step_size: float) -> il.Algorithm:
    """Return AdamW with weight decay 1 on the mean loss of the pairs."""

    def objective(outputs, targets):
        return LOSSES[loss](outputs, targets).mean()

    return il.Algorithm(network, objective, optax.adamw(step_size, weight_decay=1.0))


def add_statistics(ds: xr.Dataset, judged: float) -> xr.Dataset:
    """Return the runs with what the claims are judged by.

    Args:
        ds: Test and training accuracy over (loss, decay, time, seed, look) of the flows, and as
            "adamw_..." over (loss, adamw_time, seed, look) of AdamW. Looks are the ends of periods.
        judged: The largest decay of the flows that the rule is about.
    """
    ds["best"] = 100 * ds.test_accuracy.max("look")
    ds["updates"] = updates(ds.test_accuracy)
    ds["adamw_best"] = 100 * ds.adamw_test_accuracy.max("look")
    ds["adamw_updates"] = updates(ds.adamw_test_accuracy)
    flows = ds.sel(loss=SQUARED, decay=ds.decay[ds.decay <= judged])
    solved = flows.isel(time=-1)
    ds["solved_best"] = intervals.over_seeds(solved.best.min("decay"))
    ds["solved_updates"] = intervals.over_seeds(solved.updates.max("decay"))
    fits = 100 * flows.train_accuracy_proxy.max("look")
    ds["flow_fit"] = intervals.over_seeds(fits.min(["decay", "time"]))
    short, long = (ds.adamw_best.isel(adamw_time=place) for place in (0, -1))
    ds["adamw_short_best"] = intervals.over_seeds(short.min("loss"))
    ds["adamw_squared_best"] = intervals.over_seeds(long.sel(loss=SQUARED))
    ds["adamw_entropy_best"] = intervals.over_seeds(long.sel(loss=ENTROPY))
    return ds


def updates(test_accuracy: xr.DataArray) -> xr.DataArray:
    """Return the feature updates until a run generalises, one more than were made if it does not.

    Updates before the period at whose end it does: the linearisation at the start is none.
    """
    there = test_accuracy >= LEVEL
    until = xr.where(there.any("look"), there.argmax("look") - 1, test_accuracy.sizes["look"] - 1)
    return until.where(test_accuracy.notnull().any("look"))  # NaN of a run that is missing


def arms(ds: xr.Dataset) -> list[tuple[str, str, xr.Dataset]]:
    """Return the runs of each way to descend and each loss, after the names of both."""
    adamw = merging.of(ds[[v for v in ds.data_vars if ds[v].dims != ("bound",)]], "adamw")
    runs = [(f"gradient flow, λ = {decay:g}", ds.sel(decay=decay)) for decay in ds.decay.values]
    runs.append(("AdamW", adamw))
    return [(name, loss, part.sel(loss=loss)) for name, part in runs for loss in ds.loss.values]


def draw(ds: xr.Dataset) -> None:
    """Draw test accuracy at the ends of periods: a row for each descent, a column for each loss."""
    columns = ds.sizes["loss"]
    fig, axes = plotting.panels(
        ds.sizes["decay"] + 1, columns, height=2.2, sharex=True, sharey=True
    )
    for axis, (name, loss, part) in zip(axes.flat, arms(ds), strict=True):
        for time, colour in zip(part.time.values, plotting.COLOURS, strict=False):
            samples = 100 * part.test_accuracy.sel(time=time).transpose("seed", "look")
            looks = np.arange(samples.sizes["look"])
            plotting.band(axis, looks, samples, color=colour, label=f"{time:g}")
        head = f"{loss}\n{name}" if axis in axes[0] else name
        axis.set(title=head, ylim=(-3, 103))
    for axis in axes[:, -1]:  # in the row of AdamW periods are others
        axis.legend(
            title="decay times", loc="upper left", fontsize="x-small", title_fontsize="x-small"
        )
    fig.supylabel("test accuracy (%)")
    fig.supxlabel("linear problems")
    plt.show()


def table(ds: xr.Dataset) -> object:
    """Return a table of how well, and after how many updates, the runs of each arm generalise."""
    head = ["descent", "loss", "period (decay times)", "that generalise", "updates until then"]
    head += ["best test accuracy (%)", "of the linearised network"]
    rows = []
    for name, loss, part in arms(ds):
        for time in part.time.values:
            runs = part.sel(time=time)
            there = runs.best >= 100 * LEVEL
            count = f"{int(there.sum())} of {runs.sizes['seed']}"
            row = [name, loss, f"{time:g}", count]
            row += [tables.interval_text(runs.updates.where(there), 0)]
            proxy = 100 * runs.test_accuracy_proxy.max("look")
            rows.append([*row, tables.interval_text(runs.best), tables.interval_text(proxy)])
    return tables.table(head, rows)
