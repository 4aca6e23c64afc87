import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zipfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import roads
import xarray as xr
from iterlin import losses
from iterlin.networks.mlp import mlp
from iterlin.runtime import checkpoints, chunks
from iterlin.runtime.identity import Identity
from iterlin.study import records, runs
from problems import bare

A, B = Identity({"run": "a"}), Identity({"run": "b"})
TREE = {"params": [jnp.arange(6.0).reshape(2, 3)], "key": jax.random.key(3), "step": jnp.int32(4)}


def test_what_is_saved_comes_back(tmp_path):
    path = tmp_path / "deep" / "run.npz"
    assert checkpoints.load(path, TREE, identity=A) is None
    checkpoints.save(path, TREE, identity=A, notes={"taken": 7})
    tree, notes = checkpoints.load(path, TREE, identity=A)
    assert notes == {"taken": 7}
    np.testing.assert_array_equal(tree["params"][0], TREE["params"][0])
    for name in ("step", "key"):
        assert tree[name].dtype == TREE[name].dtype
    np.testing.assert_array_equal(
        jax.random.normal(tree["key"], (3,)), jax.random.normal(TREE["key"], (3,))
    )
    assert [entry.name for entry in path.parent.iterdir()] == ["run.npz"]


def test_what_comes_back_is_of_jax_where_it_is_to_be_like_that(tmp_path):
    """Of the rest, neither shape nor type need be known; and nothing is taken from `like`."""
    path, kept = tmp_path / "run.npz", {"seen": np.arange(3), "rate": 0.5}
    checkpoints.save(path, TREE | kept, identity=A)
    like = TREE | {"params": [jnp.zeros((2, 3))], "key": jax.random.key(0), "step": jnp.int32(0)}
    unknown = {"seen": np.zeros(0), "rate": 0.0}
    tree, _ = checkpoints.load(path, like | unknown, identity=A)
    for name, value in (TREE | kept).items():
        found, wanted = jax.tree.leaves(tree[name])[0], jax.tree.leaves(value)[0]
        assert isinstance(found, jax.Array if isinstance(wanted, jax.Array) else np.ndarray)
        assert np.all(found == wanted)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A)
    with pytest.raises(
        checkpoints.CheckpointError, match=r"another run: it differs in run \(a, here b\)"
    ):
        checkpoints.load(path, TREE, identity=B)
    with pytest.raises(checkpoints.CheckpointError, match=r"run\.npz holds another state"):
        checkpoints.load(path, [TREE, jnp.zeros(2)], identity=A)


def crafted(path, change):
    """A checkpoint as `save` writes it, but with another head, or other arrays."""
    checkpoints.save(path, TREE, identity=A, notes={"taken": 1, "seconds": 0.5})
    with np.load(path) as file:
        arrays = dict(file)
    head = change(json.loads(arrays["head"].tobytes()), arrays)
    np.savez(path, **arrays | {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)})


def without(name):
    return lambda head, arrays: {key: value for key, value in head.items() if key != name}


def reshaped(head, arrays):
    arrays["leaf0"] = arrays["leaf0"][None]
    return head


def pickled(head, arrays):
    arrays["leaf0"] = np.array([None])
    return head


def retyped(head, arrays):
    arrays["leaf0"] = arrays["leaf0"].astype(np.int16)
    return head


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head, arrays: [head], "is no 'iterlin checkpoint 2'"),
        (lambda head, arrays: "head", "is no 'iterlin checkpoint 2'"),
        (lambda head, arrays: head | {"format": "iterlin checkpoint 1"}, "is no 'iterlin check"),
        (without("settings"), r"belongs to another run: it differs in run \(None, here a\)"),
        (lambda head, arrays: head | {"settings": ["a"]}, "belongs to another run"),
        (without("notes"), "lacks its notes taken seconds"),
        (lambda head, arrays: head | {"notes": [1]}, "lacks its notes taken seconds"),
        (lambda head, arrays: head | {"notes": {"taken": 1}}, "lacks its notes taken seconds"),
        (lambda head, arrays: head | {"notes": {"taken": 1, "seconds": "1"}}, "lacks its notes"),
        (reshaped, r"holds another state, \w+ \(1, .* in the place of"),
        (retyped, "holds another state, int16 .* in the place of"),
        (pickled, "is damaged"),  # what would run code as it is read is not read
    ],
)
def test_a_file_that_no_run_has_written_is_refused(tmp_path, change, message):
    path = tmp_path / "run.npz"
    crafted(path, change)
    with pytest.raises(checkpoints.CheckpointError, match=rf"run\.npz {message}.*: delete it"):
        checkpoints.load(path, TREE, identity=A, notes=("taken", "seconds"))


