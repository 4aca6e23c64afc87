"""Steps of which only a part is stale: the Jacobian, the residual, or the Jacobian of some layers.

A step of iterative linearisation is theta -= eta J_s^T l'(f_lin(theta)): both the Jacobian and,
by way of the proxy, the residual l' are those of the anchor theta_s. Here each is fresh or stale by
itself. But for gradient descent and iterative linearisation such steps follow no objective's
gradient: they need not go downhill.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace

import jax
import numpy as np
import optax
import xarray as xr
from iterlin.linearise.slices import Sliced
from iterlin.linearise.validation import check_one_of
from iterlin.training.algorithm import Algorithm
from iterlin.training.losses import loss_over_slices
from iterlin_study.report import intervals
from iterlin_study.runs import early_stopping, merging
from iterlin_study.runs.groups import Problem

FRESH, STALE = "fresh", "stale"
GUESSING = 10.0  # test accuracy (%) of a run that diverged, with ten classes
KEPT = ["step", "train_accuracy", "train_loss", "test_accuracy", "diverged_at"]


@dataclass(frozen=True, eq=False)
class PartlyStale(Algorithm):
    """An `Algorithm` whose steps take residual and Jacobian from theta or from the anchor theta_s.

    residual: 'fresh' is l'(f(theta)), 'stale' l'(f_lin(theta)), the derivative of the loss in the
    outputs. jacobian: 'fresh' is J(theta), 'stale' J(theta_s); or the names of entries of params, a
    mapping: their columns of J are those at theta_s, all others those at theta. Both fresh are
    gradient descent, whatever the schedule, and both stale are Algorithm 3.

    The step's value, by which divergence is detected, is the loss of which the residual is taken.
    Penalty and regularizer are added as they are. There is no normalization, whose running
    statistics would be those of either point.
    """

    residual: str = STALE
    jacobian: str | Collection = STALE

    def __post_init__(self):
        super().__post_init__()
        check_one_of("residual", self.residual, (FRESH, STALE))
        if isinstance(self.jacobian, str):
            check_one_of("jacobian, unless it names layers,", self.jacobian, (FRESH, STALE))
        if self.normalization is not None:
            raise ValueError("steps that are partly stale go without normalization")

    def loss_and_gradient(self, anchor, displacement, x, y, extra, mesh):
        if displacement is None:  # the anchor is theta
            return super().loss_and_gradient(anchor, None, x, y, extra, mesh)
        theta = optax.tree.add(anchor, displacement)  # to rounding
        columns = self._columns(theta)

        def of_part(loss, x, y):
            network = lambda p: self.in_training(p, x, extra)[0]  # noqa: E731
            # What is not used of these is not compiled.
            outputs, fresh = jax.vjp(network, theta)
            expanded, tangents = jax.linearize(network, anchor)
            stale = jax.linear_transpose(tangents, anchor)
            if self.residual == STALE:
                outputs = expanded + tangents(displacement)
            value, residual = jax.value_and_grad(loss)(outputs, y)
            return value, columns(lambda: fresh(residual)[0], lambda: stale(residual)[0])

        sliced = isinstance(self.f, Sliced) and not self.keyed
        value, gradient = loss_over_slices(
            of_part, self.loss, self.f.size if sliced else None, x, y
        )
        return value, gradient, ()

    def _columns(self, params):
        """Return the function of J(theta)^T u and J_s^T u that gives the step's gradient."""
        if isinstance(self.jacobian, str):
            return lambda fresh, stale: (stale if self.jacobian == STALE else fresh)()
        if unknown := sorted(set(self.jacobian) - set(params)):
            raise ValueError(
                f"jacobian names {', '.join(unknown)}: params have {', '.join(params)}"
            )

        def columns(fresh, stale):
            fresh, stale = fresh(), stale()
            return {name: (stale if name in self.jacobian else fresh)[name] for name in fresh}

        return columns


