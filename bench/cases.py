"""What is measured: cases, contestants and goals."""

from iterlin_book import xla

from bench.driver import Case, Contestant, Goal

# Compiling takes memory; a program from JAX's cache hardly any.
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
MLP_KERNEL = {"network": [64, 128, 128, 1], "form": "full"}
LENET = {"network": "lenet", "examples": 256, "step_size": 0.1, "steps": 10}
PLAIN, LINEARISED, LAST = {"step": "plain"}, {"step": "linearised"}, {"layout": "channels_last"}


def against(*contestants: Contestant) -> list[Goal]:
    """Return goals to be faster than each of these contestants."""
    return [Goal(f"against {c.label}", c.label, "iterlin") for c in contestants]


def steps(end: str, limit: float, ours: dict, theirs: dict):
    """Return the contestants and goals of a plain and of a linearised step, ours and torch's.

    Args:
        end: of labels and of the texts of goals.
        limit: for the linearised step.
        ours, theirs: environment variables of our processes and of torch's.
    """
    plain, linearised = f"plain step{end}", f"linearised step{end}"
    torch, func = f"torch, plain{end}", f"torch.func, linearised{end}"
    contestants = [
        Contestant(plain, "iterlin", PLAIN, ours, like=None),
        Contestant(linearised, "iterlin", LINEARISED, ours, like=None),
        Contestant(torch, "torch", PLAIN | LAST, theirs, like=plain),
        Contestant(func, "torch", LINEARISED | LAST, theirs, like=linearised),
    ]
    goals = [
        Goal(f"plain step, against torch{end}", torch, plain),
        Goal(f"linearised step, against torch.func{end}", func, linearised, limit),
    ]
    return contestants, goals


def in_plain_steps(end: str = "") -> Goal:
    """Return the goal that a linearised step takes at most 1.4 times as long as a plain one."""
    linearised = f"linearised step{end}"
    return Goal(f"linearised step, in plain steps{end}", linearised, f"plain step{end}", 1.4, True)


def stepping() -> Case:
    """A step of LeNet, 50 channels, batch 256, float32."""
    contestants, goals = steps("", 1.3, {}, {})
    ours, floor = "linearised step", "matrix product"
    contestants += [
        Contestant("torch, plain, channels first", "torch", PLAIN),
        Contestant("torch.func, linearised, channels first", "torch", LINEARISED, like=ours),
        Contestant(floor, kind="matmul", options={"matmul": 2048}, like=None),
    ]
    share = Goal(f"{ours}, share of the floor", floor, ours, 0.6, per_operation=True)
    return Case("stepping", "step", contestants, LENET, goals=[*goals, in_plain_steps(), share])


def small_steps() -> list[Case]:
    """Steps of LeNets of the laptop tier by one and by two threads, ten of them a run, float32.

    Two threads are two devices of the host that share a batch.
    """
    contestants, goals = [], []
    for number, way in ((1, "one thread"), (2, "two threads")):
        threads = dict.fromkeys(xla.THREADS, str(number))
        devices = {"JAX_NUM_CPU_DEVICES": str(number)}
        found = steps(f", {way}", 1.4, threads | devices, threads)
        contestants += found[0]
        goals += found[1]
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


def transformer() -> Case:
    """A small language model, 93,984 parameters, 16 sequences of 32 tokens, float32."""
    settings = {"network": "transformer", "examples": 16, "step_size": 0.1, "steps": 10}
    contestants, goals = steps(", transformer", 1.0, {}, {})
    gradient, ggn, hessian = (
        {"kind": "product", "options": {"product": name}} for name in ("gradient", "ggn", "hessian")
    )
    contestants += [
        Contestant("gradient", like=None, **gradient),
        Contestant("GGN product", like=None, **ggn),
        Contestant("Hessian product", like=None, **hessian),
        Contestant("torch, gradient", "torch", like="gradient", **gradient),
        Contestant("torch.func, GGN product", "torch", like="GGN product", **ggn),
        Contestant("torch, Hessian product", "torch", like="Hessian product", **hessian),
        Contestant("curvlinops, GGN product", "laplace_torch", like="GGN product", **ggn),
        Contestant("curvlinops, Hessian", "laplace_torch", like="Hessian product", **hessian),
    ]
    goals += [
        in_plain_steps(", transformer"),
        Goal("gradient, against torch", "torch, gradient", "gradient"),
        Goal("GGN product, against torch.func", "torch.func, GGN product", "GGN product"),
        Goal("GGN product, against curvlinops", "curvlinops, GGN product", "GGN product"),
        Goal("Hessian product, against torch", "torch, Hessian product", "Hessian product"),
        Goal("Hessian product, against curvlinops", "curvlinops, Hessian", "Hessian product"),
        Goal("GGN product, in gradients", "GGN product", "gradient", 1.4, at_most=True),
    ]
    return Case("transformer", "step", contestants, settings, goals=goals)


