"""What is measured: cases, contestants and goals, for each tier."""

import math
from dataclasses import replace

from bench.driver import Case, Contestant, Goal
from bench.environments import PLATFORMS, THREADS

# Peers whose packages can be had for a GPU.
GPU_PEERS = ("iterlin", "torch")
# Compiling takes memory; a program from JAX's cache hardly any.
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
LENET = {"network": "lenet", "examples": 256, "step_size": 0.1, "steps": 10}
PLAIN, LINEARISED, LAST = {"step": "plain"}, {"step": "linearised"}, {"layout": "channels_last"}
BACKWARD, GRAD = LINEARISED | {"pull": "backward"}, LINEARISED | {"pull": "grad"}


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
    last, huge = ", channels_last", ", huge pages"
    contestants = [
        Contestant("plain step", options=PLAIN),
        Contestant(ours, options=LINEARISED, like=None),
        Contestant("kept activations", kind="kept", options={"period": 20}),
        Contestant("matrix product", kind="matmul", options={"matmul": 2048}, like=None),
        Contestant(plain, "torch", PLAIN),
        Contestant(plain + last, "torch", PLAIN | LAST),
        Contestant(theirs, "torch", BACKWARD, like=ours),
        Contestant(theirs + last, "torch", BACKWARD | LAST, like=ours),
        Contestant(f"{theirs}, grad of jvp{last}", "torch", GRAD | LAST, like=ours),
        Contestant("plain step" + huge, options=PLAIN, variables=HUGE),
        Contestant(ours + huge, options=LINEARISED, variables=HUGE, like=ours),
        Contestant(plain + last + huge, "torch", PLAIN | LAST, HUGE),
        Contestant(theirs + last + huge, "torch", BACKWARD | LAST, HUGE, like=ours),
    ]
    both = ", both with huge pages"
    goals = [
        Goal("plain step, against torch", plain + last, "plain step", 1.0),
        Goal("linearised step, against torch.func", theirs + last, ours, 1.3),
        Goal("linearised step, in plain steps", ours, "plain step", 1.4, at_most=True),
        Goal("linearised step, share of the floor", "matrix product", ours, 0.6, False, True),
        Goal("kept activations, in linearised steps", "kept activations", ours),
        Goal(f"plain step, against torch{both}", plain + last + huge, "plain step" + huge),
        Goal(f"linearised step, against torch.func{both}", theirs + last + huge, ours + huge),
    ]
    return Case("stepping", "step", contestants, LENET, goals=goals)


def small_steps() -> list[Case]:
    """Steps of LeNets of the laptop tier by one and by two threads, ten of them a run, float32.

    Two threads are two devices of the host that share a batch, or one device with both.
    """
    one, two = (dict.fromkeys(THREADS, str(number)) for number in (1, 2))
    ours = {
        "one thread": one,
        "one device of two threads": two,
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
            Contestant(theirs, "torch", BACKWARD | LAST, variables, like=first),
        ]
        linearised = f"linearised step, {way}"
        goals += [
            Goal(f"plain step, against torch, {way}", torch, f"plain step, {way}", 1.0),
            Goal(f"linearised step, against torch.func, {way}", theirs, linearised, 1.4),
        ]
    for kind in ("plain", "linearised"):
        label = f"{kind} step, one device of two threads"
        goals.append(Goal(f"{label}, in steps of two devices", label, f"{kind} step, two threads"))
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


def sweeps() -> Case:
    """16 runs of MLPs, 64 inputs and 10 outputs, as one program and one after another."""
    contestants, goals = [], []
    for width in (8, 32, 128, 512):
        together, apart = f"one program, width {width}", f"one after another, width {width}"
        for label, series in ((together, "one program"), (apart, "one after another")):
            options = {"hidden": width, "together": label == together}
            contestants.append(
                Contestant(label, options=options, like=together, series=series, size=width)
            )
        goals.append(Goal(f"16 runs of width {width}, one after another", apart, together))
    settings = {"examples": 512, "batch": 64, "steps": 50, "step_size": 0.01, "seeds": 4}
    settings["periods"] = [2, 5, 20, math.inf]
    return Case("sweeps", "sweep", contestants, settings, inputs=False, goals=goals)


def kernels() -> list[Case]:
    """The empirical NTK of an MLP with one output, where the forms coincide, and of LeNet."""
    wanted = {
        "NTK, MLP, N = 1000": {"network": [64, 128, 128, 1], "examples": 1000, "form": "full"}
    }
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


