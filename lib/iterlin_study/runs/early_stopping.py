"""Early stopping: test accuracy at the best evaluation, chosen by test or validation accuracy.

The paper's 'optimal early stopping' chooses the evaluation by the test accuracy it then reports.
The noise of the curve makes this reading too high, so both readings are given. The functions take
data sets as `grids.grid` returns them, with a dimension "evaluation".
"""

import numpy as np
import xarray as xr


def trained(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """Return a history such as "test_accuracy" of the model that is trained.

    This is the network, except at K = infinity, where only the linearised model is trained, whose
    history is "<name>_proxy".
    """
    network, proxy = dataset[name], dataset[f"{name}_proxy"]
    if "period" not in dataset.coords:
        return network
    return network.where(np.isfinite(dataset.period), proxy)


def oracle(dataset: xr.Dataset, *, first_step: xr.DataArray | int = 0) -> xr.DataArray:
    """Return the highest test accuracy of each run in [0, 1]; NaN without a finite accuracy.

    first_step: the first step at which a run may stop.
    """
    curve = trained(dataset, "test_accuracy").where(dataset.step >= first_step)
    return curve.max("evaluation")


def validated(dataset: xr.Dataset, *, first_step: xr.DataArray | int = 0) -> xr.DataArray:
    """Return the test accuracy of each run where its validation accuracy is first highest.

    NaN without a validation set. first_step: the first step at which a run may stop.
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
    at its lowest loss; NaN for a run that diverged. `loss` may have dimensions of its own.
    """

    def one(losses, accuracies, wanted):
        if not np.isfinite([*losses, wanted]).all():
            return np.nan
        wanted = max(wanted, losses.min())
        last = int(np.argmax(losses <= wanted))
        part = slice(last, last - 2 if last > 1 else None, -1)  # and the evaluation before it
        places = np.log(losses[part] + 1e-12)
        return np.interp(np.log(wanted + 1e-12), places, accuracies[part])

    histories = dataset.train_loss, dataset.test_accuracy
    along = [["evaluation"], ["evaluation"], []]
    return xr.apply_ufunc(one, *histories, loss, input_core_dims=along, vectorize=True)


# The early stopping rules, under the names that the statistics of records use.
READINGS = {"oracle": oracle, "validated": validated}


def add_accuracies(dataset: xr.Dataset) -> xr.Dataset:
    """Add the test accuracy of each run by both early stopping rules, in per cent.

    The variables are "accuracy_oracle" and "accuracy_validated".
    """
    readings = {name: 100 * read(dataset) for name, read in READINGS.items()}
    return dataset.assign({f"accuracy_{name}": values for name, values in readings.items()})