def kernels() -> list[Case]:
    """The empirical NTK of an MLP with one output, where the forms coincide, and of LeNet."""
    lenet = {"network": "lenet", "examples": 100}
    language = {"network": "transformer", "examples": 16, "form": "full", "outputs": 8}
    wanted = {
        "NTK, MLP, N = 1000": MLP_KERNEL | {"examples": 1000},
        "NTK, transformer, 8 logits of the last token": language,
        "NTK, LeNet, N = 100, full": lenet | {"form": "full"},
        "NTK, LeNet, N = 100, trace": lenet | {"form": "trace"},
        "NTK, LeNet, N = 100, diagonal": lenet | {"form": "diagonal"},
    }
    peers = [
        Contestant("torch.func", "torch"),
        Contestant("neural-tangents (1)", "neural_tangents", {"implementation": 1}),
        Contestant("neural-tangents (3)", "neural_tangents", {"implementation": 3}),
    ]
    contestants = [Contestant("iterlin", variables=UNCACHED), *peers]
    return [
        Case(name, "ntk", contestants, settings, tolerance=1e-2, goals=against(*peers))
        for name, settings in wanted.items()
    ]


def first_results() -> list[Case]:
    """From the start of a process to the result: import, compile, run."""
    ours = [
        Contestant("iterlin", variables=UNCACHED),
        Contestant("iterlin, with JAX's cache"),
    ]
    torch = Contestant("torch.func", "torch")
    # It has kernels, and no training of its own.
    tangents = Contestant("neural-tangents", "neural_tangents", {"implementation": 1})
    kernel = MLP_KERNEL | {"examples": 200}
    training = {"network": [64, 128, 128, 10], "examples": 256, "step_size": 0.1, "steps": 100}
    return [
        Case(
            f"first {name}",
            kind,
            [*ours, *peers],
            settings,
            tolerance=1e-2,
            goals=against(*peers),
            fresh=True,
        )
        for name, kind, settings, peers in (
            ("NTK", "ntk", kernel, [torch, tangents]),
            ("training", "training", training, [torch]),
        )
    ]


def posteriors() -> list[Case]:
    """Laplace approximation of 1,210 parameters from 128 examples, and its class probabilities."""
    peer = Contestant("laplace-torch", "laplace_torch")
    settings = {"network": [64, 16, 10], "examples": 128}
    return [
        Case(
            f"Laplace, {structure}",
            "posterior",
            [Contestant("iterlin"), peer],
            settings | {"structure": structure},
            tolerance=tolerance,
            goals=against(peer),
        )
        # Two Kronecker structures that are not the same: K-FAC and EKFAC.
        for structure, tolerance in (("full", 1e-3), ("diagonal", 1e-3), ("kronecker", 5e-2))
    ]


def quintic() -> Case:
    """Damped Gauss-Newton from 4 initialisations to the same loss, float64."""
    settings = {"seeds": 4, "damping": 0.1, "max_steps": 400, "target": 4.0}
    peers = [
        Contestant("optimistix, the same damping", "optimistix", {"adaptive": False}),
        Contestant("optimistix, Levenberg-Marquardt", "optimistix", {"adaptive": True}),
    ]
    contestants = [Contestant("iterlin"), *peers]
    return Case("Gauss-Newton", "gauss_newton", contestants, settings, goals=against(*peers))


def growth(name: str, series: str, kind: str, settings: dict, points: dict[float, dict]) -> Case:
    """Return a case of contestants {size: options} of ours, which are compared with nobody."""
    contestants = [
        Contestant(f"{series} = {size}", options=options, like=None, size=size)
        for size, options in points.items()
    ]
    return Case(f"growth with {name}", kind, contestants, settings, series=series)


def growths() -> list[Case]:
    """What a linearised step costs as one thing grows and everything else stays."""
    step = LENET | LINEARISED
    examples = {n: {"examples": n} for n in (32, 64, 128, 256)}
    widths = {
        width**2 + 76 * width + 10: {"network": [64, width, width, 10]}
        for width in (128, 256, 512, 1024)
    }
    runs = {"network": [64, 64, 10], "examples": 512, "batch": 64, "step_size": 0.01}
    runs |= {"steps": 50, "period": 5}
    seeds = {n: {"seeds": n} for n in (1, 2, 4, 8, 16, 32)}
    return [
        growth("N", "examples N", "step", step, examples),
        growth("P", "parameters P (width)", "step", step, widths),
        growth("seeds", "seeds", "sweep", runs, seeds),
    ]


def all_cases() -> list[Case]:
    """Return all cases, in the order in which they are measured."""
    found = [stepping(), *small_steps(), transformer(), *first_results(), *posteriors()]
    return [*found, quintic(), *growths(), *kernels()]


def chosen(words: list[str]) -> list[Case]:
    """Return the cases whose names contain one of the words, or all without any word.

    Raises:
        ValueError: if no name contains one of the words.
    """
    cases = all_cases()
    for word in words:
        if not any(word.lower() in case.name.lower() for case in cases):
            names = ", ".join(case.name for case in cases)
            raise ValueError(f"no case is called '{word}' (cases: {names})")
    return [c for c in cases if not words or any(w.lower() in c.name.lower() for w in words)]
