"""A character transformer trained by one flow an expansion, on new text or on the same again."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product, repeat
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import iterlin as il
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import sklearn
import xarray as xr
from iterlin.exact import flow, linear_model
from iterlin.linearise.digests import digest, program_digest
from iterlin.linearise.precision import full_precision
from iterlin.training.files import atomic_write
from iterlin.training.loop import OutOfTime
from iterlin_study.records import environment
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs.groups import key_of
from jaxtyping import Array, Float, Int, PyTree

from book.beyond.grokking_period_helpers import over_all_seeds

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,"
SHORTEST = 80  # characters of a paragraph
HEADS = 2
TOLERANCE = 0.01  # of a step of a flow
# Of this many files, one is held out.
HELD_OUT = 8
LONGEST = 100  # time of a flow
NEW, SAME, LITTLE = "new text", "the same text", "little new text"
ADAM, GROWING = "AdamW", "1 to 100"
HISTORY = ("held_loss", "train_loss", "proxy_loss", "products")
History = dict[str, np.ndarray]
Visits = Callable[[], Iterable[tuple[Array, Array]]]
ENTROPY = il.losses.mean(il.losses.cross_entropy)


class Text(NamedTuple):
    """Sequences of characters, (N, T) each, and the characters that follow them."""

    train: tuple[np.ndarray, np.ndarray]
    held: tuple[np.ndarray, np.ndarray]


def load_text(folders: Sequence[str], length: int, held: int) -> Text:
    """Return the prose of scikit-learn's docstrings in sequences that do not overlap.

    Every `HELD_OUT`-th file of the package is held out. A paragraph that occurs again is left out.

    Args:
        folders: Subpackages to read; empty for the whole package.
        length: Characters of a sequence.
        held: Number of held-out sequences, drawn from all of them.

    Raises ValueError if the files that are held out have no text.
    """
    parts = [[], []]
    for number, texts in enumerate(prose(folders)):
        parts[number % HELD_OUT == 0] += texts
    train, other = (sequences(" ".join(part), length) for part in parts)
    if not len(other[0]):
        raise ValueError(f"folders {list(folders)} hold no text to hold out: name more of them")
    chosen = np.random.default_rng(0).permutation(len(other[0]))[:held]
    return Text(train, tuple(part[chosen] for part in other))


def prose(folders: Sequence[str]) -> list[list[str]]:
    """Return the paragraphs of each file of scikit-learn, each paragraph once.

    Args:
        folders: As for `load_text`.
    """
    root, seen, found = Path(sklearn.__file__).parent, set(), []
    paths = [path for name in folders for path in (root / name).rglob("*.py")]
    for path in sorted(paths or root.rglob("*.py")):
        if not {"tests", "externals"} & set(path.parts):
            texts = map(plain, paragraphs(path.read_text("utf8")))
            texts = {text: None for text in texts if len(text) >= SHORTEST and text not in seen}
            seen |= set(texts)
            found.append(list(texts))
    return found


def describe(text: Text) -> str:
    """Return one line for a record: the version of scikit-learn, sizes and a digest."""
    sizes = f"{len(text.train[0]):,} sequences to train on, {len(text.held[0]):,} held out"
    return f"docstrings of scikit-learn {sklearn.__version__}, {sizes} ({digest(*text)[:19]}...)"


def paragraphs(source: str) -> list[str]:
    """Return the paragraphs of all docstrings in the source text of a module.

    >>> paragraphs('def f():\\n    "One\\\\n\\\\nTwo."')
    ['One', 'Two.']
    """
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    docstrings = filter(None, map(ast.get_docstring, nodes))
    return [text for docstring in docstrings for text in re.split(r"\n\s*\n", docstring)]


def plain(text: str) -> str:
    """Return a text in the characters of `ALPHABET`; a run of others becomes a space.

    >>> plain("See `fit`,\\n  or (New in 1.2).")
    'see fit , or new in . .'
    """
    return " ".join(re.sub(r"[^a-z.,]+", " ", text.lower()).split())


def sequences(text: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a text as sequences that do not overlap, (N, length), and the next characters.

    >>> x, y = sequences("abcdefgh", 3)
    >>> x.tolist(), y.tolist()
    ([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]])
    """
    ids = np.array([ALPHABET.index(character) for character in text], np.int32)
    whole = (len(ids) - 1) // length * length
    return ids[:whole].reshape(-1, length), ids[1 : whole + 1].reshape(-1, length)


