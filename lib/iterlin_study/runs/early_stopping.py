"""Early stopping: test accuracy at the best evaluation, chosen by test or validation accuracy.

The paper's 'optimal early stopping' chooses the evaluation by the test accuracy it then reports.
The noise of the curve makes this reading too high, so both readings are given. The functions take
data sets as `grids.grid` returns them, with a dimension "evaluation".
"""

import numpy as np
import xarray as xr


def trained(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """Return a history such as "test_accuracy" of the model that is trained.

    This is the network, except at K = infinity, where only the linearised model is trained.

    Args:
        dataset: A grid.
        name: Name of the network's history; the proxy's history is "<name>_proxy".

    Returns:
        The history, over the axes of the grid and "evaluation".
    """
    network, proxy = dataset[name], dataset[f"{name}_proxy"]
    if "period" not in dataset.coords:
        return network
    return network.where(np.isfinite(dataset.period), proxy)


def oracle(dataset: xr.Dataset, *, first_step: xr.DataArray | int = 0) -> xr.DataArray:
    """Return the highest test accuracy of each run.

    Args:
        dataset: A grid.
        first_step: First step at which a run may stop.

    Returns:
        Accuracies in [0, 1] over the axes of the grid; NaN for a run without a finite accuracy.
    """
    curve = trained(dataset, "test_accuracy").where(dataset.step >= first_step)
    return curve.max("evaluation")


def validated(dataset: xr.Dataset, *, first_step: xr.DataArray | int = 0) -> xr.DataArray:
    """Return the test accuracy of each run where its validation accuracy is highest.

    Among equal validation accuracies the first one counts.

    Args:
        dataset: A grid.
        first_step: First step at which a run may stop.

    Returns:
        Accuracies in [0, 1] over the axes of the grid; NaN without a validation set.
    """
    if "validation_accuracy" not in dataset:
        return oracle(dataset) * np.nan
    late = dataset.step >= first_step
    chosen = trained(dataset, "validation_accuracy").where(late).fillna(-1.0)
    test = trained(dataset, "test_accuracy")
    return test.isel(evaluation=chosen.argmax("evaluation")).where(chosen.max("evaluation") >= 0)


def at_loss(dataset: xr.Dataset, loss: xr.DataArray) -> xr.DataArray:
    """Return the test accuracy of each run when its training loss first falls to `loss`.

    This compares runs at equal fit, not after equally many steps. Between two evaluations the
    accuracy is interpolated in the logarithm of the loss. A run that never falls to `loss` is read
    at its lowest loss.

    Args:
        dataset: A grid.
        loss: Training loss. It may have dimensions that the grid does not have.

    Returns:
        Accuracies in [0, 1] over the axes of the grid and of `loss`; NaN for a run that diverged.
    """

    def one(losses, accuracies, wanted):
        if not np.isfinite([*losses, wanted]).all():
            return np.nan
        falling = np.minimum.accumulate(losses)
        places = np.log(falling[::-1] + 1e-12)
        return np.interp(np.log(max(wanted, falling[-1]) + 1e-12), places, accuracies[::-1])

    histories = dataset.train_loss, dataset.test_accuracy
    along = [["evaluation"], ["evaluation"], []]
    return xr.apply_ufunc(one, *histories, loss, input_core_dims=along, vectorize=True)


# The early stopping rules, under the names that the statistics of records use.
READINGS = {"oracle": oracle, "validated": validated}


def add_accuracies(dataset: xr.Dataset, **settings) -> xr.Dataset:
    """Add the test accuracy of each run by both early stopping rules.

    Args:
        dataset: A grid.
        **settings: Arguments of `oracle` and `validated`.

    Returns:
        The data set with the variables "accuracy_oracle" and "accuracy_validated", in per cent.
    """
    readings = {name: 100 * read(dataset, **settings) for name, read in READINGS.items()}
    return dataset.assign({f"accuracy_{name}": values for name, values in readings.items()})
