"""Kernels that are copies of a loaded process run pages as ordinary ones do, and end as they do."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from iterlin_book import build, execute, warm_kernels

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="for Linux")

# A page that warns, says what it knows of its process, computes, and draws.
PAGE = (
    "import warnings; warnings.warn('shown')",
    """
import os, sys
print(os.getcwd(), sys.argv[0].endswith("ipykernel_launcher.py"), __name__, sys.path)
import matplotlib.pyplot as plt
import pandas, xarray
sys.stdout.flush()
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
plt.rcParams["svg.hashsalt"] = "x"
from matplotlib_inline.backend_inline import set_matplotlib_formats
set_matplotlib_formats("svg", metadata={"Date": None})
print(dict(plt.rcParams), pandas.options.display.max_columns, xarray.get_options())
plt.plot([1, 2])
jnp.arange(3.0).sum()
""",
)
LOADED = "import sys; print('jax' in sys.modules)"


@contextmanager
def environment_of_a_build(root):
    before = dict(os.environ)
    for name in ("MPLBACKEND", "PYDEVD_DISABLE_FILE_VALIDATION", warm_kernels.PLACE):
        os.environ.pop(name, None)
    os.environ |= {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    execute.settle(root, quick=True)
    yield
    os.environ.clear()
    os.environ |= before


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm")
    (folder / "book").mkdir()
    (folder / "book" / "page.md").touch()
    with environment_of_a_build(folder):
        yield folder


@pytest.fixture(scope="module")
def place(root):
    """Where one process gives out kernels."""
    with warm_kernels.serving() as server:
        yield server, os.environ.pop(warm_kernels.PLACE)
        os.environ[warm_kernels.PLACE] = ""


@pytest.fixture
def server(place, monkeypatch):
    """That process; the environment tells of it."""
    monkeypatch.setenv(warm_kernels.PLACE, place[1])
    return place[0]


def outputs(root, *cells):
    """Of the cells of a notebook, run as a page is, what each put out."""
    kernel = {"name": "python3", "language": "python", "display_name": "Python"}
    cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    done = execute.run(root, "page", notebook, {}, root / "partial.ipynb", None)
    return [cell.outputs for cell in done.cells if cell.cell_type == "code"]


def printed(root, cell):
    return outputs(root, cell)[0][0]["text"].strip()


def children(process):
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(number) for number in text.split()]


def eventually(condition):
    for _ in range(200):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it does not happen")


def test_a_page_shows_what_it_shows_in_an_ordinary_kernel(root, server, monkeypatch):
    def shown():
        return re.sub(r"ipykernel_\d+", "ipykernel", str(outputs(root, *PAGE)))

    copies = [shown(), shown()]
    monkeypatch.delenv(warm_kernels.PLACE)
    ordinary = shown()
    assert "UserWarning: shown" in ordinary
    assert "image/svg+xml" in ordinary
    assert copies == [ordinary, ordinary]


def test_what_is_loaded_starts_no_thread_and_looks_for_no_device():
    code = """
import os
from iterlin_book import warm_kernels
warm_kernels.LOADED += ("no_such_module",)  # no page may need it
warm_kernels.load()
from jax._src import xla_bridge
import iterlin.study.page
print(len(os.listdir("/proc/self/task")), xla_bridge.backends_are_initialized())
"""
    command, told = [sys.executable, "-c", code], os.environ | warm_kernels.ONE_THREAD
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_a_build_of_many_pages_gives_out_kernels(root):
    with build._kernels(root, build._WORTH_IT - 1):
        assert warm_kernels.manager() is None
    with build._kernels(root, build._WORTH_IT):
        assert printed(root, LOADED) == "True"
    assert warm_kernels.PLACE not in os.environ


def test_a_page_of_another_environment_has_an_ordinary_kernel(root, server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("SOMETHING_ELSE", "1")
        assert printed(root, LOADED) == "True"
    with monkeypatch.context() as patch:
        patch.setenv("JAX_ENABLE_X64", "1")  # read when JAX is loaded
        assert printed(root, LOADED) == "False"
    with monkeypatch.context() as patch:
        patch.setenv(warm_kernels.PLACE, str(root / "nothing"))
        assert printed(root, LOADED) == "False"


def test_copies_draw_numbers_of_their_own(root, server):
    draw = "import numpy as np, random; print(np.random.rand(), random.random())"
    first, second = (printed(root, draw).split() for _ in range(2))
    assert set(first).isdisjoint(second)


def begun(server, folder):
    """A client whose kernel waits for somebody to talk to it, and the copy that this is."""
    file = folder / "kernel.json"
    client = [sys.executable, "-I", "-S", str(warm_kernels.CLIENT), os.environ[warm_kernels.PLACE]]
    ordinary = [sys.executable, "-m", "ipykernel_launcher", "-f", str(file)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    client = subprocess.Popen([*client, *ordinary], start_new_session=True, **silent)
    (copy,) = eventually(lambda: children(server.pid))
    eventually(lambda: file.is_file() and file.read_text().endswith("}"))
    return client, copy


def test_a_kernel_ends_with_the_program_that_stands_for_it(server, tmp_path):
    client, _ = begun(server, tmp_path)
    client.kill()
    client.wait()
    eventually(lambda: not children(server.pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_program_ends_as_its_kernel_does(server, tmp_path, number):
    client, copy = begun(server, tmp_path)
    os.kill(copy, number)
    assert client.wait(20) == -number
    assert children(server.pid) == []


def test_a_signal_reaches_the_kernel(server, tmp_path):
    client, _ = begun(server, tmp_path)
    client.terminate()
    assert client.wait(20) == -signal.SIGTERM
    assert children(server.pid) == []


def test_an_interrupt_reaches_the_cell_that_runs(root, server):
    code = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    with pytest.raises(execute.CellFailed, match="KeyboardInterrupt"):
        outputs(root, code)


def test_nothing_is_left_of_a_build_that_was_killed(tmp_path):
    code = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
import test_book_warm_kernels as test
folder = pathlib.Path(sys.argv[2])
with test.environment_of_a_build(folder), test.warm_kernels.serving() as server:
    client, copy = test.begun(server, folder)
    print(server.pid, client.pid, copy, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    numbers = done.stdout.split()
    assert len(numbers) == 3
    # One that nobody waits for any more may be listed, but has no folder.
    eventually(lambda: not any(os.path.exists(f"/proc/{number}/cwd") for number in numbers))