def initial(key: Array, width: int, length: int) -> PyTree:
    """Draw parameters of variance 1 / n, with n the inputs of a unit."""
    shapes = {"mixed": (width, 3 * width), "attended": (width, width)}
    shapes |= {"up": (width, 2 * width), "down": (2 * width, width), "out": (width, len(ALPHABET))}
    shapes |= {"token": (len(ALPHABET), width), "position": (length, width)}
    keys = jax.random.split(key, len(shapes))
    scale = {name: 1 if name in ("token", "position") else shapes[name][0] for name in shapes}
    return {
        name: jax.random.normal(each, shape) / np.sqrt(scale[name])
        for each, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def network(params: PyTree, x: Int[Array, "N T"]) -> Float[Array, "N T V"]:
    """Return the logits of the next characters: one block of a transformer.

    A character attends to itself and to those before it.
    """
    h = jax.nn.one_hot(x, len(ALPHABET)) @ params["token"] + params["position"][None, : x.shape[1]]
    n, t, width = h.shape
    parts = (normalised(h) @ params["mixed"]).reshape(n, t, 3, HEADS, -1)
    query, key, value = (parts[:, :, number] for number in range(3))
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / np.sqrt(width // HEADS)
    seen = jnp.tril(jnp.ones((t, t), bool))
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -1e9))
    attended = jnp.einsum("nhqk,nkhd->nqhd", weights, value).reshape(n, t, width)
    h = h + attended @ params["attended"]
    h = h + jax.nn.gelu(normalised(h) @ params["up"]) @ params["down"]
    return normalised(h) @ params["out"]


def normalised(h: Array) -> Array:
    """Return vectors with mean 0 and variance 1 over the last axis."""
    h = h - h.mean(-1, keepdims=True)
    return h / jnp.sqrt((h**2).mean(-1, keepdims=True) + 1e-5)


def times_of(first: float, factor: float, count: int) -> list[float]:
    """Return the times of the flows of a run: each is a factor longer, up to `LONGEST`.

    >>> times_of(1, 5, 5)
    [1, 5, 25, 100, 100]
    """
    return [min(first * factor**number, LONGEST) for number in range(count)]


@jax.jit
def loss_of(params: PyTree, x: Array, y: Array) -> Array:
    """Return the mean cross-entropy of the network, in nats a character."""
    return ENTROPY(network(params, x), y)


@jax.jit
def expansion(params: PyTree, x: Array, y: Array, time: float | Array):
    """Linearise at params and follow gradient flow for a time.

    The same as `il.train` with engine "flow" and one linearisation. One compiled program serves
    all texts and times.

    Returns:
        The new parameters, the loss of the linearised network there, and the products with J J^T.
    """
    model = linear_model.from_products(network, params, x)
    objective = flow.Objective(model, ENTROPY, y)
    settings = {"tolerance": TOLERANCE, "max_steps": 100_000}
    time = jnp.asarray(time, jnp.float32)
    end = flow.advance(objective, flow.begin(objective), time, **settings)
    loss = ENTROPY(model.outputs + end.image, y)
    return optax.tree.add(params, end.coordinates), loss, end.evaluations


def batches(text: Text, size: int, again: bool, seed: int) -> Iterator[tuple[Array, Array]]:
    """Yield the sequences of each visit: new ones each time, or those of the first visit again.

    The seed shuffles all sequences of the training text.
    """
    order = np.random.default_rng(seed).permutation(len(text.train[0]))
    starts = repeat(0) if again else range(0, len(order) - size + 1, size)
    for start in starts:
        chosen = order[start : start + size]
        yield tuple(jnp.asarray(part[chosen]) for part in text.train)


