"""What is measured: cases, contestants and goals, for each tier."""

import math
from dataclasses import replace

from bench.driver import Case, Contestant, Goal
from bench.environments import PLATFORMS, THREADS
from bench.worker import FRESH

# Peers whose packages can be had for a GPU.
GPU_PEERS = ("iterlin", "torch")
# Compiling takes memory; a program from JAX's cache hardly any.
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
MLP_KERNEL = {"network": [64, 128, 128, 1], "form": "full"}
LENET = {"network": "lenet", "examples": 256, "step_size": 0.1, "steps": 10}
PLAIN, LINEARISED, LAST = {"step": "plain"}, {"step": "linearised"}, {"layout": "channels_last"}


def against(*labels: str) -> list[Goal]:
    """Goals to be faster than each of these peers."""
    return [Goal(f"against {label}", label, "iterlin", 1.0) for label in labels]


def curve(series: str, label: str, option: str, values: tuple[int, ...]) -> list[Contestant]:
    """Contestants that differ in one number, and are compared with nobody."""
    settings = {"like": None, "series": series}
    return [Contestant(label.format(v), options={option: v}, size=v, **settings) for v in values]


def stepping() -> Case:
    """A step of LeNet, 50 channels, batch 256, float32."""
    ours, theirs, plain = "linearised step", "torch.func, linearised", "torch, plain"
    last = ", channels_last"
    contestants = [
        Contestant("plain step", options=PLAIN),
        Contestant(ours, options=LINEARISED, like=None),
        Contestant("matrix product", kind="matmul", options={"matmul": 2048}, like=None),
        Contestant(plain, "torch", PLAIN),
        Contestant(plain + last, "torch", PLAIN | LAST),
        Contestant(theirs, "torch", LINEARISED, like=ours),
        Contestant(theirs + last, "torch", LINEARISED | LAST, like=ours),
    ]
    goals = [
        Goal("plain step, against torch", plain + last, "plain step", 1.0),
        Goal("linearised step, against torch.func", theirs + last, ours, 1.3),
        Goal("linearised step, in plain steps", ours, "plain step", 1.4, at_most=True),
        Goal("linearised step, share of the floor", "matrix product", ours, 0.6, False, True),
    ]
    return Case("stepping", "step", contestants, LENET, goals=goals)


def small_steps() -> list[Case]:
    """Steps of LeNets of the laptop tier by one and by two threads, ten of them a run, float32.

    Two threads are two devices of the host that share a batch.
    """
    one, two = (dict.fromkeys(THREADS, str(number)) for number in (1, 2))
    ours = {
        "one thread": one,
        "two threads": two | {"JAX_NUM_CPU_DEVICES": "2"},
    }
    first = "linearised step, one thread"
    contestants, goals = [], []
    for way, variables in ours.items():
        label = f"linearised step, {way}"
        like = None if label == first else first
        contestants += [
            Contestant(f"plain step, {way}", options=PLAIN, variables=variables),
            Contestant(label, options=LINEARISED, variables=variables, like=like),
        ]
    for way, variables in {"one thread": one, "two threads": two}.items():
        torch, theirs = f"torch, plain, {way}", f"torch.func, linearised, {way}"
        contestants += [
            Contestant(torch, "torch", PLAIN | LAST, variables),
            Contestant(theirs, "torch", LINEARISED | LAST, variables, like=first),
        ]
        linearised = f"linearised step, {way}"
        goals += [
            Goal(f"plain step, against torch, {way}", torch, f"plain step, {way}", 1.0),
            Goal(f"linearised step, against torch.func, {way}", theirs, linearised, 1.4),
        ]
    return [
        Case(
            f"{channels} channels, batch {examples}",
            "step",
            contestants,
            LENET | {"channels": channels, "examples": examples},
            goals=goals,
        )
        for channels, examples in ((8, 16), (8, 32), (16, 256), (50, 256))
    ]


