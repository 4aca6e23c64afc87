"""A book of four small pages over a toy library, built by the real pipeline in a folder of its own.

Its library, which tests may edit, stands before the modules of `iterlin` in the processes started
here.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

LIBRARY = {
    "__init__.py": f"""\
__path__.append({str(ROOT / "lib" / "iterlin")!r})
__version__ = "0"


def quadruple(x):
    return 4 * x


def negate(x):
    from iterlin import gamma
    return gamma.negate(x)
""",
    "gamma.py": "def negate(x):\n    return -x\n",
}
PAGES = {
    "index.md": "# Toy\n\nPlain prose, {cite:t}`someone`, {doc}`experiments/xor`.\n\n"
    "$$ a^2 = b $$ (square)\n\nSee {eq}`square`.\n",
    "experiments/xor.md": """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# First page

The prose of the first page.

```{code-cell} ipython3
:tags: [parameters]

tier = "quick"
step_size = 0.5
periods = [1, 10]
```

```{code-cell} ipython3
import iterlin as il

print("result", il.quadruple(3), tier, step_size, periods)
```

## A picture

```{code-cell} ipython3
:tags: [hide-input]

import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(1, 1))
ax.plot([0, 1]);
```
""",
    "other.md": "# Second page\n\n```{code-cell} ipython3\n"
    "from iterlin import negate\n\nnegate(7)\n```\n",
    "last.md": "# Last page\n\n<!-- the time of each page -->\n\n```{bibliography}\n```\n",
    "experiments/xor.laptop.yml": "step_size: 0.25\nperiods: [5]\n",
    "references.bib": "@book{someone, title={A}, author={Some One}, year={2000}, publisher={P}}\n",
    "claims.yml": "[]\n",
}
CONTENTS = ("experiments/xor", "other", "last")


def create(root):
    """Write the book and its library below ``root``."""
    texts = {f"lib/iterlin/{name}": text for name, text in LIBRARY.items()}
    for name, text in (texts | {f"book/{name}": text for name, text in PAGES.items()}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    chapters = "".join(f"  - file: {name}\n" for name in CONTENTS)
    (root / "_toc.yml").write_text(f"format: jb-book\nroot: index\nchapters:\n{chapters}")
    (root / "requirements.lock").write_text("numpy==1\n")
    shutil.copy(ROOT / "_config.yml", root)
    shutil.copytree(ROOT / "book" / "_static", root / "book" / "_static")
    return root


def command(module, *arguments):
    return [sys.executable, "-m", f"iterlin_book.{module}", *arguments]


def environment(root):
    """Variables with which a process finds the toy library and this checkout's machinery."""
    path = os.pathsep.join([str(root / "lib"), str(ROOT / "lib")])
    return {**os.environ, "PYTHONPATH": path}


def run(root, module, *arguments):
    """The finished process of one of the machinery's commands, run in the book's folder."""
    process = begin(root, module, *arguments)
    process.stdout, process.stderr = process.communicate(timeout=300)
    return process


def begin(root, *arguments, before=(), stderr=subprocess.PIPE):
    """`run`'s process, under way in a session of its own; `before`: the command that runs it."""
    settings = PIPES | {"stderr": stderr, "start_new_session": True}
    whole = [*before, *command(*arguments)]
    return subprocess.Popen(whole, cwd=root, env=environment(root), **settings)


def here(root, capfd, main, *arguments):
    """Run a command in this process: its exit status, the pages that it ran, and its errors."""
    with mock.patch.dict(os.environ, environment(root)):  # which a build changes
        status = main([*arguments, "--root", str(root)])
    said = capfd.readouterr()
    return status, started(said.out), said.err


def build(root):
    """Build a book that must succeed; return the pages that were run for it."""
    done = run(root, "build", "book")
    assert done.returncode == 0, done.stdout + done.stderr
    return started(done.stdout)


def started(output):
    return sorted(re.findall(r"^(\S+) \(\w+\): started$", output, re.MULTILINE))


def edit(root, name, old, new):
    """Replace a piece of text that must be there."""
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def html(root, page):
    return (root / "_build" / "html" / f"{page}.html").read_text()


def executed(root, page, tier="quick"):
    """The executed notebook of a page; there must be one."""
    (path,) = (root / "_build" / "executed" / tier).glob(f"{page}.*.ipynb")
    return path
