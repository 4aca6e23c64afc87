"""PyTorch: plain and linearised steps, and the empirical NTK, as torch.func's guides write them."""

import os

import numpy as np
import torch
import torch.autograd.forward_ad as forward_mode
from torch import func, nn

from bench import worker
from bench.worker import DEVICE, Prepared

PLACE = os.environ.get(DEVICE, "cpu")


class LeNet(nn.Module):
    """`iterlin.networks.convnets.lenet`, channels first."""

    def __init__(self, arrays, prefix):
        super().__init__()
        kernels = [arrays[f"{prefix}/conv{i}/kernel"] for i in (1, 2)]
        self.conv1, self.conv2 = (
            nn.Conv2d(kernel.shape[2], kernel.shape[3], kernel.shape[0]) for kernel in kernels
        )
        dense = [arrays[f"{prefix}/dense{i}/kernel"].shape for i in (1, 2, 3)]
        self.dense1, self.dense2, self.dense3 = (nn.Linear(*shape) for shape in dense)

    def forward(self, x):
        for convolution in (self.conv1, self.conv2):
            x = nn.functional.max_pool2d(torch.relu(convolution(x)), 2)
        x = torch.relu(self.dense1(x.flatten(1)))
        return self.dense3(torch.relu(self.dense2(x)))


class MLP(nn.Module):
    """`iterlin.networks.mlp.mlp`."""

    def __init__(self, arrays, prefix):
        super().__init__()
        count = sum(name.startswith(f"{prefix}/") for name in arrays) // 2
        shapes = [arrays[f"{prefix}/{i}/weight"].shape for i in range(count)]
        self.layers = nn.ModuleList(nn.Linear(*shape) for shape in shapes)

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(torch.relu(x) if index else x)
        return x


def parameters(model, arrays, prefix, layout=torch.contiguous_format):
    """The library's parameters as this model has them."""
    found = {}
    for name, own in model.named_parameters():
        layer, _, kind = name.removeprefix("layers.").rpartition(".")
        theirs = "kernel" if kind == "weight" and isinstance(model, LeNet) else kind
        array = arrays[f"{prefix}/{layer}/{theirs}"]
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif array.ndim == 2:
            if layer == "dense1" and isinstance(model, LeNet):
                array = _channels_first(array, model.conv2.out_channels)
            array = array.T
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(PLACE)
        assert tensor.shape == own.shape, name
        found[name] = tensor.to(memory_format=layout) if array.ndim == 4 else tensor
    return found


def _channels_first(rows, channels):
    """Rows of the first dense layer, which follow (height, width, channel), as this model's do."""
    side = int((len(rows) // channels) ** 0.5)
    blocks = rows.reshape(side, side, channels, -1).transpose(2, 0, 1, 3)
    return blocks.reshape(len(rows), -1)


def flat(model, tensors):
    """All numbers in the library's order and layout: layers by name, bias before weight."""
    parts = {}
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy()
        layer, _, kind = name.removeprefix("layers.").rpartition(".")
        if array.ndim == 4:
            array = array.transpose(2, 3, 1, 0)
        elif array.ndim == 2:
            array = array.T
            if layer == "dense1" and isinstance(model, LeNet):
                side = int((len(array) // model.conv2.out_channels) ** 0.5)
                blocks = array.reshape(model.conv2.out_channels, side, side, -1)
                array = blocks.transpose(1, 2, 0, 3)
        parts[layer, kind] = array.ravel()
    return np.concatenate([parts[key] for key in sorted(parts)])


def build(settings, arrays, prefix):
    model = (LeNet if settings["network"] == "lenet" else MLP)(arrays, prefix)
    last = settings.get("layout") == "channels_last"
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.from_numpy(arrays["x"]).to(PLACE)
    x = x.permute(0, 3, 1, 2).contiguous(memory_format=layout) if x.ndim == 4 else x
    return model, x, lambda name: parameters(model, arrays, name, layout)


def finished(run):
    """The same, back when the device is done."""
    if PLACE == "cpu":
        return run

    def wait():
        outcome = run()
        torch.cuda.synchronize()
        return outcome

    return wait


def step(settings, arrays):
    """Plain, or linearised in one of two ways: `pull` says how J^T u is had.

    backward: forward mode for J v, then backward through the same primal pass. grad: torch.func's
    grad over its jvp. settings["steps"] of them a run, the same one again.
    """
    model, x, load = build(settings, arrays, "anchor")
    y = torch.from_numpy(arrays["y"]).long().to(PLACE)
    anchor, size = load("anchor"), settings["step_size"]
    entropy = nn.functional.cross_entropy

    def updated(params, gradients):
        pairs = zip(params.items(), gradients, strict=True)
        with torch.no_grad():
            return {name: p - size * g for (name, p), g in pairs}

    if settings["step"] == "plain":
        start = anchor
        leaves = {name: p.clone().requires_grad_() for name, p in anchor.items()}

        def run():
            loss = entropy(func.functional_call(model, leaves, (x,)), y)
            return updated(anchor, torch.autograd.grad(loss, tuple(leaves.values())))

    else:
        start = load("params")
        leaves = {name: p.clone().requires_grad_() for name, p in anchor.items()}

        def backward():
            with torch.no_grad():
                moved = {name: start[name] - anchor[name] for name in anchor}
            with forward_mode.dual_level():
                duals = {n: forward_mode.make_dual(p, moved[n]) for n, p in leaves.items()}
                outputs = func.functional_call(model, duals, (x,))
                primal, tangent = forward_mode.unpack_dual(outputs)
            proxy = (primal.detach() + tangent.detach()).requires_grad_()
            (cotangent,) = torch.autograd.grad(entropy(proxy, y), proxy)
            gradients = torch.autograd.grad(primal, tuple(leaves.values()), cotangent)
            return updated(start, gradients)

        def objective(params):
            moved = {name: params[name] - anchor[name] for name in anchor}
            network = lambda p: func.functional_call(model, p, (x,))  # noqa: E731
            outputs, tangent = func.jvp(network, (anchor,), (moved,))
            return entropy(outputs + tangent, y)

        def grad():
            return updated(start, func.grad(objective)(start).values())

        run = {"backward": backward, "grad": grad}[settings["pull"]]

    before, count = flat(model, start), settings.get("steps", 1)

    def steps():
        for _ in range(count):
            outcome = run()
        return outcome

    return Prepared(
        run=finished(steps),
        results=lambda after: {"displacement": flat(model, after) - before},
        units=count,
    )


def kernel(settings, arrays):
    """torch.func's recipe: Jacobians of each example, contracted leaf by leaf."""
    model, x, load = build(settings, arrays, "params")
    params = load("params")
    form = {"full": "Naf,Mbf->NMab", "trace": "Naf,Maf->NM", "diagonal": "Naf,Maf->NMa"}
    contraction = form[settings["form"]]

    def single(p, example):
        return func.functional_call(model, p, (example[None],))[0]

    def run():
        with torch.no_grad():
            rows = func.vmap(func.jacrev(single), (None, 0))(params, x)
            parts = [row.flatten(2) for row in rows.values()]
            return sum(torch.einsum(contraction, part, part) for part in parts)

    return Prepared(run=finished(run), results=lambda found: {"kernel": found.cpu().numpy()})


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True  # the fastest algorithm, as XLA looks for it too
    worker.serve(
        {"step": step, "ntk": kernel},
        packages=("torch", "numpy"),
        first=lambda: torch.ones(2, device=PLACE) + 1,
    )