@full_precision()
def flow_run(params: PyTree, text: Text, visits: Visits, times: Sequence[float]) -> History:
    """Train by one flow a visit.

    Args:
        params: Initial parameters.
        text: Its held-out sequences are evaluated.
        visits: visits() -> the sequences (x, y) of each visit.
        times: The time of each flow.

    Returns:
        Arrays (1 + visits,): "held_loss" of the network, first of the initial one, then after each
        visit; "train_loss" and "proxy_loss" of network and linearised network on the sequences of
        that visit; and "products" with J J^T so far.
    """
    rows = [(loss_of(params, *text.held), np.nan, np.nan, 0)]
    for time, (x, y) in zip(times, visits(), strict=False):
        params, proxy_loss, products = expansion(params, x, y, time)
        losses = loss_of(params, *text.held), loss_of(params, x, y), proxy_loss
        rows.append((*losses, rows[-1][-1] + products))
    return dict(zip(HISTORY, np.asarray(rows, float).T, strict=True))


@partial(jax.jit, static_argnames="step_size")
def adam_step(params: PyTree, state: PyTree, x: Array, y: Array, *, step_size: float):
    """Return parameters and state of AdamW after one step."""
    gradient = jax.grad(loss_of)(params, x, y)
    changes, state = optax.adamw(step_size).update(gradient, state, params)
    return optax.apply_updates(params, changes), state


@full_precision()
def adam_run(params: PyTree, text: Text, visits: Visits, count: int, step_size: float) -> History:
    """Train by one step of AdamW a visit; the other arguments and the result are of `flow_run`."""
    state, rows = optax.adamw(step_size).init(params), [(loss_of(params, *text.held), np.nan)]
    for _, (x, y) in zip(range(count), visits(), strict=False):
        params, state = adam_step(params, state, x, y, step_size=step_size)
        rows.append((loss_of(params, *text.held), loss_of(params, x, y)))
    return dict(zip(HISTORY, np.asarray(rows, float).T, strict=False))


def kept(run: Callable[[], History], settings: tuple, folder: Path | None) -> History:
    """Return the history of a run and its "seconds"; with a folder, keep it there.

    A run that is in the folder is read. The history of one that another share trains is empty.

    Args:
        run: Trains the run.
        settings: Pytrees that identify the run.
        folder: As `grids.store` returns it.

    Raises:
        OutOfTime: If the deadline has passed and the run is not in the folder.
    """
    if folder is None:
        return timed(run)
    if environment.is_left_to_others():
        return {}
    path = folder / f"language_model-{digest(*settings)[-16:]}.npz"
    if not path.exists():
        if environment.out_of_time():
            raise OutOfTime("language_model: the deadline came before all runs were finished")
        found = timed(run)
        with atomic_write(path) as new, open(new, "wb") as file:
            np.savez(file, **found)
    with np.load(path) as found:
        return dict(found)


def timed(run: Callable[[], History]) -> History:
    """Return the history of a run, and the seconds that it took, as "seconds"."""
    started = perf_counter()
    return run() | {"seconds": np.asarray(perf_counter() - started)}


