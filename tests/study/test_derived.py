"""Statistics that are read off a record's runs, against values worked out by hand."""

import json

import numpy as np
import pytest
import xarray as xr
from curves import runs
from iterlin_study.records import records
from iterlin_study.report import derived
from iterlin_study.report.intervals import mean_interval

from book.experiments import resnet_helpers

SEEDS = np.arange(4.0)


def of(experiment, variables, coords=None, **attrs):
    return xr.Dataset(variables, coords or {}, {"experiment": experiment, **attrs})


def estimate(record, name):
    return float(derived.statistic(record, name).estimate)


def test_a_stored_statistic_is_found_then_a_condition_and_else_refused():
    record = of("trial", {"gap": ("bound", [1.0, 0.5, 1.5]), "diverged_at": ("seed", [-1, 3])})
    assert derived.statistic(record, "gap") == (1.0, 0.5, 1.5)
    assert derived.statistic(record, "diverged") == (1.0, 1.0, 1.0)
    with pytest.raises(KeyError, match="other"):
        derived.statistic(record, "other")


def converged():
    dims = ("time", "size", "seed")
    accuracy = np.stack([np.stack([30 + SEEDS, 40 + SEEDS]), np.stack([24 + SEEDS, 30 + SEEDS])])
    looks = np.array([1.0, 2.0])[:, None, None, None] * np.ones((2, 2, 4, 3))
    variables = {
        "accuracy": (dims, accuracy),
        "sgd_accuracy": (("size", "seed"), np.stack([30 + SEEDS, 44 + SEEDS])),
        "lazy_accuracy": (("size", "seed"), np.stack([25 + SEEDS, 36 + SEEDS])),
        "flow_moved": ((*dims, "flow_look"), 3 * looks),
        "sgd_moved": (("size", "seed", "sgd_look"), np.full((2, 4, 3), 2.0)),
        "taken": (dims, np.ones((2, 2, 4)) * [[[4.0]], [[5.0]]] + [[[0.0], [2.0]]]),
        "flow_test_accuracy": ((*dims, "flow_look"), 0.1 * looks),
        "sgd_test_accuracy": (("size", "seed", "sgd_look"), np.full((2, 4, 3), [0.1, 0.25, 0.2])),
        "other_accuracy": ("seed", 33 + SEEDS),
        "other_sgd_accuracy": ("seed", 34 + SEEDS),
        "other_lazy_accuracy": ("seed", 30 + SEEDS),
    }
    return of("converged", variables, {"time": [50, 1000], "size": [250, 500]}, few=50, long=1000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("below_never", (1 + 6) / 2),
        ("short_moved_off", 0.5),
        ("taken_smallest", 4.0),
        ("taken_middle", 6.0),
        ("middle_rise_best", -15.0),
        ("sgd_level", 45.5),
        ("few_rise", -4.0),
        ("other_share", 0.75),
    ],
)
def test_of_networks_that_fit(name, expected):
    assert estimate(converged(), name) == pytest.approx(expected)


def test_what_goes_when_the_step_is_halved():
    """The gap is 10 where the step is halved after the second problem and 4 after the third."""
    curves = [7 * [0.4], [0.1, 0.2, 0.2, 0.3, 0.3, 0.36, 0.36]]
    accuracy = np.array(curves)[:, None] + 0 * SEEDS[:, None]
    variables = {"test_accuracy": (("period", "seed", "evaluation"), accuracy)}
    variables["time"] = "evaluation", np.array([0, 25, 50, 75, 100, 125, 150])
    settings = {"halve_after": [1, 2], "step_size": 0.005, "momentum": 0.9}
    record = of("few_updates", variables, {"period": [1, 1000]}, **settings)
    assert estimate(record, "gap_paid_by_halving") == pytest.approx(6)
    assert estimate(record, "first_level") == pytest.approx(40)


def test_probes_are_checked_by_the_runs_of_their_own_tier(monkeypatch):
    dims = ("period", "seed", "evaluation")
    dead = {"laptop": 0.1, "gpu": 0.9}  # at guessing, and not

    def load(name, tier):
        ends = np.full((2, 4, 1), dead[tier])
        return of(name, {"train_accuracy": (dims, ends)}, {"period": [1, 1000]}, tier=tier)

    monkeypatch.setattr(records, "load", load)
    for tier, expected in (("laptop", 8), ("gpu", 0)):
        assert estimate(of("probes", {}, tier=tier), "dead") == expected


def test_settings_that_differ_beside_normalisation():
    plain = {"step_size": 0.01, "period": 70}
    for batch, augment, expected in ((plain, False, 0), (plain | {"period": 26}, True, 2)):
        settings = json.dumps({"plain": plain, "batch": batch, "augment": augment})
        assert estimate(of("resnet", {}, parameters=settings), "settings_apart") == expected


def schedules():
    """Fixed periods lie on 20 + log2 of updates; growing ones 3 above, by seed 3 + 0.1 seed."""
    taken = np.array([16.0, 2.0, 4.0, 8.0, 4.0])
    accuracy = 20 + np.log2(taken)[:, None] + SEEDS
    accuracy[2:4] += 3 + 0.1 * SEEDS
    # The fewest of a setting, between two settings, above the fewest of the last size.
    enough = [[[2.0, 1, 3]], [[1.9, 1, 3]], [[9.0, 8, 10]]]
    dims = "schedule", "seed"
    variables = {"taken": (dims, taken[:, None] + 0 * SEEDS), "accuracy": (dims, accuracy)}
    variables["sgd_accuracy"] = "seed", 20 + SEEDS
    variables["enough_by_size"] = ("size", "of_family", "bound"), enough
    families = ["fixed", "fixed", "growing", "growing", "event"]
    coordinates = {"family": ("schedule", families), "of_family": ["fixed"]}
    coordinates["value"] = "schedule", [1.0, 8.0, 4.0, 2.0, 1.0]
    return of("when_to_relinearise", variables, coordinates)


