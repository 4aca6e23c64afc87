"""What is measured: cases, contestants and goals, for each tier."""

import math
from dataclasses import replace

from bench.driver import Case, Contestant, Goal
from bench.environments import PLATFORMS, THREADS

# Packages of these peers can be had for a GPU.
GPU_PEERS = ("iterlin", "torch")
TF32 = {"JAX_DEFAULT_MATMUL_PRECISION": "tensorfloat32"}
DOUBLE = {"JAX_ENABLE_X64": "1"}
# One region of memory instead of many that grow: for a kernel that takes a third of it.
PREALLOCATED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
# What is compiled takes memory, what comes from the cache of JAX hardly any.
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
LAST = {"layout": "channels_last"}
LENET = {"network": "lenet", "examples": 256, "step_size": 0.1, "steps": 10}
PLAIN, LINEARISED = {"step": "plain"}, {"step": "linearised"}


def stepping() -> Case:
    """A step of LeNet, 50 channels, batch 256, float32."""
    backward = LINEARISED | {"pull": "backward"}
    gradient = LINEARISED | {"pull": "grad"}
    ours, theirs, plain = "linearised step", "torch.func, linearised", "torch, plain"
    last = f"{theirs}, channels_last"
    contestants = [
        Contestant("plain step", options=PLAIN),
        Contestant(ours, options=LINEARISED, like=None),
        Contestant("kept activations", kind="kept", options={"period": 20}),
        Contestant("matrix product", kind="matmul", options={"matmul": 2048}, like=None),
        Contestant(plain, "torch", PLAIN),
        Contestant(f"{plain}, channels_last", "torch", PLAIN | LAST),
        Contestant(theirs, "torch", backward, like=ours),
        Contestant(last, "torch", backward | LAST, like=ours),
        Contestant(f"{theirs}, grad of jvp, channels_last", "torch", gradient | LAST, like=ours),
        Contestant("plain step, huge pages", options=PLAIN, variables=HUGE),
        Contestant(f"{ours}, huge pages", options=LINEARISED, variables=HUGE, like=ours),
        Contestant(f"{plain}, channels_last, huge pages", "torch", PLAIN | LAST, HUGE),
        Contestant(f"{last}, huge pages", "torch", backward | LAST, HUGE, like=ours),
    ]
    goals = [
        Goal("plain step, against torch", f"{plain}, channels_last", "plain step", 1.0),
        Goal("linearised step, against torch.func", last, ours, 1.3),
        Goal("linearised step, in plain steps", ours, "plain step", 1.4, at_most=True),
        Goal("linearised step, share of the floor", "matrix product", ours, 0.6, False, True),
        Goal("kept activations, in linearised steps", "kept activations", ours),
        Goal(
            "plain step, against torch, both with huge pages",
            f"{plain}, channels_last, huge pages",
            "plain step, huge pages",
        ),
        Goal(
            "linearised step, against torch.func, both with huge pages",
            f"{last}, huge pages",
            f"{ours}, huge pages",
        ),
    ]
    return Case("stepping", "step", contestants, LENET, goals=goals)


def small_steps() -> list[Case]:
    """Steps of LeNets as the laptop tier trains them, ten of them a run, by one thread and by two,
    float32. Two are two devices of the host to us, which share a batch; or one device with both."""
    ways = {
        "one thread": {**_threads(1)},
        "one device of two threads": {**_threads(2)},
        "two threads": {**_threads(2), "JAX_NUM_CPU_DEVICES": "2"},
    }
    first = "linearised step, one thread"
    found = []
    for channels, examples in ((8, 16), (8, 32), (16, 256), (50, 256)):
        contestants, goals = [], []
        for way, variables in ways.items():
            linearised = f"linearised step, {way}"
            contestants += [
                Contestant(f"plain step, {way}", options=PLAIN, variables=variables),
                Contestant(
                    linearised,
                    options=LINEARISED,
                    variables=variables,
                    like=None if linearised == first else first,
                ),
            ]
        for number, threads in ((1, "one thread"), (2, "two threads")):
            torch, theirs = f"torch, plain, {threads}", f"torch.func, linearised, {threads}"
            contestants += [
                Contestant(torch, "torch", PLAIN | LAST, _threads(number)),
                Contestant(
                    theirs,
                    "torch",
                    LINEARISED | LAST | {"pull": "backward"},
                    _threads(number),
                    like=first,
                ),
            ]
            goals += [
                Goal(f"plain step, against torch, {threads}", torch, f"plain step, {threads}", 1.0),
                Goal(
                    f"linearised step, against torch.func, {threads}",
                    theirs,
                    f"linearised step, {threads}",
                    1.4,
                ),
            ]
        goals += [
            Goal(
                f"{step} step, one device of two threads, in steps of two devices",
                f"{step} step, one device of two threads",
                f"{step} step, two threads",
            )
            for step in ("plain", "linearised")
        ]
        name = f"{channels} channels, batch {examples}"
        settings = LENET | {"channels": channels, "examples": examples}
        found.append(Case(name, "step", contestants, settings, goals=goals))
    return found


