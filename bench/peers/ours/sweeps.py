"""Many runs of Algorithm 3: together, and one after another."""

import jax
import numpy as np
from iterlin.algorithm import Algorithm
from iterlin.networks.mlp import mlp
from iterlin.study import data
from iterlin.study.groups import Problem, Run, trainer
from iterlin.watching import Watch

from bench.peers.ours.common import ENTROPY, batch, network, precision
from bench.worker import Prepared

# Examples on which a run is evaluated at its end.
EVALUATED = 512


def sweep(settings, arrays):
    """settings["periods"] times settings["seeds"] runs as one program, or each by itself."""
    precision(settings)
    if settings.get("network") == "lenet":
        model, examples = network(settings), batch(settings, jax.random.key(0))
    else:
        model = mlp([64, settings["hidden"], 10])
        examples = tuple(data.digits(settings["examples"]).train)
    watch = Watch({"train": tuple(part[:EVALUATED] for part in examples)})
    algorithm = Algorithm(model.apply, ENTROPY, batch_size=settings["batch"])
    runs = [
        Run(seed, period, settings["step_size"], (settings["steps"],))
        for period in settings["periods"]
        for seed in range(settings["seeds"])
    ]
    train = trainer(Problem(algorithm, model.init, examples, watch), runs[0])
    groups = [runs] if settings["together"] else [[run] for run in runs]

    def run():
        outcomes = [train(group, label="bench", folder=None, data_digest=None) for group in groups]
        jax.block_until_ready([outcome.state.params for outcome in outcomes])
        return outcomes

    def losses_at_the_end(outcomes):
        ends = [np.ravel(outcome.history["train_loss"][..., -1]) for outcome in outcomes]
        return {"loss": np.concatenate(ends)}

    return Prepared(run=run, results=losses_at_the_end)


def periods(settings, arrays):
    """One run of a fixed number of steps at a period."""
    one = {"seeds": 1, "periods": [settings["period"]], "together": True}
    return sweep(settings | one, arrays)
