"""Made-up histories of runs with known answers, in the form of `grids.grid`."""

import numpy as np
import xarray as xr

CURVES = ("train_accuracy", "train_loss", "test_accuracy", "validation_accuracy")


def runs(axes, test, **others):
    """Return runs over the axes and "evaluation": these test accuracies, and what else is given.

    test and others broadcast to the axes and the evaluations. All histories that are not given are
    those of the test accuracies, the proxy's are those of the network, and steps count from 0.
    """
    length = np.shape(test)[-1]
    shape = (*map(len, axes.values()), length)
    histories = {"step": np.arange(length), "updates": np.arange(length)}
    for name in CURVES:
        histories[name] = others.get(name, test)
        histories[f"{name}_proxy"] = histories[name]
    histories |= {"test_accuracy": test, **others}
    diverged = histories.pop("diverged_at", -1)
    dims = *axes, "evaluation"
    full = {name: (dims, np.array(np.broadcast_to(v, shape))) for name, v in histories.items()}
    full["diverged_at"] = tuple(axes), np.array(np.broadcast_to(diverged, shape[:-1]))
    return xr.Dataset(full, axes, {"seconds": 1.5, "missing": 1})


def along(axis, values):
    """Return values for each place of an axis that `axis` others follow, for broadcasting."""
    return np.reshape(values, (-1, *[1] * axis))


def assert_statistics(ds, expected):
    """Require of statistics (name -> value) this value, and an interval of no width."""
    for name, value in expected.items():
        np.testing.assert_allclose(ds[name], value, atol=1e-9, err_msg=name)
