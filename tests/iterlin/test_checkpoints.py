import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import namedtuple
from unittest.mock import Mock

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from iterlin.training import checkpoints, loop, losses
from iterlin.training.checkpoints import CheckpointError
from refusals import fails

A, B = {"run": "a"}, {"run": "b"}
TREE = {"params": [jnp.arange(6.0).reshape(2, 3)], "key": jax.random.key(3), "step": jnp.int32(4)}


def test_what_is_saved_comes_back_of_jax_or_numpy_as_it_was(tmp_path):
    """Neither shape nor type of NumPy's arrays need be known; nothing is taken from `like`."""
    path = tmp_path / "deep" / "run.npz"
    types = [jnp.arange(6).astype(dtype) for dtype in ("bfloat16", "float16", "int8", "bool")]
    kept = {"seen": np.arange(3), "rate": 0.5, "types": types, "empty": jnp.zeros((0, 2))}
    assert checkpoints.load(path, TREE, identity=A) is None
    checkpoints.save(path, TREE | kept, identity=A)
    like = jax.tree.map(jnp.zeros_like, TREE | {"types": types, "empty": kept["empty"]})
    like |= {"key": jax.random.key(0), "seen": np.zeros(0), "rate": 0.0}
    tree = checkpoints.load(path, like, identity=A)
    for found, wanted in zip(*map(jax.tree.leaves, (tree, TREE | kept)), strict=True):
        assert isinstance(found, jax.Array if isinstance(wanted, jax.Array) else np.ndarray)
        assert found.dtype == jnp.result_type(wanted)
        assert np.all(found == wanted)
    assert [entry.name for entry in path.parent.iterdir()] == ["run.npz"]


def test_a_header_that_claims_more_than_its_file_holds_is_refused_in_a_line(tmp_path):
    array = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**37,)}  # 1 TiB
    np.lib.format.write_array_header_1_0(array, header)
    with zipfile.ZipFile(tmp_path / "run.npz", "w") as archive:
        archive.writestr("head.npy", array.getvalue() + bytes(2**20))
    with pytest.raises(CheckpointError, match=r"^[^\n]*is damaged [^\n]*name another file"):
        checkpoints.load(tmp_path / "run.npz", TREE, identity=A)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A)
    with pytest.raises(CheckpointError, match=r"another run: it differs in run \(a, here b\)"):
        checkpoints.load(path, TREE, identity=B)
    with pytest.raises(CheckpointError, match=r"run\.npz holds another state"):
        checkpoints.load(path, [TREE, jnp.zeros(2)], identity=A)


@pytest.mark.parametrize(
    ("head", "leaf", "message"),
    [
        ({"format": "iterlin checkpoint 1"}, None, "is not an 'iterlin check"),
        ({}, np.zeros((1, 2), np.uint32), r"holds another state, \w+ \(1, .* in the place of"),
        ({}, np.array([None]), "is damaged"),  # what would run code as it is read is not read
    ],
)
def test_a_file_that_no_run_has_written_is_refused(tmp_path, head, leaf, message):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A)
    with np.load(path) as file:
        arrays = dict(file)
    arrays |= {"leaf0": arrays["leaf0"] if leaf is None else leaf}
    text = json.dumps(json.loads(arrays["head"].tobytes()) | head)
    np.savez(path, **arrays | {"head": np.frombuffer(text.encode(), np.uint8)})
    with pytest.raises(CheckpointError, match=rf"run\.npz {message}.*: name another file"):
        checkpoints.load(path, TREE, identity=A)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    """Wherever it is cut; one flipped bit may also go unseen."""
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A)
    whole = path.read_bytes()
    for cut in (0, 10, 200):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match=r"run\.npz is damaged .*name another file"):
            checkpoints.load(path, TREE, identity=A)
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 200):
        flipped = bytes([whole[place] ^ 1 << rng.integers(8)])
        path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
        with contextlib.suppress(CheckpointError):
            checkpoints.load(path, TREE, identity=A)
    np.save(path.with_suffix(".npy"), np.zeros(9))
    other, error = path.with_suffix(".npy"), CheckpointError
    fails("no .npz archive", checkpoints.load, other, TREE, identity=A, error=error)


def test_a_file_that_cannot_be_written_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A)

    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", full)
        with pytest.raises(CheckpointError, match=r"No space left.*it is intact"):
            checkpoints.save(path, TREE | {"step": jnp.int32(5)}, identity=A)
    assert checkpoints.load(path, TREE, identity=A)["step"] == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]
    message = r"cannot write .*run\.npz/deeper\.npz.*there is none before it"
    fails(message, checkpoints.save, path / "deeper.npz", TREE, identity=A, error=CheckpointError)


Going = namedtuple("Going", ["step", "diverged_at", "converged_at"])


