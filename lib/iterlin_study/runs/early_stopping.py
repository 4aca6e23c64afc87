"""Where a run is read: at its best test accuracy, as the paper does, or where validation says.

'Optimal early stopping' chooses the reading by the very test set it reports, which flatters every
run by the noise of its curve; both readings are given. The data sets are those
of `grids.grid`, with a dimension "evaluation".
"""

import numpy as np
import xarray as xr


def trained(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """A history such as "test_accuracy" of the model that is trained.

    The network itself, but at K = infinity the linearised model: there the network at the same
    parameters is no model that anything has trained.
    """
    network, proxy = dataset[name], dataset[f"{name}_proxy"]
    if "period" not in dataset.coords:
        return network
    return network.where(np.isfinite(dataset.period), proxy)


def oracle(dataset: xr.Dataset, *, first_step: xr.DataArray | int = 0) -> xr.DataArray:
    """Highest test accuracy of each run from `first_step` on; NaN where there is none."""
    curve = trained(dataset, "test_accuracy").where(dataset.step >= first_step)
    return curve.max("evaluation")


def validated(dataset: xr.Dataset, *, first_step: xr.DataArray | int = 0) -> xr.DataArray:
    """Test accuracy of each run where its validation accuracy is highest (first of equals).

    NaN where nothing was held out.
    """
    if "validation_accuracy" not in dataset:
        return oracle(dataset) * np.nan
    late = dataset.step >= first_step
    chosen = trained(dataset, "validation_accuracy").where(late).fillna(-1.0)
    test = trained(dataset, "test_accuracy")
    return test.isel(evaluation=chosen.argmax("evaluation")).where(chosen.max("evaluation") >= 0)


def at_loss(dataset: xr.Dataset, loss: xr.DataArray) -> xr.DataArray:
    """Test accuracy of each run where its training loss first is at most `loss`.

    Between two looks by interpolation in the loss's logarithm; where it is lowest if it never is;
    NaN of a run that diverged. So runs are compared at equal fit rather than after equally many
    steps. `loss` may have further dimensions than the runs.
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


# What a run is judged by, under the names that its statistics carry.
READINGS = {"oracle": oracle, "validated": validated}


def add_accuracies(dataset: xr.Dataset, **settings) -> xr.Dataset:
    """Return the data set with the test accuracy of each run at both readings, in per cent.

    The new variables are "accuracy_oracle" and "accuracy_validated". settings: those of `oracle`
    and `validated`.
    """
    readings = {name: 100 * read(dataset, **settings) for name, read in READINGS.items()}
    return dataset.assign({f"accuracy_{name}": values for name, values in readings.items()})
