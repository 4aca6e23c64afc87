"""What is left of a program that JAX was writing is dropped, and no page shows its warning."""

import os
import re
import subprocess
import sys
import zlib

import pytest
import toy_book
from iterlin_book import compiled

TRACED = (
    toy_book.HEADER
    + """
# A page that compiles

```{code-cell} ipython3
import jax

print(float(jax.jit(lambda x: x * 3 + 1)(2.0)))
```
"""
)


@pytest.fixture
def book(tmp_path, monkeypatch):
    for name in ("JAX_COMPILATION_CACHE_DIR", "PYTHONWARNINGS"):
        monkeypatch.delenv(name, raising=False)
    root = toy_book.create(tmp_path / "book")
    (root / "book" / "other.md").write_text(TRACED)
    return root


def entries(root):
    return {path: path.read_bytes() for path in compiled.folder(root).glob("*-cache")}


def test_no_page_shows_the_warning_of_a_damaged_program_and_the_next_build_makes_it_anew(book):
    assert toy_book.run(book, "execute", "other").returncode == 0
    whole = entries(book)
    assert whole
    for path, data in whole.items():
        path.write_bytes(data[:-20])
    done = toy_book.run(book, "execute", "other")
    assert done.returncode == 0, done.stderr
    (executed,) = toy_book.executed(book, "other")
    assert "7.0" in executed.read_text()
    assert "Warning" not in executed.read_text() + done.stderr
    compiled.drop_damaged(book)
    assert entries(book) == {}
    assert toy_book.run(book, "execute", "other").returncode == 0
    assert entries(book).keys() == whole.keys()


@pytest.mark.parametrize("data", [b"", b"garbage", zlib.compress(b"a program" * 99)[:-1]])
def test_entries_that_cannot_be_read_are_dropped_and_others_kept(tmp_path, capsys, data):
    folder = compiled.folder(tmp_path)
    compiled.drop_damaged(tmp_path)
    assert not folder.exists()
    folder.mkdir(parents=True)
    good, bad = folder / "jit_f-1-cache", folder / "jit_g-2-cache"
    good.write_bytes(zlib.compress(b"a program"))
    for _ in range(2):  # the second time, only what is new is looked at
        bad.write_bytes(data)
        compiled.drop_damaged(tmp_path)
        assert not bad.exists()
        assert good.read_bytes() == zlib.compress(b"a program")
        assert "1 damaged entries dropped" in capsys.readouterr().err
    compiled.drop_damaged(tmp_path)
    assert capsys.readouterr().err == ""


def test_what_was_looked_at_is_not_read_again(tmp_path, monkeypatch):
    folder = compiled.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "jit_f-1-cache").write_bytes(zlib.compress(b"a program"))
    os.utime(folder / "jit_f-1-cache", (0, 0))
    compiled.drop_damaged(tmp_path)
    monkeypatch.setattr(compiled, "_is_whole", lambda path: pytest.fail("read again"))
    compiled.drop_damaged(tmp_path)


def test_filters_of_the_caller_are_kept(tmp_path):
    code = (
        "import os, warnings; from iterlin_book import compiled; "
        f"compiled.keep({str(tmp_path)!r}); compiled.keep({str(tmp_path)!r}); "
        "print(os.environ['PYTHONWARNINGS'])"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"error,{compiled.QUIET}"


SHOWS = """import gc, os
print(*sorted(os.environ["XLA_FLAGS"].split()), gc.get_threshold()[0], sep="\\n")"""


def test_pages_of_the_quick_tier_alone_compile_quickly_and_look_for_garbage_seldom(
    book, monkeypatch
):
    """Only they: the programs are slower, records keep the bits that they have, and long runs have
    large arrays to let go of."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=2")
    page = book / "book" / "other.md"
    page.write_text(toy_book.HEADER + f"\n# Flags\n\n```{{code-cell}} python\n{SHOWS}\n```\n")
    (book / "book" / "other.gpu.yml").write_text("{}\n")

    def shown(*tier):
        assert toy_book.run(book, "execute", "other", *tier).returncode == 0
        (path,) = (book / "_build").glob("executed-gpu/other.*" if tier else "executed/other.*")
        text = path.read_text()
        return set(re.findall(r"--xla[a-z_]*=\w+", text)), '"10000\\n"' in text

    scheduler = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    asked = "--xla_cpu_parallel_codegen_split_count=2"  # what is set stays as it is
    assert shown() == ({scheduler, asked, "--xla_cpu_use_fusion_emitters=false"}, True)
    assert shown("--tier", "gpu") == ({scheduler, asked}, False)


def test_a_version_that_may_not_know_the_flags_is_left_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(compiled.metadata, "version", lambda name: "0.11.0")
    compiled.quickly()
    assert os.environ["XLA_FLAGS"] == ""
    monkeypatch.setattr(compiled.metadata, "version", lambda name: "0.10.2")
    compiled.quickly()
    compiled.quickly()
    assert len(os.environ["XLA_FLAGS"].split()) == 2
