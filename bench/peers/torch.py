"""PyTorch: plain and linearised steps, and the empirical NTK, as torch.func's guides write them."""

import math
import os

import numpy as np
import torch
import torch.autograd.forward_ad as forward_mode
from torch import func
from torch.nn import functional as F

from bench import worker
from bench.worker import DEVICE, Prepared

PLACE = os.environ.get(DEVICE, "cpu")


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


class Model:
    """The network that settings name, its inputs, and conversions of its parameters."""

    def __init__(self, settings, arrays):
        last = settings.get("layout") == "channels_last"
        self.layout = torch.channels_last if last else torch.contiguous_format
        self.network = lenet if settings["network"] == "lenet" else mlp
        self.channels, self.shapes = settings.get("channels", 50), {}
        x = torch.from_numpy(arrays["x"]).to(PLACE)
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
                found[name] = tensor.to(PLACE, memory_format=layout)
        return found

    def flat(self, tensors) -> np.ndarray:
        """Return all numbers in the library's order."""
        parts = []
        for name, tensor in tensors.items():
            places = np.arange(tensor.numel()).reshape(self.shapes[name])
            part = np.empty(tensor.numel(), np.float32)
            part[self._converted(name, places).ravel()] = tensor.detach().cpu().numpy().ravel()
            parts.append(part)
        return np.concatenate(parts)

    def _converted(self, name, array):
        """Put outputs first, and the first dense layer's inputs in the order of the channels."""
        if array.ndim == 4:
            return array.transpose(3, 2, 0, 1)
        if name == "dense1/kernel":
            side = math.isqrt(len(array) // self.channels)
            blocks = array.reshape(side, side, self.channels, -1).transpose(2, 0, 1, 3)
            array = blocks.reshape(array.shape)
        return array.T


def done(outcome):
    """Return the outcome when the device has computed it."""
    if PLACE != "cpu":
        torch.cuda.synchronize()
    return outcome


def step(settings, arrays):
    """A step of plain gradient descent, or of the linearised network; some of them make a run.

    settings["pull"] says how the linearised step has J^T u. "backward": forward mode for J v, then
    backward through the same primal pass. "grad": torch.func's grad over its jvp.
    """
    model = Model(settings, arrays)
    network, x, size, entropy = model.network, model.x, settings["step_size"], F.cross_entropy
    y = torch.from_numpy(arrays["y"]).long().to(PLACE)
    anchor = model.parameters(arrays["anchor"])
    leaves = {name: p.clone().requires_grad_() for name, p in anchor.items()}
    start = anchor if settings["step"] == "plain" else model.parameters(arrays["params"])

    def plain():
        return torch.autograd.grad(entropy(network(leaves, x), y), tuple(leaves.values()))

    def backward():
        with torch.no_grad():
            moved = {name: start[name] - anchor[name] for name in anchor}
        with forward_mode.dual_level():
            duals = {n: forward_mode.make_dual(p, moved[n]) for n, p in leaves.items()}
            primal, tangent = forward_mode.unpack_dual(network(duals, x))
        proxy = (primal.detach() + tangent.detach()).requires_grad_()
        (cotangent,) = torch.autograd.grad(entropy(proxy, y), proxy)
        return torch.autograd.grad(primal, tuple(leaves.values()), cotangent)

    def objective(params):
        moved = {name: params[name] - anchor[name] for name in anchor}
        outputs, tangent = func.jvp(lambda p: network(p, x), (anchor,), (moved,))
        return entropy(outputs + tangent, y)

    def grad():
        return func.grad(objective)(start).values()

    gradient = {"plain": plain, "backward": backward, "grad": grad}[settings.get("pull", "plain")]

    def run():
        for _ in range(settings["steps"]):
            pairs = zip(start.items(), gradient(), strict=True)
            with torch.no_grad():
                outcome = {name: p - size * g for (name, p), g in pairs}
        return done(outcome)

    return Prepared(
        run=run,
        results=lambda after: {"displacement": model.flat(after) - model.flat(start)},
        units=settings["steps"],
    )


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
            return done(sum(torch.einsum(contraction, part, part) for part in parts))

    return Prepared(run=run, results=lambda found: {"kernel": found.cpu().numpy()})


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True  # the fastest algorithm, as XLA looks for it too
    worker.serve(
        {"step": step, "ntk": kernel},
        packages=("torch", "numpy"),
        first=lambda: torch.ones(2, device=PLACE) + 1,
    )
