"""Features of small networks on XOR while they are learnt, for the dial of training time."""

import iterlin as il
import jax
import numpy as np
import xarray as xr
from iterlin.training import losses
from iterlin_study.data import toy
from iterlin_study.dial import charts, recorded
from iterlin_study.dial.charts import Panel
from iterlin_study.runs.features import alignment

# As on the page on XOR: first seed, small weights; a run ends when its training error is small.
SIZE, UNITS, SCALE, TARGET = 200, 64, 0.1, 1e-3
# Times at which the slider stops, in units of the step size times steps.
TIMES = [0, *(digit * 10**power for power in range(4) for digit in (1, 2, 3, 5, 7)), 10_000, 30_000]


def learning(runs: dict[int, xr.Dataset]) -> list[Panel]:
    """Show the features of runs by their period, as `trained` gives them, at every time."""
    return [_panel(period, run) for period, run in runs.items()]


def trained(period: int) -> xr.Dataset:
    """Train with a period K; return features, output weights, updates and error at `TIMES`.

    What comes after the end of a run is left out or repeats the end.
    """
    train_key, _, init_key = jax.random.split(jax.random.split(jax.random.key(7), 1)[0], 3)
    model = il.mlp([2, UNITS, 1], weight_scale=SCALE, output_bias=False)
    data = toy.xor(train_key, SIZE)
    loss, step_size = losses.mean(losses.squared_error), recorded.XOR_STEP_SIZE
    steps = [round(time / step_size) for time in TIMES]

    def observe(state):
        first, last = state.params
        return {"feature": first["weight"].T, "output_weight": last["weight"][:, 0]}

    _, history = il.train(
        il.Algorithm(model.apply, loss, step_size),
        model.init(init_key),
        data,
        schedule=period,
        num_steps=steps[-1],
        engine="steps" if period < 100 else "closed_form",
        target_loss=TARGET / 2,
        watch=il.Watch({"train": data}, at=steps, observe=observe),
        progress=False,
    )
    return xr.Dataset(
        {
            "feature": (("unit", "coordinate", "time"), history["feature"]),
            "output_weight": (("unit", "time"), history["output_weight"]),
            "updates": ("time", history["updates"]),
            "error": ("time", np.sqrt(2 * history["train_loss"])),
        },
        {"time": step_size * history["step"]},
    )


def _panel(period: int, run: xr.Dataset) -> Panel:
    largest, rows = np.abs(run.feature.values).max(), []
    for time in TIMES:
        at = run.sel(time=time, method="ffill")
        weights = at.feature.values / largest
        name = f"ηt = {recorded.quantity(time) if time else 0}"
        rows.append(
            {
                "stop": name,
                "time": time,
                "name": name,
                "updates": recorded.updates_text(at.updates),
                "words": [
                    f"alignment {float(alignment(at.feature.values).mean()):.2f}",
                    f"training error {float(at.error):.2f}",
                ],
                "w1": recorded.numbers(weights[:, 0]),
                "w2": recorded.numbers(weights[:, 1]),
                "positive": (at.output_weight.values > 0).tolist(),
            }
        )
    name = f"K = {period:,}"
    return Panel(charts.features, f"XOR, {name}", rows, name)