def _threads(number: int) -> dict[str, str]:
    return dict.fromkeys(THREADS, str(number))


def sweeps() -> Case:
    """16 runs of MLPs, 64 inputs and 10 outputs, as one program and one after another."""
    widths, contestants, goals = (8, 32, 128, 512), [], []
    for width in widths:
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
    mlp = {"network": [64, 128, 128, 1], "examples": 1000}
    lenet = {"network": "lenet", "examples": 100}
    wanted = {"NTK, MLP, N = 1000": mlp | {"form": "full"}}
    wanted |= {f"NTK, LeNet, N = 100, {f}": lenet | {"form": f} for f in ("full", "trace")}
    wanted |= {"NTK, LeNet, N = 100, diagonal": lenet | {"form": "diagonal"}}
    cases = []
    for name, settings in wanted.items():
        contestants = [
            Contestant("iterlin", variables=UNCACHED),
            Contestant("torch.func", "torch"),
            *[
                Contestant(f"neural-tangents ({n})", "neural_tangents", {"implementation": n})
                for n in (1, 3)
            ],
        ]
        goals = [Goal(f"against {c.label}", c.label, "iterlin", 1.0) for c in contestants[1:]]
        cases.append(Case(name, "ntk", contestants, settings, 1e-2, alone=True, goals=goals))
    return cases


def exact() -> Case:
    """One linearisation of K steps on 60 digits, 600 outputs, float64."""
    few, many = (1, 10, 100, 1000, 10**4), (1, 100, 10**4, 10**6, 10**8)
    kinds = {
        "function_space": ("steps with the kernel", False, few),
        "kept_steps": ("steps", False, few),
        "function_space_flow": ("flow with the kernel", False, many),
        "flow": ("flow", False, many),
        "closed_form": ("closed form, squared loss", True, many[::2]),
    }
    contestants, names = [], set()
    for engine, (series, squared, periods) in kinds.items():
        for period in periods:
            # Steps agree to rounding, a flow with them to first order in the step size.
            model = f"steps with the kernel, K = {period:g}"
            if model not in names and engine == "flow":
                model = f"flow with the kernel, K = {period:g}"
            elif model not in names or squared:
                model = None
            label = f"{series}, K = {period:g}"
            options = {"engine": engine, "squared": squared, "period": period}
            contestants.append(
                Contestant(label, options=options, like=model, series=series, size=period)
            )
            names.add(label)
    settings = {"double": True, "examples": 60, "hidden": 32, "step_size": 1e-3}
    goals = [
        Goal(
            f"{series}: K = 1e+08 in units of 1,000 steps",
            f"{series}, K = 1e+08",
            "steps, K = 1000",
        )
        for series in ("flow with the kernel", "flow", "closed form, squared loss")
    ]
    return Case("exact", "exact", contestants, settings, 0.05, inputs=False, goals=goals)


def flows() -> list[Case]:
    """One linearisation of LeNet, 8 channels, for a time eta K = 50 as a flow, float32."""
    found = []
    for examples in (400, 1000, 2000):
        contestants = [
            Contestant(label, options={"form": form}, variables=UNCACHED)
            for label, form in (("J J^T as a matrix", "matrix"), ("as factors", "factors"))
        ]
        settings = {"network": "lenet", "channels": 8, "examples": examples, "time": 50.0}
        goals = [Goal("as factors, against the matrix", "J J^T as a matrix", "as factors")]
        name = f"flow, {examples:,} images"
        found.append(
            Case(name, "flow", contestants, settings, 0.05, alone=True, inputs=False, goals=goals)
        )
    return found


def quintic() -> Case:
    """Damped Gauss-Newton from 4 initialisations to the same loss, float64."""
    settings = {"double": True, "seeds": 4, "damping": 0.1, "max_steps": 400, "target": 4.0}
    fixed, adaptive = {"adaptive": False, "linear": 1e-6}, {"adaptive": True, "linear": 1e-6}
    contestants = [
        Contestant("iterlin"),
        Contestant("optimistix, the same damping", "optimistix", fixed),
        Contestant("optimistix, Levenberg-Marquardt", "optimistix", adaptive),
        Contestant("jaxopt, Levenberg-Marquardt", "jaxopt"),
    ]
    goals = [Goal(f"against {c.label}", c.label, "iterlin", 1.0) for c in contestants[1:]]
    return Case("Gauss-Newton", "gauss_newton", contestants, settings, goals=goals)