def partly_stale(
    algorithm: Algorithm, *, residual: str, jacobian: str | Collection[str]
) -> PartlyStale:
    """Return the algorithm with these parts stale."""
    settings = {
        field.name: getattr(algorithm, field.name) for field in fields(Algorithm) if field.init
    }
    return PartlyStale(**settings, residual=residual, jacobian=jacobian)


def problem_with(problem: Problem, *, residual: str, jacobian: str | Collection[str]) -> Problem:
    """Return the problem trained by such steps, for `grids.grid`."""
    algorithm = partly_stale(problem.algorithm, residual=residual, jacobian=jacobian)
    return replace(problem, algorithm=algorithm)


def judged(sgd: xr.Dataset, corners: xr.Dataset, blocks: xr.Dataset, compared) -> xr.Dataset:
    """Put the runs into one data set, with what the claims are judged by.

    Args:
        sgd: Runs of gradient descent, as of `grids.grid`.
        corners: Runs over "corner" (jacobian, residual, both: what is stale) and "time".
        blocks: Runs with a stale Jacobian in one block of layers, over "block": the first
            convolution, the second, and others.
        compared: The time of a period at which effects are read.
    """
    parts = {"sgd": sgd, "corner": corners, "block": blocks}
    found = xr.merge([_kept(runs, prefix) for prefix, runs in parts.items()])
    for name, reading in (("accuracy", "test_accuracy"), ("fit", "train_accuracy")):
        found[f"sgd_{name}"], found[name] = at_end(sgd, reading), at_end(corners, reading)
    found["block_fit"] = at_end(blocks, "train_accuracy")
    found["block_cost"] = found.sgd_accuracy - at_end(blocks, "test_accuracy")
    found["cost"] = found.sgd_accuracy - found.accuracy
    matched = early_stopping.at_loss(sgd, corners.train_loss.isel(evaluation=-1))
    found["cost_matched"] = 100 * matched - found.accuracy
    for reading, cost in (("end", found.cost), ("matched", found.cost_matched)):
        for name, effect in effects(cost.sel(time=compared)).items():
            found[f"{name}_{reading}"] = intervals.over_seeds(effect)
    cost = found.cost.sel(time=compared)
    both, residual = cost.sel(corner="both"), effects(cost)["residual"]
    found["cost_both"] = intervals.over_seeds(both)
    found["residual_share"] = intervals.bootstrap_interval(
        lambda part, whole: np.mean(part) / np.mean(whole), residual.values, both.values
    ).variable()
    first, second, *others = found.block.values
    for name, block in {"first": first, **dict(zip(others, others, strict=True))}.items():
        apart = found.block_cost.sel(block=second) - found.block_cost.sel(block=block)
        found[f"second_less_{name}"] = intervals.over_seeds(apart)
    fits = found.sgd_fit, found.fit.sel(corner="both", time=compared)
    found["compared_fit"] = intervals.over_seeds(np.minimum(*fits))
    for corner in found.corner.values:
        longest = found.fit.sel(corner=corner).isel(time=-1)
        found[f"{corner}_far_fit"] = intervals.over_seeds(longest)
    return found


def at_end(runs: xr.Dataset, name: str) -> xr.DataArray:
    """Return an accuracy at the end in per cent; a run that diverged counts as guessing."""
    last = 100 * runs[name].isel(evaluation=-1)
    return last.where(~(runs.diverged_at >= 0), GUESSING)


def effects(cost: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return main effects, interaction and difference of the costs of the three corners."""
    jacobian, residual, both = (
        cost.sel(corner=corner, drop=True) for corner in ("jacobian", "residual", "both")
    )
    return {
        "jacobian": (jacobian + both - residual) / 2,
        "residual": (residual + both - jacobian) / 2,
        "interaction": both - jacobian - residual,
        "difference": residual - jacobian,
    }


def _kept(runs, prefix):
    own = ["look"] if prefix == "sgd" else []
    return merging.named(runs[KEPT].rename(evaluation="look"), prefix, own)
