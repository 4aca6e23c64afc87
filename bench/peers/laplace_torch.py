"""laplace-torch's posterior, and curvlinops' products with the GGN matrix and the Hessian."""

import os

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from laplace import Laplace
from torch.utils.data import DataLoader, TensorDataset

from bench import worker
from bench.peers.torch import Model
from bench.worker import Prepared

STRUCTURES = {"full": "full", "diagonal": "diag", "kronecker": "kron"}
OPERATORS = {"ggn": GGNLinearOperator, "hessian": HessianLinearOperator}


class Module(torch.nn.Module):
    """A network as a module, whose outputs (N, ..., O) are one row for each target."""

    def __init__(self, model, params):
        super().__init__()
        self.network, self.names = model.network, list(params)
        self.weights = torch.nn.ParameterList(params.values())

    def forward(self, x):
        return self.network(dict(zip(self.names, self.weights, strict=True)), x).flatten(0, -2)


def sequential(params):
    """Return an MLP of PyTorch's own layers, whose inputs and gradients laplace-torch can see."""
    layers = []
    for index in range(len(params) // 2):
        weight, bias = params[f"{index}/weight"], params[f"{index}/bias"]
        linear = torch.nn.Linear(*weight.shape[::-1])
        linear.weight, linear.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
        layers += [torch.nn.ReLU(), linear] if index else [linear]
    return torch.nn.Sequential(*layers)


def posterior(settings, arrays):
    model = Model(settings, arrays)
    module, y = sequential(model.parameters(arrays["anchor"])), torch.from_numpy(arrays["y"])
    loader = DataLoader(TensorDataset(model.x, y.long()), batch_size=len(y))
    structure = {"hessian_structure": STRUCTURES[settings["structure"]]}

    def run():
        found = Laplace(module, "classification", "all", prior_precision=1.0, **structure)
        found.fit(loader)
        return found(model.x, link_approx="probit"), found.log_marginal_likelihood()

    def results(found):
        probabilities, evidence = (tensor.detach().numpy().ravel() for tensor in found)
        return {"probabilities": probabilities, "evidence": evidence}

    return Prepared(run=run, results=results)


def product(settings, arrays):
    model = Model(settings, arrays)
    anchor, params = (model.parameters(arrays[name]) for name in ("anchor", "params"))
    module, y = Module(model, anchor), torch.from_numpy(arrays["y"]).long().flatten()
    given = torch.nn.CrossEntropyLoss(), list(module.parameters()), [(model.x, y)]
    matrix = OPERATORS[settings["product"]](module, *given, check_deterministic=False)
    vector = [params[name] - anchor[name] for name in anchor]
    return Prepared(
        run=lambda: matrix @ vector,
        results=lambda found: {"product": model.flat(dict(zip(anchor, found, strict=True)))},
    )


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    packages = ("laplace-torch", "curvlinops-for-pytorch", "torch", "numpy")
    worker.serve({"posterior": posterior, "product": product}, packages=packages)
