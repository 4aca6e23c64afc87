"""Outcomes as a record: every sample, the ratios of each round, the slopes of growth curves."""

import json
import math
from collections.abc import Mapping

import numpy as np
import xarray as xr

from bench.driver import Case, Outcome

NUMBERS = ("operations", "disagreement", "start_bytes", "peak_bytes")


def dataset(cases: list[Case], outcomes: Mapping[str, Outcome], rounds: int) -> xr.Dataset:
    """Return the cases that have an outcome; NaN where a contestant lacks a number.

    seconds (contestant, round), ratio (comparison, round) and slope (curve, round) have the names
    and numbers of their first axis beside them. The attribute left_out is a list of [case,
    contestant, reason].
    """
    rows, compared, curves, left_out = [], [], [], []
    for case in cases:
        if (outcome := outcomes.get(case.name)) is None:
            continue
        left_out += [[case.name, label, why] for label, why in outcome.left_out.items()]
        present = [c for c in case.contestants if c.label in outcome.seconds]
        for c in present:
            row = {"case": case.name, "label": c.label, "peer": c.peer, "series": case.series}
            facts = outcome.facts[c.label]
            row |= {name: float(facts.get(name, math.nan)) for name in NUMBERS}
            rows.append(row | {"size": float(c.size), "seconds": outcome.seconds[c.label]})
        for goal in case.goals:
            if {goal.of, goal.to} <= outcome.seconds.keys():
                row = {"compared": goal.text, "compared_in": case.name, "limit": goal.limit}
                row |= {"at_most": int(goal.at_most), "ratio": outcome.ratios(goal)}
                compared.append(row)
        if case.series and len(present) > 1:
            sizes = np.log([c.size for c in present])
            seconds = np.log([outcome.seconds[c.label] for c in present])
            slope = np.polyfit(sizes, seconds, 1)[0]  # of each round
            curves.append({"curve_in": case.name, "curve": case.series, "slope": slope})
    found = xr.Dataset(coords={"round": np.arange(rounds)})
    for axis, entries in {"contestant": rows, "comparison": compared, "curve": curves}.items():
        for name in entries[0] if entries else ():
            column = [entry[name] for entry in entries]
            kind = object if isinstance(column[0], str) else None
            dims = (axis, "round") if name in ("seconds", "ratio", "slope") else axis
            found[name] = (dims, np.array(column, kind))
    return found.assign_attrs(left_out=json.dumps(left_out))