def test_of_schedules_at_as_many_updates():
    record = schedules()
    found = derived.statistic(record, "growing_over_fixed")
    np.testing.assert_allclose(found, mean_interval(3 + 0.1 * SEEDS), rtol=1e-12)
    assert estimate(record, "rarest_event") == pytest.approx(100 * 23.5 / 21.5)
    assert estimate(record, "censored_sizes") == 1


def test_full_solves_are_paired_with_flows_by_seed(monkeypatch):
    flows = converged()
    flows["seed"] = [0, 1, 2, 3]
    damped = [[0.0] * 5, [25.0, 27.0, 27.0, 29.0, 90.0]]
    variables = {"damped_accuracy": (("time", "seed"), damped)}
    variables["sgd_accuracy"] = "seed", np.arange(5.0)
    minima = of("exact_solves", variables, {"seed": [0, 1, 2, 3, 4]})
    monkeypatch.setattr(records, "best", lambda name: flows if name == "converged" else None)
    found = derived.statistic(minima, "minimum_over_long")
    np.testing.assert_allclose(found, mean_interval([1.0, 2.0, 1.0, 2.0]))
    assert estimate(minima, "sgd_level") == 2


def two_periods():
    """K = 1 and K = 8, three looks; the loss halves from look to look."""
    train = np.array([[0.2, 0.5, 0.9], [0.1, 0.4, 0.42]])[:, None]
    loss = np.array([[4.0, 2.0, 1.0], [4.0, 3.0, 2.0]])[:, None]
    diverged = [4 * [-1], [-1, -1, 5, 9]]
    others = {"train_accuracy": train, "train_loss": loss, "diverged_at": diverged}
    return runs({"period": [1.0, 8.0], "seed": SEEDS}, train - 0.1, **others)


def test_runs_are_compared_at_the_same_loss_and_must_have_come_to_rest():
    plain = two_periods()
    parts = {"plain": plain, "batch": plain.assign(diverged_at=0 * plain.diverged_at - 1)}
    record = xr.merge([resnet_helpers.with_name(ds, name) for name, ds in parts.items()])
    record.attrs["experiment"] = "resnet"
    # K = 1 has the other's last loss, 2, at its second look.
    assert estimate(record, "gap_plain_matched") == pytest.approx(40 - 32)
    assert estimate(record, "late_gain_batch") == pytest.approx(40)  # K = 1, from look 2 to 3
    assert estimate(record, "diverged_with_normalisation") == pytest.approx(-0.5)


def test_lost_runs_are_those_that_diverged_or_guess():
    record = two_periods().assign_attrs(experiment="batching")
    record = record.isel(period=[0, 1, 1])
    record["train_accuracy"] = record.train_accuracy.where(record.seed > 0, 0.1)
    assert [estimate(record, f"lost_{p}") for p in ("standard", "moderate", "large")] == [1, 3, 3]
    record["diverged_at"] = record.diverged_at.where(record.seed > 0)  # runs that are missing
    assert np.isnan(estimate(record, "lost_large"))


def test_step_sizes_are_compared_at_an_update_at_every_step_on_the_largest_set():
    dims = ("size", "seed")
    smaller, larger = [SEEDS, 50 + SEEDS], [SEEDS, 47 + 2 * SEEDS]
    variables = {"accuracy_oracle": (("period", *dims), [smaller, np.zeros((2, 4))])}
    variables["large_accuracy_oracle"] = ("large_period", *dims), [np.zeros((2, 4)), larger]
    record = of("data_scaling", variables, {"period": [1, 50], "large_period": [50, 1]})
    assert estimate(record, "first_change") == pytest.approx(-1.5)  # of -3, -2, -1, 0
    assert estimate(record, "first_accuracy") == pytest.approx(50)  # of 47, 49, 51, 53


def test_what_a_probe_gains_in_the_last_quarter():
    seen = np.array([[10, 20, 30, 40, 46.0], [5, 5, 5, 5, 6]])  # the last quarter starts at 40
    accuracy = np.stack([0 * seen, seen])[:, None] + SEEDS[:, None, None]
    variables = {"probe_accuracy": (("period", "seed", "layer", "snapshot"), accuracy)}
    variables["time"] = "snapshot", [0.0, 2.0, 4.0, 6.0, 8.0]
    record = of("probes", variables, {"layer": ["conv1", "conv2"]})
    assert [estimate(record, f"late_rise_conv{n}") for n in (1, 2)] == [6, 1]


def test_updates_to_grok_are_those_of_the_few_period_and_of_the_compared_schedules():
    main = 100 * np.arange(4.0).reshape(2, 2, 1) + SEEDS
    variables = {"main_updates_then": (("decay", "time", "seed"), main)}
    variables["other_updates_then"] = ("modulus", "other_time", "seed"), 1000 + main
    axes = {"decay": [1, 2], "time": [0.5, 1.0], "modulus": [31, 59], "other_time": [0.0, 1.0]}
    record = of("grokking", variables, axes, modulus=23, few=1.0)
    assert [estimate(record, f"updates_{p}") for p in (23, 59)] == [101.5, 1301.5]
    needed = {"needed": (("schedule", "seed"), [SEEDS, 10 + SEEDS])}
    settings = {"fixed": "fixed 1", "event": "event 1"}
    record = of("grokking_schedules", needed, {"schedule": ["event 1", "fixed 1"]}, **settings)
    assert [estimate(record, f"{name}_needs") for name in ("fixed", "event")] == [11.5, 1.5]
