import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from iterlin.runtime import checkpoints

TREE = {"params": [jnp.arange(6.0).reshape(2, 3)], "key": jax.random.key(3), "step": jnp.int32(4)}


def test_what_is_saved_comes_back(tmp_path):
    path = tmp_path / "deep" / "run.npz"
    assert checkpoints.load(path, TREE, fingerprint="a") is None
    checkpoints.save(path, TREE, fingerprint="a", notes={"taken": 7})
    tree, notes = checkpoints.load(path, TREE, fingerprint="a")
    assert notes == {"taken": 7}
    np.testing.assert_array_equal(tree["params"][0], TREE["params"][0])
    assert tree["step"].dtype == TREE["step"].dtype
    np.testing.assert_array_equal(
        jax.random.normal(tree["key"], (3,)), jax.random.normal(TREE["key"], (3,))
    )
    assert [entry.name for entry in path.parent.iterdir()] == ["run.npz"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, fingerprint="a")
    with pytest.raises(checkpoints.CheckpointError, match=r"run\.npz belongs to a run with other"):
        checkpoints.load(path, TREE, fingerprint="b")
    with pytest.raises(checkpoints.CheckpointError, match=r"run\.npz holds another state"):
        checkpoints.load(path, [TREE, jnp.zeros(2)], fingerprint="a")


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_damaged_checkpoint_is_refused(tmp_path, cut):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, fingerprint="a")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(checkpoints.CheckpointError, match=r"run\.npz is damaged .*delete it"):
        checkpoints.load(path, TREE, fingerprint="a")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, fingerprint="a", notes={"taken": 1})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(checkpoints.CheckpointError, match=r"No space left.*before it is intact"):
        checkpoints.save(path, TREE, fingerprint="a", notes={"taken": 2})
    monkeypatch.undo()
    assert checkpoints.load(path, TREE, fingerprint="a")[1] == {"taken": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_truly_full_device_is_reported(tmp_path, monkeypatch):
    """The error of the system call itself, not of a stand-in."""
    checkpoints.save(tmp_path / "run.npz", TREE, fingerprint="a")
    partial = tmp_path / "partial"
    partial.symlink_to("/dev/full")

    def opened(**_):
        return os.open("/dev/full", os.O_WRONLY), str(partial)

    monkeypatch.setattr(checkpoints.tempfile, "mkstemp", opened)
    with pytest.raises(checkpoints.CheckpointError, match="No space left"):
        checkpoints.save(tmp_path / "run.npz", TREE, fingerprint="a")
    assert checkpoints.load(tmp_path / "run.npz", TREE, fingerprint="a") is not None


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(checkpoints.CheckpointError, match=r"cannot write .*file/run\.npz"):
        checkpoints.save(tmp_path / "file" / "run.npz", TREE, fingerprint="a")


def program(scale, constant):
    return jax.make_jaxpr(lambda x: jax.nn.relu(scale * x) + constant)(jnp.ones(3))


def test_a_fingerprint_sees_programs_constants_and_numbers():
    constant, x = jnp.arange(3.0), jnp.ones(2)
    same = checkpoints.fingerprint([program(2.0, constant)], x)
    assert same == checkpoints.fingerprint([program(2.0, constant)], x)
    others = [
        checkpoints.fingerprint([program(3.0, constant)], x),
        checkpoints.fingerprint([program(2.0, constant + 1)], x),
        checkpoints.fingerprint([program(2.0, constant)], x + 1),
        checkpoints.fingerprint([program(2.0, constant)], x.astype(jnp.float32)),
        checkpoints.fingerprint([program(2.0, constant)], [x]),
        checkpoints.fingerprint([program(2.0, constant)], x.reshape(2, 1)),
    ]
    assert len({same, *others}) == 1 + len(others)


# Killed at any moment, a grid of runs ends as if nothing had happened.

GRID = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from iterlin import losses, schedules
from iterlin.networks.mlp import mlp
from iterlin.runtime import chunks
from iterlin.study import runs, records

chunks.FIRST_CHUNK, chunks.CHUNK = 4, 0.0
chunks.run_in_chunks.__kwdefaults__["checkpoint_seconds"] = 0.0
folder, target = map(Path, sys.argv[1:])
x = jax.random.normal(jax.random.key(1), (24, 2))
y = (jnp.prod(x, 1) > 0).astype(jnp.int32)
model = mlp((2, 8, 2))
problem = runs.Problem(
    f=model.apply, init=model.init, train=(x, y), loss=losses.mean(losses.cross_entropy),
    evaluate={"train": (x, y)}, metrics={"loss": losses.mean(losses.cross_entropy)},
    batch_size=6, reset_optimizer=True, solved=schedules.Solved(10),
    augment=lambda key, x: x + 0.1 * jax.random.normal(key, x.shape),
    observe=lambda state: {"weight": state.params[0]["weight"]},
)
steps = tuple(range(0, 601, 20))

def make(period, seed):
    return runs.Run(seed, period, 0.01, steps, optimizer="adam", until_solved=period == 50)

print("ready", flush=True)
found = runs.grid(problem, {"period": [1, 7, 50], "seed": [0, 1]}, make, folder=folder)
records.save(found, "killed", "laptop", parameters={}, modules=["runs"], path=target)
"""


@contextmanager
def launched(tmp_path, name):
    """The grid in a process of its own, keeping its runs and its record under that name."""
    script = tmp_path / "grid.py"
    script.write_text(GRID)
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    command = [sys.executable, str(script), str(tmp_path / name), str(tmp_path / f"{name}.nc")]
    with (tmp_path / "errors").open("w+") as errors:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        with process:
            try:
                assert process.stdout.readline() == "ready\n", (tmp_path / "errors").read_text()
                yield process
            finally:
                process.kill()


def test_a_grid_killed_at_twenty_moments_gives_the_record_of_one_left_alone(tmp_path):
    def finished(process, name):
        assert process.wait(300) == 0, (tmp_path / "errors").read_text()
        with xr.open_dataset(tmp_path / f"{name}.nc") as record:
            return record.load()

    started = time.monotonic()
    with launched(tmp_path, "alone") as process:
        alone = finished(process, "alone")
    seconds = time.monotonic() - started
    assert alone.updates.values.max() > 0

    rng = np.random.default_rng(0)
    kills, records = 0, []
    while kills < 20 or not records:
        with launched(tmp_path, "killed") as process:
            # Mostly while it trains and writes, sometimes while it is still compiling.
            time.sleep(rng.uniform(0, seconds / 6) if kills < 20 else 0)
            if kills == 20 or process.poll() is not None:
                records.append(finished(process, "killed"))
                shutil.rmtree(tmp_path / "killed")
            else:
                process.send_signal(signal.SIGKILL)
                kills += 1
    for record in records:
        assert set(record.variables) == set(alone.variables)
        for name in alone.variables:
            np.testing.assert_array_equal(record[name].values, alone[name].values, err_msg=name)
