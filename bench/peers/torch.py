"""PyTorch: steps, curvature products and the empirical NTK, as torch.func's guides write them."""

import math
import os
from dataclasses import replace

import numpy as np
import torch
import torch.autograd.forward_ad as forward_mode
from torch import func
from torch.nn import functional as F

from bench import worker
from bench.worker import Prepared

HEADS = 4  # of attention


def lenet(params, x):
    """`iterlin_study.networks.convnets.lenet`, channels first."""
    for layer in ("conv1", "conv2"):
        x = F.conv2d(x, params[f"{layer}/kernel"], params[f"{layer}/bias"])
        x = F.max_pool2d(torch.relu(x), 2)
    x = F.linear(x.flatten(1), params["dense1/kernel"], params["dense1/bias"])
    for layer in ("dense2", "dense3"):
        x = F.linear(torch.relu(x), params[f"{layer}/kernel"], params[f"{layer}/bias"])
    return x


def mlp(params, x):
    """`iterlin.networks.mlp.mlp`."""
    for index in range(len(params) // 2):
        x = torch.relu(x) if index else x
        x = F.linear(x, params[f"{index}/weight"], params[f"{index}/bias"])
    return x


def transformer(params, tokens):
    """`bench.peers.plain.transformer`."""

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], params[name])

    def attention(x, b):
        parts = F.linear(x, params[f"{b}/in"]).chunk(3, -1)
        q, k, v = (part.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        values = scores.masked_fill(~seen, -1e9).softmax(-1) @ v
        return F.linear(values.transpose(1, 2).reshape(x.shape), params[f"{b}/out"])

    x = params["embed/table"][tokens.long()] + params["places/table"]
    for b in sorted({name.split("/")[0] for name in params if name.startswith("block")}):
        x = x + attention(norm(x, f"{b}/scale1"), b)
        h = F.gelu(F.linear(norm(x, f"{b}/scale2"), params[f"{b}/up"]), approximate="tanh")
        x = x + F.linear(h, params[f"{b}/down"])
    return F.linear(norm(x, "head/scale"), params["head/kernel"])


def entropy(outputs, y):
    return F.cross_entropy(outputs.flatten(0, -2), y.flatten())


def pushed(network, leaves, vectors, x):
    """Return outputs, from which one can go backward, and their derivative along the vectors."""
    with forward_mode.dual_level():
        duals = {n: forward_mode.make_dual(p, vectors[n]) for n, p in leaves.items()}
        outputs, tangent = forward_mode.unpack_dual(network(duals, x))
    return outputs, tangent.detach()


def leaves_of(params):
    return {name: p.detach().requires_grad_() for name, p in params.items()}


class Model:
    """The network that settings name, its inputs, and conversions of its parameters."""

    def __init__(self, settings, arrays):
        last = settings.get("layout") == "channels_last"
        self.layout = torch.channels_last if last else torch.contiguous_format
        networks = {"lenet": lenet, "transformer": transformer}
        self.network = network = networks.get(str(settings["network"]), mlp)
        if chosen := settings.get("outputs"):
            self.network = lambda params, x: network(params, x)[:, -1, :chosen]
        self.channels, self.shapes = settings.get("channels", 50), {}
        x = torch.from_numpy(arrays["x"])
        self.x = x.permute(0, 3, 1, 2).contiguous(memory_format=self.layout) if x.ndim == 4 else x

    def parameters(self, params) -> dict[str, torch.Tensor]:
        """Return the library's parameters by names such as conv1/kernel."""
        found = {}
        for layer in sorted(params) if isinstance(params, dict) else range(len(params)):
            for kind, array in sorted(params[layer].items()):
                name = f"{layer}/{kind}"
                self.shapes[name] = array.shape
                tensor = torch.from_numpy(np.ascontiguousarray(self._converted(name, array)))
                layout = self.layout if array.ndim == 4 else torch.contiguous_format
                found[name] = tensor.contiguous(memory_format=layout)
        return found

    def flat(self, tensors) -> np.ndarray:
        """Return all numbers in the library's order."""
        parts = []
        for name, tensor in tensors.items():
            places = np.arange(tensor.numel()).reshape(self.shapes[name])
            part = np.empty(tensor.numel(), np.float32)
            part[self._converted(name, places).ravel()] = tensor.detach().numpy().ravel()
            parts.append(part)
        return np.concatenate(parts)

    def _converted(self, name, array):
        """Put outputs first, and the first dense layer's inputs in the order of the channels."""
        if array.ndim == 4:
            return array.transpose(3, 2, 0, 1)
        if name.endswith("table"):
            return array
        if name == "dense1/kernel":
            side = math.isqrt(len(array) // self.channels)
            blocks = array.reshape(side, side, self.channels, -1).transpose(2, 0, 1, 3)
            array = blocks.reshape(array.shape)
        return array.T


def step(settings, arrays):
    """A step of plain gradient descent, or of the linearised network; some of them make a run."""
    model = Model(settings, arrays)
    network, x, size = model.network, model.x, settings["step_size"]
    y = torch.from_numpy(arrays["y"]).long()
    anchor = model.parameters(arrays["anchor"])
    leaves = leaves_of(anchor)
    start = anchor if settings["step"] == "plain" else model.parameters(arrays["params"])

    def plain(params):
        leaves = leaves_of(params)
        return torch.autograd.grad(entropy(network(leaves, x), y), tuple(leaves.values()))

    def linearised(params):
        moved = {name: params[name] - anchor[name] for name in anchor}
        primal, tangent = pushed(network, leaves, moved, x)
        proxy = (primal.detach() + tangent).requires_grad_()
        (cotangent,) = torch.autograd.grad(entropy(proxy, y), proxy)
        return torch.autograd.grad(primal, tuple(leaves.values()), cotangent)

    gradient = plain if settings["step"] == "plain" else linearised

    def run(steps=settings["steps"]):
        params = start
        for _ in range(steps):
            pairs = zip(params.items(), gradient(params), strict=True)
            params = {name: p - size * g for (name, p), g in pairs}
        return params

    def results(after):
        reached = after if settings.get("all") else run(1)
        return {"displacement": model.flat(reached) - model.flat(start)}

    return Prepared(run=run, results=results, units=settings["steps"])


def training(settings, arrays):
    """All steps of one linearisation, from the point of expansion."""
    settings |= {"step": "linearised", "all": True}
    return replace(step(settings, arrays | {"params": arrays["anchor"]}), units=1)


def product(settings, arrays):
    """The gradient of the loss, or the product of its GGN matrix or its Hessian with a step."""
    model = Model(settings, arrays)
    y = torch.from_numpy(arrays["y"]).long()
    anchor, params = (model.parameters(arrays[name]) for name in ("anchor", "params"))
    vector, leaves = {name: params[name] - anchor[name] for name in anchor}, leaves_of(anchor)

    def run():
        if settings["product"] == "gradient":
            outputs, cotangent = entropy(model.network(leaves, model.x), y), None
        elif settings["product"] == "hessian":
            loss = entropy(model.network(leaves, model.x), y)
            outputs = torch.autograd.grad(loss, tuple(leaves.values()), create_graph=True)
            cotangent = tuple(vector.values())
        else:
            outputs, image = pushed(model.network, leaves, vector, model.x)
            p = outputs.detach().softmax(-1)
            weighted = p * image
            cotangent = (weighted - p * weighted.sum(-1, keepdim=True)) / y.numel()
        return torch.autograd.grad(outputs, tuple(leaves.values()), cotangent)

    def results(found):
        return {"product": model.flat(dict(zip(leaves, found, strict=True)))}

    return Prepared(run=run, results=results)


def kernel(settings, arrays):
    """torch.func's recipe: Jacobians of each example, contracted leaf by leaf."""
    model = Model(settings, arrays)
    params = model.parameters(arrays["params"])
    form = {"full": "Naf,Mbf->NMab", "trace": "Naf,Maf->NM", "diagonal": "Naf,Maf->NMa"}
    contraction = form[settings["form"]]

    def single(p, example):
        return model.network(p, example[None])[0]

    def run():
        with torch.no_grad():
            rows = func.vmap(func.jacrev(single), (None, 0))(params, model.x)
            parts = [row.flatten(2) for row in rows.values()]
            return sum(torch.einsum(contraction, part, part) for part in parts)

    return Prepared(run=run, results=lambda found: {"kernel": found.numpy()})


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    worker.serve(
        {"step": step, "ntk": kernel, "product": product, "training": training},
        packages=("torch", "numpy"),
        first=lambda: torch.ones(2) + 1,
    )