def kernels() -> list[Case]:
    """The empirical NTK of an MLP with one output, where the forms coincide, and of LeNet."""
    wanted = {"NTK, MLP, N = 1000": MLP_KERNEL | {"examples": 1000}}
    chosen = {"network": "transformer", "examples": 16, "form": "full", "outputs": 8}
    wanted["NTK, transformer, 8 logits of the last token"] = chosen
    for form in ("full", "trace", "diagonal"):
        settings = {"network": "lenet", "examples": 100, "form": form}
        wanted[f"NTK, LeNet, N = 100, {form}"] = settings
    contestants = [
        Contestant("iterlin", variables=UNCACHED),
        Contestant("torch.func", "torch"),
        Contestant("neural-tangents (1)", "neural_tangents", {"implementation": 1}),
        Contestant("neural-tangents (3)", "neural_tangents", {"implementation": 3}),
    ]
    goals = against(*[c.label for c in contestants[1:]])
    return [
        Case(name, "ntk", contestants, settings, 1e-2, alone=True, goals=goals)
        for name, settings in wanted.items()
    ]


def transformer() -> Case:
    """A small language model, 93,984 parameters, 16 sequences of 32 tokens, float32."""
    settings = {"network": "transformer", "examples": 16, "step_size": 0.1, "steps": 10}
    plain, ours = "plain step", "linearised step"
    gradient, ggn = ({"kind": "product", "options": {"product": p}} for p in ("gradient", "ggn"))
    contestants = [
        Contestant(plain, options=PLAIN),
        Contestant(ours, options=LINEARISED, like=None),
        Contestant("torch, plain step", "torch", PLAIN),
        Contestant("torch.func, linearised step", "torch", LINEARISED, like=ours),
        Contestant("gradient", like=None, **gradient),
        Contestant("GGN product", like=None, **ggn),
        Contestant("torch, gradient", "torch", like="gradient", **gradient),
        Contestant("torch.func, GGN product", "torch", like="GGN product", **ggn),
        Contestant("curvlinops, GGN product", "laplace_torch", like="GGN product", **ggn),
    ]
    goals = [
        Goal("transformer, plain, against torch", "torch, plain step", plain, 1.0),
        Goal("transformer, linearised, against torch", "torch.func, linearised step", ours, 1.0),
        Goal("transformer, linearised, in plain steps", ours, plain, 1.4, at_most=True),
        Goal("gradient, against torch", "torch, gradient", "gradient", 1.0),
        Goal("GGN product, against torch.func", "torch.func, GGN product", "GGN product", 1.0),
        Goal("GGN product, against curvlinops", "curvlinops, GGN product", "GGN product", 1.0),
        Goal("GGN product, in gradients", "GGN product", "gradient", 1.4, at_most=True),
    ]
    return Case("transformer", "step", contestants, settings, goals=goals)


def first_results() -> list[Case]:
    """From the start of a process to the result: import, compile, run."""
    contestants = [
        Contestant("iterlin", variables=UNCACHED),
        Contestant("iterlin, with JAX's cache"),
        Contestant("torch.func", "torch"),
        Contestant("neural-tangents", "neural_tangents", {"implementation": 1}),
    ]
    goals = against("torch.func", "neural-tangents")
    train = {"network": [64, 128, 128, 10], "examples": 256, "step_size": 0.1, "steps": 100}
    wanted = ("NTK", "ntk", MLP_KERNEL | {"examples": 200}), ("training", "training", train)
    return [  # neural-tangents has kernels, and no training of its own
        Case(
            f"first {name}", kind, who, settings | {FRESH: True}, 1e-2, goals=goals[: len(who) - 2]
        )
        for (name, kind, settings), who in zip(wanted, (contestants, contestants[:3]), strict=True)
    ]