def growth() -> list[Case]:
    """What a linearised step costs as one thing grows, everything else being held."""

    def parameters(width):
        return 64 * width + width + width**2 + width + 10 * width + 10

    examples = [
        Contestant(f"N = {n}", options={"examples": n}, like=None, series="examples N", size=n)
        for n in (32, 64, 128, 256)
    ]
    widths = [
        Contestant(
            f"width {width}",
            options={"network": [64, width, width, 10]},
            like=None,
            series="parameters P (width)",
            size=parameters(width),
        )
        for width in (128, 256, 512, 1024)
    ]
    periods = [
        Contestant(f"K = {k}", options={"period": k}, like=None, series="period K", size=k)
        for k in (2, 8, 32, 128, 512)
    ]
    seeds = [
        Contestant(f"{s} seeds", options={"seeds": s}, like=None, series="seeds", size=s)
        for s in (1, 2, 4, 8, 16, 32)
    ]
    small = {"examples": 512, "batch": 64, "hidden": 64, "step_size": 0.01}
    together = small | {"steps": 50, "periods": [5], "together": True}
    return [
        Case("growth with N", "step", examples, LENET | LINEARISED, inputs=False),
        Case("growth with P", "step", widths, LENET | LINEARISED, inputs=False),
        Case("growth with K", "periods", periods, small | {"steps": 512}, inputs=False),
        Case("growth with seeds", "sweep", seeds, together, inputs=False),
    ]


def on_gpu(case: Case) -> Case:
    """The case as a GPU takes it: without peers pinned to a CPU's packages, and huge pages.

    The goals are ratios without a limit: those of a CPU say nothing there.
    """
    kept = [c for c in case.contestants if c.peer in GPU_PEERS and c.variables != HUGE]
    labels = {c.label for c in kept}
    goals = [replace(g, limit=math.nan) for g in case.goals if {g.of, g.to} <= labels]
    return replace(case, contestants=kept, goals=goals, tolerance=min(case.tolerance, 1e-3))


def gpu_stepping() -> Case:
    """`stepping`, and a linearised step in float64 and with products of operands rounded to TF32.

    What these differ by from the step itself is its `disagreement`.
    """
    case, ours = on_gpu(stepping()), "linearised step"
    double, rounded = f"{ours}, float64", f"{ours}, TF32"
    options = LINEARISED | {"double": True}
    others = [
        Contestant(double, options=options, variables=DOUBLE, like=ours),
        Contestant(rounded, options=LINEARISED, variables=TF32, like=ours, tolerance=0.1),
        # The rate of the floor is that of a product large enough to keep the device busy.
        Contestant("matrix product", kind="matmul", options={"matmul": 8192}, like=None),
    ]
    contestants = [c for c in case.contestants if c.label != "matrix product"] + others
    goals = [*case.goals, Goal("linearised step, in steps with TF32", ours, rounded)]
    return replace(case, contestants=contestants, goals=goals)


def gpu_growth() -> list[Case]:
    """LeNets of 50 channels at once, as the image experiments train them."""
    settings = LENET | {"batch": 256, "examples": 4096, "steps": 200, "step_size": 0.01}
    found = []
    for kind, period in (("plain", 1), ("linearised", 50)):
        contestants = [
            Contestant(f"{n} runs", options={"seeds": n}, like=None, series=f"{kind} runs", size=n)
            for n in (1, 4, 16)
        ]
        of_kind = settings | {"periods": [period], "together": True}
        found.append(
            Case(f"growth with LeNets, {kind}", "sweep", contestants, of_kind, inputs=False)
        )
    return found


def gpu_exact() -> Case:
    """One linearisation with the kernel of 100,000 outputs, 37 GiB in float32."""
    kinds = {
        "function_space": ("steps with the kernel", (1, 100, 1000)),
        "function_space_flow": ("flow with the kernel", (100, 10**4, 10**6)),
    }
    contestants = [
        Contestant(
            f"{series}, K = {period:g}",
            options={"engine": engine, "squared": False, "period": period},
            variables=PREALLOCATED,
            like=None,
            series=series,
            size=period,
        )
        for engine, (series, periods) in kinds.items()
        for period in periods
    ]
    settings = {"examples": 10_000, "hidden": 32, "step_size": 1e-3}
    name = "exact, 100,000 outputs"
    return Case(name, "exact", contestants, settings, alone=True, inputs=False)


def all_cases(tier: str = "laptop") -> list[Case]:
    """The cases of a tier: laptop on a CPU, gpu on one GPU."""
    if PLATFORMS[tier] == "cpu":
        return [
            stepping(),
            *small_steps(),
            quintic(),
            exact(),
            *flows(),
            sweeps(),
            *growth(),
            *kernels(),
        ]
    rest = [on_gpu(case) for case in (sweeps(), *growth(), *kernels())]
    return [gpu_stepping(), *gpu_growth(), gpu_exact(), *rest]


def chosen(words: list[str], tier: str = "laptop") -> list[Case]:
    """The tier's cases whose names contain one of the words, all of them without any.

    Raises ValueError for a word that no name contains.
    """
    cases = all_cases(tier)
    for word in words:
        if not any(word.lower() in case.name.lower() for case in cases):
            names = ", ".join(case.name for case in cases)
            raise ValueError(f"no case is called '{word}' (cases: {names})")
    return [c for c in cases if not words or any(w.lower() in c.name.lower() for w in words)]