def grid(
    text: Text,
    arms: Mapping[str, Sequence[float]],
    sizes: Mapping[str, int],
    visits: Mapping[str, Mapping[str, int]],
    *,
    width: int,
    step_size: float,
    seeds: Sequence[int],
    folder: Path | None,
) -> xr.Dataset:
    """Train every arm on every kind of visits.

    Args:
        text: The text.
        arms: By the arm's name, the time of its first flow and the factor from one to the next.
        sizes: By the kind of visits, the number of sequences of one.
        visits: By the kind and by the arm, the number of visits; for `ADAM`, too.
        width: Width of the network.
        step_size: Step size of AdamW.
        seeds: Seeds of the initial network and of the order of the sequences.
        folder: As for `kept`.

    Returns:
        The histories of `flow_run` and `adam_run` over (kind, arm, seed, visit), NaN after the last
        visit of a run and for runs that are not asked for. The attribute `seconds` is the time that
        training took.
    """
    names = [*arms, ADAM]
    most = 1 + max(max(counts.values()) for counts in visits.values())
    shape = len(sizes), len(names), len(seeds), most
    found = {name: np.full(shape, np.nan) for name in HISTORY}
    for kind, size in sizes.items():
        asked, there = size * max(visits[kind].values()), len(text.train[0])
        if kind != SAME and asked > there:
            raise ValueError(
                f"visits to {kind} data take {asked} sequences, of which {there} are there"
            )
    first = initial(key_of(0), width, text.train[0].shape[1])
    trace = expansion.trace(first, *(part[:1] for part in text.train), 1.0)
    program = program_digest(trace.jaxpr)  # of network, loss and flow
    seconds = 0.0
    for (j, seed), (i, (kind, size)) in product(enumerate(seeds), enumerate(sizes.items())):
        params, again = initial(key_of(seed), width, text.train[0].shape[1]), kind == SAME
        start = params, text, partial(batches, text, size, again, seed)
        common = params, tuple(text), size, again, seed, program
        for name, count in visits[kind].items():
            if name == ADAM:
                run, how = adam_run, (count, step_size)
            else:
                run, how = flow_run, (times_of(*arms[name], count),)
            history = kept(partial(run, *start, *how), (*common, *how), folder)
            seconds += float(history.pop("seconds", 0))
            for variable, values in history.items():
                found[variable][i, names.index(name), j, : len(values)] = values
    coordinates = {"kind": list(sizes), "arm": names, "seed": list(seeds)}
    dims = (*coordinates, "visit")
    variables = {name: (dims, values) for name, values in found.items()}
    coordinates["visit"] = np.arange(most)
    return xr.Dataset(variables, coordinates, {"seconds": seconds})


def first_below(losses: xr.DataArray, level: float, dim: str) -> xr.DataArray:
    """Return where losses first are at or below a level, as a value of `dim`; NaN if nowhere."""
    below = losses <= level
    return losses[dim][below.argmax(dim)].where(below.any(dim)).drop_vars(dim, errors="ignore")


def held_at(train: np.ndarray, held: np.ndarray, level: float) -> float:
    """Return the held-out loss at which a run's training loss first falls to a level.

    It is interpolated between two visits; NaN if the training loss stays above.

    >>> held_at(np.array([np.nan, 3.0, 2.0, 1.0]), np.array([4.0, 3.2, 2.6, 2.8]), 1.5)
    2.7
    """
    train, held = np.asarray(train), np.asarray(held)
    below = np.flatnonzero(train <= level)
    if not len(below):
        return np.nan
    last = below[0]
    if np.isnan(train[last - 1]):
        return float(held[last])
    pair = [last, last - 1]  # increasing losses, as np.interp needs them
    return float(np.interp(level, train[pair], held[pair]))