def exact() -> Case:
    """One linearisation of K steps on 60 digits, 600 outputs, float64."""
    few, many = (1, 10, 100, 1000, 10**4), (1, 100, 10**4, 10**6, 10**8)
    kinds = {
        "steps with the kernel": ("function_space", few),
        "steps": ("kept_steps", few),
        "flow with the kernel": ("function_space_flow", many),
        "flow": ("flow", many),
        "closed form, squared loss": ("closed_form", many[::2]),
    }
    contestants, goals, labels = [], [], {None}
    for series, (engine, periods) in kinds.items():
        for period in periods:
            # Steps agree to rounding, a flow with them to first order in the step size.
            models = [f"{name} with the kernel, K = {period:g}" for name in ("steps", "flow")]
            like = next((model for model in models if model in labels), None)
            like = None if engine == "closed_form" else like
            label = f"{series}, K = {period:g}"
            options = {"engine": engine, "period": period, "squared": engine == "closed_form"}
            contestants.append(
                Contestant(label, options=options, like=like, series=series, size=period)
            )
            labels.add(label)
        if periods != few:
            text = f"{series}: K = 1e+08 in units of 1,000 steps"
            goals.append(Goal(text, f"{series}, K = 1e+08", "steps, K = 1000"))
    settings = {"double": True, "examples": 60, "hidden": 32, "step_size": 1e-3}
    return Case("exact", "exact", contestants, settings, 0.05, inputs=False, goals=goals)


def flows() -> list[Case]:
    """One linearisation of LeNet, 8 channels, for a time eta K = 50 as a flow, float32."""
    contestants = [
        Contestant(label, options={"form": form}, variables=UNCACHED)
        for label, form in (("J J^T as a matrix", "matrix"), ("as factors", "factors"))
    ]
    goals = [Goal("as factors, against the matrix", "J J^T as a matrix", "as factors")]
    found = []
    for examples in (400, 1000, 2000):
        settings = {"network": "lenet", "channels": 8, "examples": examples, "time": 50.0}
        name = f"flow, {examples:,} images"
        found.append(
            Case(name, "flow", contestants, settings, 0.05, alone=True, inputs=False, goals=goals)
        )
    return found


def quintic() -> Case:
    """Damped Gauss-Newton from 4 initialisations to the same loss, float64."""
    settings = {"double": True, "seeds": 4, "damping": 0.1, "max_steps": 400, "target": 4.0}
    same, adaptive = "optimistix, the same damping", "optimistix, Levenberg-Marquardt"
    contestants = [
        Contestant("iterlin"),
        Contestant(same, "optimistix", {"adaptive": False, "linear": 1e-6}),
        Contestant(adaptive, "optimistix", {"adaptive": True, "linear": 1e-6}),
        Contestant("jaxopt, Levenberg-Marquardt", "jaxopt"),
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
    periods = curve("period K", "K = {}", "period", (2, 8, 32, 128, 512))
    seeds = curve("seeds", "{} seeds", "seeds", (1, 2, 4, 8, 16, 32))
    step = LENET | LINEARISED
    small = {"examples": 512, "batch": 64, "hidden": 64, "step_size": 0.01}
    together = small | {"steps": 50, "periods": [5], "together": True}
    return [
        Case("growth with N", "step", examples, step, inputs=False),
        Case("growth with P", "step", widths, step, inputs=False),
        Case("growth with K", "periods", periods, small | {"steps": 512}, inputs=False),
        Case("growth with seeds", "sweep", seeds, together, inputs=False),
    ]


def on_gpu(case: Case) -> Case:
    """The case without huge pages and peers pinned to a CPU, its goals without their limits."""
    kept = [c for c in case.contestants if c.peer in GPU_PEERS and c.variables != HUGE]
    labels = {c.label for c in kept}
    goals = [replace(g, limit=math.nan) for g in case.goals if {g.of, g.to} <= labels]
    return replace(case, contestants=kept, goals=goals, tolerance=min(case.tolerance, 1e-3))


def gpu_growth() -> list[Case]:
    """LeNets of 50 channels at once, as the image experiments train them."""
    settings = LENET | {"batch": 256, "examples": 4096, "steps": 200, "step_size": 0.01}
    settings["together"] = True
    return [
        Case(
            f"growth with LeNets, {kind}",
            "sweep",
            curve(f"{kind} runs", "{} runs", "seeds", (1, 4, 16)),
            settings | {"periods": [period]},
            inputs=False,
        )
        for kind, period in (("plain", 1), ("linearised", 50))
    ]


def all_cases(tier: str = "laptop") -> list[Case]:
    """The cases of a tier: laptop on a CPU, gpu on one GPU."""
    first, last = stepping(), [sweeps(), *growth(), *kernels()]
    if PLATFORMS[tier] == "cpu":
        return [first, *small_steps(), quintic(), exact(), *flows(), *last]
    return [on_gpu(case) for case in (first, exact(), *flows(), *last)] + gpu_growth()


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
