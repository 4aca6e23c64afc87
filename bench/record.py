"""Outcomes as a record: every sample, the ratios of each round, the slopes of growth curves."""

import json
import math
from collections.abc import Mapping

import numpy as np
import xarray as xr

from bench.driver import Case, Goal, Outcome

FACTS = ("operations", "parameters", "products", "iterations", "bytes")
MEMORY = ("start_bytes", "now_bytes", "peak_bytes")


def dataset(cases: list[Case], outcomes: Mapping[str, Outcome], rounds: int) -> xr.Dataset:
    """The cases that have an outcome; NaN where a contestant has no such number.

    seconds (contestant, round), ratio (comparison, round) and slope (curve, round); the attribute
    left_out is a list of [case, contestant, reason].
    """
    rows, compared, curves, left_out = [], [], [], []
    for case in cases:
        outcome = outcomes.get(case.name)
        if outcome is None:
            continue
        left_out += [[case.name, label, why] for label, why in outcome.left_out.items()]
        present = [c for c in case.contestants if c.label in outcome.seconds]
        for c in present:
            facts = outcome.facts[c.label]
            numbers = {name: facts.get(name, math.nan) for name in (*FACTS, *MEMORY)}
            numbers |= {"size": c.size, "disagreement": outcome.errors.get(c.label, math.nan)}
            texts = {"case": case.name, "label": c.label, "peer": c.peer, "series": c.series}
            rows.append((texts, numbers, outcome.seconds[c.label]))
        for goal in case.goals:
            if {goal.of, goal.to} <= set(outcome.seconds):
                compared.append((case.name, goal, ratios(goal, outcome)))
        for series in dict.fromkeys(c.series for c in present if c.series):
            members = [c for c in present if c.series == series]
            if len(members) > 1:
                seconds = np.array([outcome.seconds[c.label] for c in members])
                sizes = np.array([c.size for c in members])
                curves.append((case.name, series, slopes(sizes, seconds)))

    def texts(name):
        return np.array([row[0][name] for row in rows], dtype=object)

    found = xr.Dataset(coords={"round": np.arange(rounds)})
    if rows:
        for name in rows[0][0]:
            found[name] = ("contestant", texts(name))
        for name in rows[0][1]:
            found[name] = ("contestant", np.array([row[1][name] for row in rows], float))
        found["seconds"] = (("contestant", "round"), np.array([row[2] for row in rows]))
    if compared:
        goals = [goal for _, goal, _ in compared]
        found["compared"] = ("comparison", np.array([g.text for g in goals], dtype=object))
        found["compared_in"] = ("comparison", np.array([c for c, _, _ in compared], dtype=object))
        found["limit"] = ("comparison", np.array([g.limit for g in goals]))
        found["at_most"] = ("comparison", np.array([int(g.at_most) for g in goals]))
        found["ratio"] = (("comparison", "round"), np.array([r for _, _, r in compared]))
    if curves:
        found["curve_in"] = ("curve", np.array([c for c, _, _ in curves], dtype=object))
        found["curve"] = ("curve", np.array([s for _, s, _ in curves], dtype=object))
        found["slope"] = (("curve", "round"), np.array([s for _, _, s in curves]))
    return found.assign_attrs(left_out=json.dumps(left_out))


def ratios(goal: Goal, outcome: Outcome) -> np.ndarray:
    """Round by round, so that what slowed both in a round does not count."""
    of, to = (np.asarray(outcome.seconds[label]) for label in (goal.of, goal.to))
    if goal.per_operation:
        of = of / outcome.facts[goal.of]["operations"]
        to = to / outcome.facts[goal.to]["operations"]
    return of / to


def slopes(sizes, seconds) -> np.ndarray:
    """Least-squares slopes of log seconds (sizes, rounds) against log size, one a round."""
    x = np.log(np.asarray(sizes, float))
    x = x - x.mean()
    return x @ np.log(np.asarray(seconds, float)) / (x @ x)