@pytest.mark.parametrize(
    ("terminal", "progress", "shown"),
    [
        (True, None, "bar"),
        (True, False, ""),
        (False, None, ""),
        (False, True, "bar"),
        (True, "lines", "lines"),
    ],
)
def test_progress_is_a_bar_or_lines_but_never_both(monkeypatch, capsys, terminal, progress, shown):
    monkeypatch.setattr(loop, "LINE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    trainer = loop.StepTrainer(
        Going(jnp.int32(0), jnp.array([3, -1, 0]), jnp.full(3, -1)),
        lambda state, count: state._replace(step=state.step + count),
        lambda state: {"loss": jnp.zeros(())},
    )
    loop.run(trainer, np.array([3, 8, 10]), label="runs", progress=progress)
    told = capsys.readouterr().err
    assert ("10/10" in told) == (shown == "bar")
    assert ("runs: step 10 of 10, " in told) == (shown == "lines")
    assert ("2 diverged" in told) == bool(shown)


# The signal itself, which no finally clause survives.

GRID = """
import sys
from pathlib import Path

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
from iterlin.training import loop
from iterlin_study.runs import grids
from iterlin_study.runs.groups import Problem

loop.FIRST_CHUNK, loop.CHUNK, loop.CHECKPOINT = 4, 0.0, 0.0
folder = Path(sys.argv[1])
x = np.random.default_rng(1).normal(size=(24, 2))
x, y = jnp.asarray(x), jnp.asarray((np.prod(x, 1) > 0).astype(np.int32))
model, loss = il.mlp((2, 8, 2)), il.losses.mean(il.losses.cross_entropy)
weights = [np.sin(np.arange(16)).reshape(shape) for shape in ((2, 8), (8, 2))]

def init(key):
    factor = jax.random.uniform(key)
    return [{"weight": factor * weight, "bias": jnp.zeros(weight.shape[1])} for weight in weights]

problem = Problem(
    il.Algorithm(model.apply, loss, reset_optimizer=True),
    init,
    (x, y),
    il.Watch({"train": (x, y)}, {"loss": loss}),
    observe=lambda state: {"weight": state.params[0]["weight"]},
    batch_size=6,
    augment=lambda key, x: x + 0.2 * jax.random.uniform(key, x.shape),
    solved=il.schedules.Solved(10),
)

def make(period, seed):
    steps, solved = tuple(range(0, 161, 20)), period == 50
    return grids.Run(seed, period, 0.01, steps, optimizer="adam", until_solved=solved)

print("ready", flush=True)
for name, kept in ((folder.name, folder), ("alone", None)):
    found = grids.grid(problem, {"period": [7, 50], "seed": [0, 1]}, make, folder=kept)
    found.attrs.clear()
    found.to_netcdf(folder.with_name(f"{name}.nc"), engine="netcdf4")
"""


@contextlib.contextmanager
def launched(tmp_path, folder):
    """The grid in a process of its own, which keeps its runs there, and once more without them."""
    script = tmp_path / "grid.py"
    script.write_text(GRID)
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")} | os.environ
    command = [sys.executable, str(script), str(folder)]
    with (tmp_path / "errors").open("w+") as errors:
        pipes = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            try:
                assert process.stdout.readline() == "ready\n", (tmp_path / "errors").read_text()
                yield process
            finally:
                process.kill()


def test_a_grid_killed_by_the_signal_gives_the_record_of_one_left_alone(tmp_path):
    folder = tmp_path / "killed"
    with launched(tmp_path, folder) as process:
        # In the midst of the second group's training, in which it writes all the time.
        while len(list(folder.glob("*/*.npz")) + list(folder.glob("*.npz"))) < 2:
            assert process.poll() is None, (tmp_path / "errors").read_text()
            time.sleep(0.01)
        time.sleep(0.1)
        assert process.poll() is None, "it was over before it was killed"
        process.send_signal(signal.SIGKILL)
    assert not folder.with_name("killed.nc").exists()
    with launched(tmp_path, folder) as process:
        assert process.wait(300) == 0, (tmp_path / "errors").read_text()
    record, alone = (xr.load_dataset(tmp_path / f"{name}.nc") for name in ("killed", "alone"))
    assert alone.updates.values.max() > 0
    assert set(record.variables) == set(alone.variables)
    for name in alone.variables:
        np.testing.assert_array_equal(record[name].values, alone[name].values, err_msg=name)


def test_a_run_in_bfloat16_comes_back_from_its_checkpoint(tmp_path):
    x, y = jnp.eye(2, dtype="bfloat16"), jnp.asarray([0.5, -0.5], "bfloat16")
    algorithm = iterlin.Algorithm(lambda p, x: jnp.tanh(x @ p), losses.squared_error, 0.05)
    watch = iterlin.Watch({"train": (x, y)}, at=[0, 5])
    settings = {"schedule": 5, "watch": watch, "progress": False}
    settings["checkpoint"] = tmp_path / "run.npz"
    start = jnp.zeros(2, "bfloat16")
    first, again, longer = (
        iterlin.train(algorithm, start, (x, y), num_steps=steps, **settings)[1]["train_loss"]
        for steps in (10, 10, 20)
    )
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(longer[:3], first)