def test_a_folder_is_no_checkpoint(tmp_path):
    message = "is a folder: give the name of a file$"
    with pytest.raises(checkpoints.CheckpointError, match=message):
        checkpoints.load(tmp_path, TREE, identity=A)


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_damaged_checkpoint_is_refused(tmp_path, cut):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(checkpoints.CheckpointError, match=r"run\.npz is damaged .*delete it"):
        checkpoints.load(path, TREE, identity=A)


def header(shape):
    """The start of an .npy file of float64, which says that it is of this shape."""
    file = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


def stored(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        stored({"head.npy": header((2**37,)) + bytes(80)}),
        stored({"head.npy": header((10,)) + bytes(2**20)}, zipfile.ZIP_DEFLATED),
        header((2**37,)) + bytes(80),
    ],
    ids=["header of 1 TiB", "compressed", ".npy of 1 TiB"],
)
def test_a_header_that_claims_more_than_its_file_holds_is_refused_in_a_line(tmp_path, content):
    path = tmp_path / "run.npz"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(
        checkpoints.CheckpointError, match=r"^[^\n]*is damaged [^\n]*delete it[^\n]*$"
    ):
        checkpoints.load(path, TREE, identity=A)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_any_flipped_bit_of_a_checkpoint_is_read_or_refused(tmp_path):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 400):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << rng.integers(8)]) + whole[place + 1 :]
        )
        with contextlib.suppress(checkpoints.CheckpointError):
            checkpoints.load(path, TREE, identity=A)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool"])