def add_statistics(ds: xr.Dataset, level: float) -> xr.Dataset:
    """Return the runs with what the claims are judged by.

    Args:
        ds: Runs as `grid` returns them, of the arms "1", "10", "100" and `GROWING`.
        level: Held-out loss on new text at which visits are counted.
    """
    then = first_below(ds.held_loss.sel(kind=NEW), level, "visit").sel(arm=["10", "100", ADAM])
    ds["all_reach"] = intervals.over_seeds(then.notnull().all("arm"))
    for name, arm in {"adam_ratio": ADAM, "ratio_10": "10"}.items():
        ds[name] = over_all_seeds(then.sel(arm=arm) / then.sel(arm="100"))
    best = ds.held_loss.sel(kind=SAME).min("visit")
    pairs = {"long_over_10": ("100", "10"), "grown_over_10": (GROWING, "10")}
    for name, (one, other) in pairs.items():
        ds[name] = intervals.over_seeds(best.sel(arm=one) - best.sel(arm=other))
    ds["matched_gap"] = intervals.over_seeds(matched_gap(ds.sel(kind=SAME), "100", "10"))
    for name, kind in {"new": NEW, "little": LITTLE, "same": SAME}.items():
        if kind not in ds.kind:
            continue
        runs = ds.held_loss.sel(kind=kind)
        last = runs.sel(arm="100").dropna("visit", how="all").visit.values[-1:]
        ends = runs.sel(visit=last).mean("visit")
        ds[f"end_gap_{name}"] = intervals.over_seeds(ends.sel(arm="100") - ends.sel(arm="10"))
        if kind == NEW:
            ds["end_gap_1"] = intervals.over_seeds(ends.sel(arm="1") - ends.sel(arm="10"))
    return ds


def matched_gap(same: xr.Dataset, one: str, other: str) -> np.ndarray:
    """Return the best held-out loss of one arm minus that of another at the same training loss.

    The training loss is that of the first arm at its best held-out loss. The runs are over (arm,
    seed, visit), and the result is over seeds.
    """
    found = []
    for seed in same.seed.values:
        a, b = (same.sel(seed=seed, arm=name) for name in (one, other))
        losses = np.where(np.isnan(a.held_loss), np.inf, a.held_loss)
        best = losses[1:].argmin() + 1
        level = float(a.train_loss[best])
        found.append(losses[best] - held_at(b.train_loss.values, b.held_loss.values, level))
    return np.array(found)


def draw(ds: xr.Dataset) -> None:
    """Draw held-out loss against visits, for each kind of visits."""
    fig, axes = plotting.panels(3, height=2.7)
    colours = [*plt.get_cmap("viridis")([0.08, 0.45, 0.85]), plotting.COLOURS[3], "0.4"]
    arms = dict(zip(("1", "10", "100", GROWING, ADAM), colours, strict=True))
    for axis, kind in zip(axes, (NEW, SAME, LITTLE), strict=True):
        for arm, colour in arms.items():
            held = ds.held_loss.sel(kind=kind, arm=arm).dropna("visit", how="all")
            held = held.transpose("seed", "visit").isel(visit=slice(1, None))
            line = {"color": colour, "label": label_of(arm), "ls": "--" if arm == ADAM else "-"}
            if held.size:
                plotting.band(axis, held.visit, held, **line)
        axis.set(
            xscale="log",
            ylabel="held-out loss (nats)",
            title=kind,
            ylim=(2.4, 3.3),
            xlim=(0.95, 65),
        )
        axis.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes[-1].set_xlabel("visits")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    plt.show()


def label_of(arm: str) -> str:
    """Return the arm in words.

    >>> label_of("10"), label_of("AdamW")
    ('flows of time 10', 'AdamW')
    """
    return arm if arm == ADAM else f"flows of time {arm}"


def table(ds: xr.Dataset) -> object:
    """Return a table of what the arms reach on each kind of visits."""
    head = ["text", "trained by", "visits", "products a visit", "held-out loss at the end"]
    head += ["best held-out loss", "training loss at the best"]
    rows, text = [], tables.interval_text
    for kind in ds.kind.values:
        for arm in ds.arm.values:
            runs = ds.sel(kind=kind, arm=arm)
            held = runs.held_loss.dropna("visit", how="all").transpose("seed", "visit")
            if not held.size:
                continue
            best = held.argmin("visit")
            train = runs.train_loss.isel(visit=best)
            count = int(held.visit[-1])
            products = runs.products.sel(visit=count) / count
            cells = [count, "–" if arm == ADAM else text(products, 0), text(held[:, -1], 3)]
            rows.append([kind, label_of(arm), *cells, text(held.min("visit"), 3), text(train, 3)])
    return tables.table(head, rows)
