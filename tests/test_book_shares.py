"""`make results SHARES=3` on one machine: the same record, from runs that three processes made."""

import re

import pytest
import shared_page
import toy_book
import xarray as xr
from iterlin_book import build, share

RESULTS = ["results", "--tier", "gpu"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    root = shared_page.create(tmp_path_factory.mktemp("alone") / "book", num_steps=20)
    done = toy_book.run(root, "build", *RESULTS)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def test_shares_make_the_record_of_one_process(tmp_path, alone):
    root = shared_page.create(tmp_path / "book", num_steps=20)
    first = toy_book.run(root, "share", "grid", "1/3", "--tier", "gpu")
    assert first.returncode == 0, first.stderr
    assert "grid (gpu 1-of-3): all runs of share 1/3 are kept\n" in first.stdout
    runs = shared_page.kept(root)
    assert set(runs) < set(shared_page.kept(alone))
    assert not (root / "data").exists()

    # The build goes on from there; the page itself has nothing left to train.
    done = toy_book.run(root, "build", *RESULTS, "--shares", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert toy_book.started(done.stdout) == ["grid"]
    shares = re.findall(r"^grid \(gpu (\d)-of-3\): started$", done.stdout, re.M)
    assert sorted(shares) == ["2", "3"]
    assert re.search(r"^grid +done +\d", done.stdout, re.M)
    assert shared_page.kept(root) == shared_page.kept(alone)
    xr.testing.assert_identical(shared_page.record(root), shared_page.record(alone))

    done = toy_book.run(root, "build", *RESULTS, "--shares", "3")
    assert (done.returncode, toy_book.started(done.stdout)) == (0, [])
    assert re.search(r"^grid +done earlier$", done.stdout, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grid", "4/3", "--tier", "gpu"], "a share is written i/n .*, not '4/3'"),
        (["grid", "1/3"], r"grid \(quick\): keeps no runs that could be shared out"),
        (["nowhere", "1/3"], "unknown page 'nowhere'"),
    ],
)
def test_what_is_no_share_is_refused(tmp_path, capsys, arguments, message):
    root = shared_page.create(tmp_path / "book", num_steps=20)
    assert share.main([*arguments, "--root", str(root)]) == 2
    assert re.match(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shares", "0"], "shares must be 1 or more, not 0"),
        (["--profile", "far"], "the profile 'far' needs snakemake-executor-plugin-far-away: "),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, capsys, arguments, message):
    root = shared_page.create(tmp_path / "book", num_steps=20)
    (root / "profiles" / "far").mkdir(parents=True)
    (root / "profiles" / "far" / "config.yaml").write_text("executor: far-away\n")
    assert build.main([*RESULTS, "--root", str(root), *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (root / "_build").exists()