def test_arrays_of_every_type_come_back(tmp_path, dtype):
    tree = [jnp.arange(6).reshape(2, 3).astype(dtype), jnp.zeros((0, 2), dtype)]
    checkpoints.save(tmp_path / "run.npz", tree, identity=A)
    found, _ = checkpoints.load(tmp_path / "run.npz", tree, identity=A)
    for one, two in zip(found, tree, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    checkpoints.save(path, TREE, identity=A, notes={"taken": 1})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(checkpoints.CheckpointError, match=r"No space left.*before it is intact"):
        checkpoints.save(path, TREE, identity=A, notes={"taken": 2})
    monkeypatch.undo()
    assert checkpoints.load(path, TREE, identity=A)[1] == {"taken": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_truly_full_device_is_reported(tmp_path, monkeypatch):
    """The error of the system call itself, not of a stand-in."""
    checkpoints.save(tmp_path / "run.npz", TREE, identity=A)
    partial = tmp_path / "partial"
    partial.symlink_to("/dev/full")

    def opened(**_):
        return os.open("/dev/full", os.O_WRONLY), str(partial)

    monkeypatch.setattr(tempfile, "mkstemp", opened)
    with pytest.raises(checkpoints.CheckpointError, match="No space left"):
        checkpoints.save(tmp_path / "run.npz", TREE, identity=A)
    assert checkpoints.load(tmp_path / "run.npz", TREE, identity=A) is not None


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = r"cannot write .*file/run\.npz.*there is none before it"
    with pytest.raises(checkpoints.CheckpointError, match=message):
        checkpoints.save(tmp_path / "file" / "run.npz", TREE, identity=A)


# Killed at any moment, a grid of runs ends as if nothing had happened.


class Killed(BaseException):
    """The process is gone: from here on nothing that it does reaches the disk, cleaning neither."""


MOMENTS = (
    "before there is a partial file",
    "when it is empty",
    "when it is half written",
    "before it is flushed",
    "before it takes the name",
    "after it took the name",
)


class Disk:
    """What is written below a folder, until the process is killed at one of the MOMENTS.

    The moment is that of the file with the given number, in the order of writing.
    """

    def __init__(self, monkeypatch, folder, moment=None, number=0):
        self.folder, self.moment, self.number = str(folder), moment, number
        self.files, self.dead, self.partial = -1, False, None
        self.original = {}
        wrapped = [
            (tempfile, "mkstemp"),
            (os, "fsync"),
            (os, "replace"),
            (os, "unlink"),
            (os, "chmod"),
            (os, "mkdir"),
        ]
        for owner, name in wrapped:
            self.original[name] = getattr(owner, name)
            monkeypatch.setattr(owner, name, getattr(self, name, partial(self.other, name)))

    def reach(self, moment):
        if self.dead or (moment, self.files) == (self.moment, self.number):
            self.dead = True
            raise Killed

    def other(self, name, path, *args, **kwargs):
        if self.dead and str(path).startswith(self.folder):
            raise Killed
        return self.original[name](path, *args, **kwargs)

    def mkstemp(self, *args, dir=None, **kwargs):
        if not str(dir).startswith(self.folder):
            return self.original["mkstemp"](*args, dir=dir, **kwargs)
        self.files += 1
        self.reach(MOMENTS[0])
        handle, self.partial = self.original["mkstemp"](*args, dir=dir, **kwargs)
        if (MOMENTS[1], self.files) == (self.moment, self.number):
            os.close(handle)
        self.reach(MOMENTS[1])
        return handle, self.partial

    def fsync(self, handle):
        if self.partial is not None:
            if (MOMENTS[2], self.files) == (self.moment, self.number):
                os.truncate(self.partial, os.path.getsize(self.partial) // 2)
            self.reach(MOMENTS[2])
            self.reach(MOMENTS[3])
        self.original["fsync"](handle)

    def replace(self, source, target, **kwargs):
        ours = source is not None and str(source) == self.partial
        if ours:
            self.reach(MOMENTS[4])
        self.original["replace"](source, target, **kwargs)
        if ours:
            self.partial = None
            self.reach(MOMENTS[5])


@pytest.fixture(scope="module")
def small_grid():
    """folder -> the records of a small grid of runs that are kept there."""
    x = jax.random.normal(jax.random.key(1), (24, 2))
    y = (jnp.prod(x, 1) > 0).astype(jnp.int32)
    model = mlp((2, 8, 2))
    loss = losses.mean(losses.cross_entropy)
    problem = roads.problem(
        model.apply,
        model.init,
        (x, y),
        loss=loss,
        evaluate={"train": (x, y)},
        metrics={"loss": loss},
        batch_size=6,
        reset_optimizer=True,
        augment=lambda key, x: x + 0.1 * jax.random.normal(key, x.shape),
        observe=lambda state: {"weight": state.params[0]["weight"]},
    )

    def run(folder):
        def make(period, seed):
            return runs.Run(seed, period, 0.01, (0, 20, 40), optimizer="adam")

        found = runs.grid(problem, {"period": [7], "seed": [0, 1]}, make, folder=folder)
        found.attrs.clear()  # the seconds that it took
        return found

    return run


@pytest.fixture(scope="module")
def left_alone(small_grid, tmp_path_factory):
    """The record of a grid that nothing disturbs, and how many checkpoints it writes."""
    with pytest.MonkeyPatch.context() as patched:
        often(patched)
        folder = tmp_path_factory.mktemp("alone")
        disk = Disk(patched, folder)
        found = small_grid(folder)
    assert found.updates.values.max() > 2
    texts = dict.fromkeys(("experiment", "tier", "device", "data", "date", "commit"), "any")
    numbers = {"wall_time": 1.0, "missing": 0}
    whole = {"format": records.FORMAT, "parameters": "{}", **texts, **numbers}
    return found.assign_attrs(whole), disk.files + 1


def often(monkeypatch):
    """A checkpoint after every eight steps and at every evaluation."""
    monkeypatch.setattr(chunks, "FIRST_CHUNK", 8)
    monkeypatch.setattr(chunks, "CHUNK", 0.0)
    monkeypatch.setitem(bare(chunks.run_in_chunks).__kwdefaults__, "checkpoint_seconds", 0.0)


class Going(NamedTuple):
    ended: jax.Array


class Clock:
    """A stand-in for `time` whose seconds pass where a test says so."""

    def __init__(self):
        self.now = 1e6

    def monotonic(self):
        return self.now


def counts_of(clock, seconds, steps, ended=(False,), **settings):
    """How many steps are taken at a time where so many seconds pass at each; and the outcome."""
    counts = []

    def advance(state, count):
        counts.append(int(count))
        clock.now += seconds
        return state

    start, eval_steps = Going(jnp.asarray(ended)), np.atleast_1d(steps)
    nothing = {"progress": False, **settings}
    outcome = chunks.run_in_chunks(
        start, advance, lambda state: {"ended": state.ended}, eval_steps, **nothing
    )
    return counts, outcome


def test_as_many_steps_go_together_as_take_a_chunk_s_time(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(chunks, "time", clock)
    monkeypatch.setattr(chunks, "FIRST_CHUNK", 8)
    assert counts_of(clock, 0.4 * chunks.CHUNK, 56)[0] == [8, 16, 32]
    for share in (0.6, 1.0, 1.9):
        assert counts_of(clock, share * chunks.CHUNK, 24)[0] == [8, 8, 8]
    # What an evaluation cuts short says nothing of how many would do.
    found = counts_of(clock, 0.4 * chunks.CHUNK, [1, 2, 3, 4, 28])[0]
    assert found == [1, 1, 1, 1, 8, 16]
    assert counts_of(clock, 2.1 * chunks.CHUNK, 16)[0] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.0, [2, 4, 6, 8, 10, 12, 12]), (6.0, [4, 8, 12, 12]), (np.inf, [12])]
)
def test_checkpoints_are_written_when_their_time_has_come(tmp_path, monkeypatch, seconds, steps):
    """Between and at evaluations, and always at the end; here three seconds pass at two steps."""
    clock, written = Clock(), []
    monkeypatch.setattr(chunks, "time", clock)
    monkeypatch.setattr(chunks, "FIRST_CHUNK", 2)
    monkeypatch.setattr(chunks, "CHUNK", 3.0)
    monkeypatch.setattr(checkpoints, "save", lambda *_, notes, **__: written.append(notes["taken"]))
    settings = {"checkpoint": tmp_path / "run", "checkpoint_seconds": seconds}
    counts_of(clock, 3.0, [2, 8, 12], **settings)
    assert written == steps


def test_once_every_run_has_ended_only_evaluations_are_left(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(checkpoints, "save", lambda *_, notes, **__: written.append(notes["taken"]))
    settings = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    counts, outcome = counts_of(Clock(), 1.0, [4, 8, 9], ended=(True, True), **settings)
    assert counts == []
    assert outcome.history["ended"].tolist() == [[True] * 3] * 2
    assert written == [4, 8, 9, 9]
    assert sum(counts_of(Clock(), 1.0, [4, 8, 9], ended=(True, False))[0]) == 9


def test_a_run_that_goes_on_counts_the_seconds_of_both_its_parts(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(chunks, "time", clock)
    monkeypatch.setattr(chunks, "FIRST_CHUNK", 8)
    looks = iter([False, False, True])
    settings = {"seconds": chunks.CHUNK, "steps": 40, "checkpoint": tmp_path / "run"}
    settings["out_of_time"] = lambda: next(looks, False)
    with pytest.raises(chunks.OutOfTime, match="stopped at step 16"):
        counts_of(clock, **settings)
    counts, outcome = counts_of(clock, **settings)
    assert counts == [8, 8, 8]
    assert outcome.seconds == 5 * chunks.CHUNK
    # Nothing is left to do, or to write.
    monkeypatch.setattr(checkpoints, "save", lambda *_, **__: pytest.fail("written again"))
    assert counts_of(clock, **settings)[0] == []


class Diverging(NamedTuple):
    ended: jax.Array
    diverged_at: jax.Array


@pytest.mark.parametrize(
    ("terminal", "progress", "shown"),
    [
        (True, None, "bar"),
        (True, False, ""),
        (False, None, ""),
        (False, True, "bar"),
        (True, "lines", "lines"),
        (False, "lines", "lines"),
    ],
)
def test_progress_is_a_bar_or_lines_but_never_both(monkeypatch, capsys, terminal, progress, shown):
    monkeypatch.setattr(chunks, "LINE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    chunks.run_in_chunks(
        Diverging(jnp.zeros(3, bool), jnp.array([3, -1, 0])),
        lambda state, count: state,
        lambda state: {"loss": jnp.zeros(())},
        np.array([3, 8, 10]),
        label="runs",
        progress=progress,
    )
    told = capsys.readouterr().err
    assert ("10/10" in told) == (shown == "bar")
    assert ("runs: step 10 of 10, " in told) == (shown == "lines")
    assert ("2 diverged" in told) == bool(shown)


@pytest.mark.parametrize(("line", "steps"), [(6.0, [5, 6, 7, 8]), (12.0, [6, 8])])
def test_a_line_comes_when_its_time_has_come_and_tells_the_pace(monkeypatch, capsys, line, steps):
    """From where the run goes on, at step 4, a step takes six seconds."""
    clock = Clock()
    monkeypatch.setattr(chunks, "time", clock)
    monkeypatch.setattr(chunks, "FIRST_CHUNK", 1)
    monkeypatch.setattr(chunks, "CHUNK", 6.0)
    monkeypatch.setattr(chunks, "LINE", line)

    def advance(state, count):
        clock.now += 6.0
        return state

    start = Diverging(jnp.zeros(1, bool), jnp.array([-1]))
    observe = lambda state: {"loss": jnp.zeros(())}  # noqa: E731
    settings = {"first": 4, "label": "run", "progress": "lines"}
    chunks.run_in_chunks(start, advance, observe, np.array([8]), **settings)
    told = [f"run: step {step} of 8, 6e+03 ms a step, 0 diverged" for step in steps]
    assert capsys.readouterr().err.splitlines() == told


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_grid_killed_while_it_writes_goes_on_to_the_same_bits(
    small_grid, left_alone, tmp_path, monkeypatch, moment
):
    """At the first checkpoint, at the third of what is left, at the fifth, and again to the end."""
    alone, writes = left_alone
    assert writes >= 8
    often(monkeypatch)
    kills = 0
    while True:
        with monkeypatch.context() as patched:
            disk = Disk(patched, tmp_path, moment, number=2 * (kills % 3))
            try:
                found = small_grid(tmp_path)
            except Killed:
                kills += 1
                # Without progress at all it would never end.
                assert kills < 3 * writes
                continue
        break
    assert disk.files < disk.number
    assert kills >= 3
    for name in alone.variables:
        np.testing.assert_array_equal(found[name].values, alone[name].values, err_msg=name)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_record_is_the_old_one_or_the_new_one_wherever_writing_ends(
    left_alone, tmp_path, monkeypatch, moment
):
    new, _ = left_alone
    path = tmp_path / "laptop.nc"
    old = new.assign(loss=new.step * 0.0)
    records.write(old, path)
    with monkeypatch.context() as patched:
        Disk(patched, tmp_path, moment)
        with pytest.raises(Killed):
            records.write(new, path)
    with xr.open_dataset(path) as found:
        xr.testing.assert_equal(found.load(), new if moment == MOMENTS[5] else old)
    # What the killed process left is no obstacle to the next.
    records.write(new, path)
    with xr.open_dataset(path) as found:
        xr.testing.assert_equal(found.load(), new)


def test_the_first_record_is_there_whole_or_not_at_all(left_alone, tmp_path, monkeypatch):
    for moment in MOMENTS[:-1]:
        path = tmp_path / moment / "laptop.nc"
        with monkeypatch.context() as patched:
            Disk(patched, tmp_path, moment)
            with pytest.raises(Killed):
                records.write(left_alone[0], path)
        assert not path.exists()


# The signal itself, which no finally clause survives.

GRID = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from iterlin import losses, schedules
from iterlin.algorithm import Algorithm
from iterlin.networks.mlp import mlp
from iterlin.runtime import chunks
from iterlin.study import runs
from iterlin.study.groups import Problem
from iterlin.watching import Watch

chunks.FIRST_CHUNK, chunks.CHUNK = 4, 0.0
chunks.run_in_chunks.__kwdefaults__["checkpoint_seconds"] = 0.0
folder, target = map(Path, sys.argv[1:])
x = jax.random.normal(jax.random.key(1), (24, 2))
y = (jnp.prod(x, 1) > 0).astype(jnp.int32)
model = mlp((2, 8, 2))
loss = losses.mean(losses.cross_entropy)
algorithm = Algorithm(
    model.apply, loss, batch_size=6, reset_optimizer=True, solved=schedules.Solved(10),
    augment=lambda key, x: x + 0.1 * jax.random.normal(key, x.shape),
)
problem = Problem(
    algorithm, model.init, (x, y), Watch({"train": (x, y)}, {"loss": loss}),
    observe=lambda state: {"weight": state.params[0]["weight"]},
)
steps = tuple(range(0, 161, 20))

def make(period, seed):
    return runs.Run(seed, period, 0.01, steps, optimizer="adam", until_solved=period == 50)

print("ready", flush=True)
found = runs.grid(problem, {"period": [1, 7, 50], "seed": [0, 1]}, make, folder=folder)
found.attrs.clear()
found.to_netcdf(target, engine="h5netcdf")
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


def test_a_grid_killed_by_the_signal_gives_the_record_of_one_left_alone(tmp_path):
    def finished(process, name):
        assert process.wait(300) == 0, (tmp_path / "errors").read_text()
        with xr.open_dataset(tmp_path / f"{name}.nc") as record:
            return record.load()

    with launched(tmp_path, "alone") as process:
        alone = finished(process, "alone")
    assert alone.updates.values.max() > 0

    rng = np.random.default_rng(0)
    folder = tmp_path / "killed"
    for groups in (1, 2, 3):
        with launched(tmp_path, "killed") as process:
            # Each time in the midst of another group's training, in which it writes all the time.
            while len(list(folder.glob("*/*.npz")) + list(folder.glob("*.npz"))) < groups:
                assert process.poll() is None, (tmp_path / "errors").read_text()
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.2))
            assert process.poll() is None, "it was over before it was killed"
            process.send_signal(signal.SIGKILL)
    with launched(tmp_path, "killed") as process:
        record = finished(process, "killed")
    assert set(record.variables) == set(alone.variables)
    for name in alone.variables:
        np.testing.assert_array_equal(record[name].values, alone[name].values, err_msg=name)
