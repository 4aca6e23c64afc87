"""A page of a grid of runs, in a book of its own with the whole library, for `make results`."""

import shutil

import toy_book
import xarray as xr

PAGE = """\
# Grid

```{code-cell} ipython3
:tags: [parameters]

tier = "quick"
num_seeds = 2
num_steps = 20
```

```{code-cell} ipython3
import jax
import jax.numpy as jnp
from iterlin import Algorithm, Watch, losses, mlp
from iterlin_study.runs import exact_runs, groups, grids
from iterlin_study.report.page import Page

page = Page("grid", globals())
model = mlp((2, 5, 1), activation="tanh")
x = jax.random.normal(jax.random.key(1), (24, 2))
y = jnp.prod(x, 1, keepdims=True)
algorithm = Algorithm(model.apply, losses.squared_error, optimizer=None)
problem = groups.Problem(algorithm, model.init, (x, y), Watch({"train": (x, y)}))


def make(period, seed):
    return grids.Run(seed, period, 0.01, (0, num_steps // 2, num_steps))


axes = {"period": [1, 4, 10], "seed": range(num_seeds)}
folder = grids.store(tier)
live = grids.grid(problem, axes, make, label="grid", folder=folder, memory=1)
BETWEEN
exact = exact_runs.exact_grid(
    problem, {"period": [10], "seed": range(num_seeds)}, make,
    engine=lambda run: "function_space", label="exact", folder=folder,
)
live["exact_loss"] = exact.train_loss.isel(period=0, evaluation=-1)
missing = live.missing + exact.missing
live = page.save(live, missing=missing)
```
"""


def create(root, num_steps, between="pass"):
    """The book, with the page at a tier gpu; `between` its grids it does that."""
    toy_book.create(root)
    shutil.rmtree(root / "lib")  # so that processes find this checkout's
    for name in ("experiments/xor.md", "experiments/xor.laptop.yml", "other.md"):
        (root / "book" / name).unlink()  # they are of the toy library
    (root / "book" / "grid.md").write_text(PAGE.replace("BETWEEN", between))
    (root / "book" / "grid.gpu.yml").write_text(f"tier: gpu\nnum_steps: {num_steps}\n")
    contents = "format: jb-book\nroot: index\nchapters:\n  - file: grid\n  - file: last\n"
    (root / "_toc.yml").write_text(contents)
    return root


def record(root):
    """The record, without what is of the day and the machine."""
    with xr.open_dataset(root / "data" / "results" / "grid" / "gpu.nc") as found:
        found = found.load()
    for name in ("date", "wall_time", "seconds", "commit"):
        del found.attrs[name]
    return found


def kept(root):
    return sorted(path.name for path in (root / "_build" / "runs").glob("*.npz"))
