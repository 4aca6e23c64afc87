"""Variants in one record, and their gaps."""

import numpy as np
import xarray as xr
from curves import along, runs

from book.experiments.resnet_helpers import KEPT, add_statistics, variant, variants, with_name


def test_variants_come_out_of_the_record_and_gaps_are_between_their_periods():
    axes = {"period": [1, 24], "seed": range(4)}
    plain = runs(axes, along(2, [0.9, 0.6]) * np.array([0.5, 1.0, 0.8]))
    batch = runs({"period": [1, 12], "seed": range(4)}, along(2, [0.7, 0.9]) * np.array([0.5, 1.0]))
    live = xr.merge([with_name(plain, "plain"), with_name(batch, "batch")])
    assert variants(live) == ["plain", "batch"]
    np.testing.assert_array_equal(variant(live, "batch").period, [1, 12])
    for name in (name for name in KEPT if name in batch):
        xr.testing.assert_equal(variant(live, "batch")[name], batch[name])
    found = add_statistics(live, ["plain", "batch", "frozen"])
    np.testing.assert_allclose(found.gap_plain, 30)
    np.testing.assert_allclose(found.gap_batch, -20)
    assert np.isnan(found.gap_frozen[0])
