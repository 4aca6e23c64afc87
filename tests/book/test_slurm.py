"""`make results PROFILE=...` on a Slurm of one node, which the test starts and ends itself.

It needs Debian's slurm-wlm and munge, and snakemake-executor-plugin-slurm (`pip install -e
'.[cluster]'`).
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from importlib.util import find_spec

import pytest
import shared_page
import toy_book
import xarray as xr
import yaml

DAEMONS = ("munged", "slurmctld", "slurmd")
PLUGIN = "snakemake_executor_plugin_slurm"
lacking = [name for name in (*DAEMONS, "sbatch") if shutil.which(name) is None]
lacking += [PLUGIN.replace("_", "-")] if find_spec(PLUGIN) is None else []
unless_lacking = pytest.mark.skipif(bool(lacking), reason=f"not installed: {', '.join(lacking)}")
pytestmark = [pytest.mark.nightly, unless_lacking]

CONFIGURATION = """\
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""

# The second share stays here until it is cancelled, the third until its time is over; when they are
# submitted again they go on.
BETWEEN = """\
import os, time
from pathlib import Path

share = os.environ.get("ITERLIN_SHARE", "").partition("/")[0]
if share in ("2", "3") and not Path(f"met-{share}").exists():
    Path(f"met-{share}").write_text(os.environ["SLURM_JOB_ID"])
    time.sleep(600)"""


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def wait_for(what, seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.5)


@pytest.fixture
def slurm(tmp_path_factory):
    """The PATH with the commands of a cluster of this machine alone, and ask(*command)."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname()
    values = {"host": host, "user": getpass.getuser(), "ports": free_ports(2), "folder": folder}
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(**values))
    # Snakemake's jobs lose all variables of Slurm's: here its commands know where they belong.
    (folder / "bin").mkdir()
    for command in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"):
        path = folder / "bin" / command
        path.write_text(
            f'#!/bin/sh\nSLURM_CONF={configuration} exec {shutil.which(command)} "$@"\n'
        )
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
        ["slurmctld", "-D", "-i", "-f", configuration],
        ["slurmd", "-D", "-N", host, "-f", configuration],
    ]

    def ask(*command):
        command = [folder / "bin" / command[0], *command[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    started = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("w") as log:
                settings = {"env": environment, "stdout": log, "stderr": log}
                started.append(subprocess.Popen(command, **settings))
            if command[0] == "munged":
                wait_for("munged", 20, (folder / "munge.socket").exists)
        wait_for("the node", 60, lambda: ask("sinfo", "-h", "-o", "%t") == "idle")
        yield environment["PATH"], ask
    finally:
        ask("scancel", "--user", getpass.getuser())
        wait_for("the end of all jobs", 60, lambda: not ask("squeue", "-h"))
        for process in reversed(started):
            process.terminate()
            process.wait(30)


def profile(root):
    """The one that is shipped, for a small node without GPUs, and in a hurry."""
    shipped = toy_book.ROOT / "profiles" / "slurm" / "config.yaml"
    settings = yaml.safe_load(shipped.read_text())
    del settings["set-resources"]
    settings |= {
        "default-resources": {"runtime": 3, "mem_mb": 1, "cpus_per_task": 1},
        "latency-wait": 10,
        "slurm-init-seconds-before-status-checks": 5,
        "seconds-between-status-checks": 5,
    }
    (root / "profiles" / "toy").mkdir(parents=True)
    (root / "profiles" / "toy" / "config.yaml").write_text(yaml.safe_dump(settings))
    return "toy"


def test_jobs_that_are_cancelled_or_out_of_time_go_on_and_the_record_is_the_same(tmp_path, slurm):
    path, ask = slurm
    root = shared_page.create(tmp_path / "far" / "book", num_steps=200, between=BETWEEN)
    command = toy_book.command("build", "results", "--tier", "gpu", "--shares", "4")
    settings = {"cwd": root, "env": {**toy_book.environment(root), "PATH": path}} | toy_book.PIPES
    with subprocess.Popen([*command, "--profile", profile(root)], **settings) as process:
        try:
            wait_for("the second share", 300, lambda: written(root / "met-2"))
            runs = (root / "_build" / "runs").glob("*.npz")
            before = {path: path.stat().st_mtime_ns for path in runs}
            ask("scancel", (root / "met-2").read_text())
            output, _ = process.communicate(timeout=900)
        finally:
            process.kill()
    assert process.returncode == 0, output
    assert re.search(r"^grid +done +\d", output, re.M), output
    # What a job had trained before it ended has not been trained again.
    assert before
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert written(root / "met-3")

    here = shared_page.create(tmp_path / "here" / "book", num_steps=200, between=BETWEEN)
    done = toy_book.run(here, "build", "results", "--tier", "gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert shared_page.kept(root) == shared_page.kept(here)
    xr.testing.assert_identical(shared_page.record(root), shared_page.record(here))


def written(path):
    return path.is_file() and path.read_text()