def posteriors() -> list[Case]:
    """Laplace approximation of 1,210 parameters from 128 examples, and its class probabilities."""
    contestants = [Contestant("iterlin"), Contestant("laplace-torch", "laplace_torch")]
    settings = {"network": [64, 16, 10], "examples": 128}
    return [
        Case(
            f"Laplace, {structure}",
            "posterior",
            contestants,
            settings | {"structure": structure},
            goals=against("laplace-torch"),
        )
        for structure in ("full", "diagonal")
    ]


def quintic() -> Case:
    """Damped Gauss-Newton from 4 initialisations to the same loss, float64."""
    settings = {"double": True, "seeds": 4, "damping": 0.1, "max_steps": 400, "target": 4.0}
    same, adaptive = "optimistix, the same damping", "optimistix, Levenberg-Marquardt"
    contestants = [
        Contestant("iterlin"),
        Contestant(same, "optimistix", {"adaptive": False, "linear": 1e-6}),
        Contestant(adaptive, "optimistix", {"adaptive": True, "linear": 1e-6}),
    ]
    goals = against(*[c.label for c in contestants[1:]])
    return Case("Gauss-Newton", "gauss_newton", contestants, settings, goals=goals)


def growth() -> list[Case]:
    """What a linearised step costs as one thing grows and everything else stays."""
    widths = [
        Contestant(
            f"width {width}",
            options={"network": [64, width, width, 10]},
            like=None,
            series="parameters P (width)",
            size=width**2 + 76 * width + 10,
        )
        for width in (128, 256, 512, 1024)
    ]
    examples = curve("examples N", "N = {}", "examples", (32, 64, 128, 256))
    seeds = curve("seeds", "{} seeds", "seeds", (1, 2, 4, 8, 16, 32))
    step = LENET | LINEARISED
    small = {"examples": 512, "batch": 64, "hidden": 64, "step_size": 0.01}
    runs = small | {"steps": 50, "period": 5}
    return [
        Case("growth with N", "step", examples, step, inputs=False),
        Case("growth with P", "step", widths, step, inputs=False),
        Case("growth with seeds", "sweep", seeds, runs, inputs=False),
    ]


def on_gpu(case: Case) -> Case:
    """The case without peers pinned to a CPU, its goals without their limits."""
    kept = [c for c in case.contestants if c.peer in GPU_PEERS]
    labels = {c.label for c in kept}
    goals = [replace(g, limit=math.nan) for g in case.goals if {g.of, g.to} <= labels]
    return replace(case, contestants=kept, goals=goals, tolerance=min(case.tolerance, 1e-3))


def gpu_growth() -> list[Case]:
    """LeNets of 50 channels at once, as the image experiments train them."""
    settings = LENET | {"batch": 256, "examples": 4096, "steps": 200, "step_size": 0.01}
    return [
        Case(
            f"growth with LeNets, {kind}",
            "sweep",
            curve(f"{kind} runs", "{} runs", "seeds", (1, 4, 16)),
            settings | {"period": period},
            inputs=False,
        )
        for kind, period in (("plain", 1), ("linearised", 50))
    ]


def all_cases(tier: str = "laptop") -> list[Case]:
    """The cases of a tier: laptop on a CPU, gpu on one GPU."""
    first, last = stepping(), [*growth(), *kernels()]
    if PLATFORMS[tier] == "cpu":
        new = [transformer(), *first_results(), *posteriors()]
        return [first, *small_steps(), *new, quintic(), *last]
    return [on_gpu(case) for case in (first, *last)] + gpu_growth()


def chosen(words: list[str], tier: str = "laptop") -> list[Case]:
    """The tier's cases whose names contain one of the words, or all of them without any word.

    Raises:
        ValueError: if no name contains one of the words.
    """
    cases = all_cases(tier)
    for word in words:
        if not any(word.lower() in case.name.lower() for case in cases):
            names = ", ".join(case.name for case in cases)
            raise ValueError(f"no case is called '{word}' (cases: {names})")
    return [c for c in cases if not words or any(w.lower() in c.name.lower() for w in words)]
