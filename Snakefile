# The book's pipeline: page -> executed notebook -> page with outputs -> HTML.
#
# `make book` runs it through iterlin_book.build, which also keeps two builds from meeting; other
# tiers than quick are run by iterlin_book.results. Freshness is by content: every file or stamp
# made here has in its name the digest of all that it depends on (iterlin_book.freshness), so an
# existing file is a fresh one.

import sys
from hashlib import sha256
from pathlib import Path

from iterlin_book import execute as run, pages, render

ROOT = Path.cwd()
NAMES = [name for name in pages.toc(ROOT) if pages.read(ROOT, name) is not None]
PYTHON = sys.executable
OUTPUTS = {
    page: pages.executed(ROOT, page, pages.QUICK, run.prepare(ROOT, page, pages.QUICK)[2])
    for page in NAMES
}
OUTPUTS = {page: path.relative_to(ROOT) for page, path in OUTPUTS.items()}


def source_digest():
    """Everything the merged sources hold: outputs, prose, pictures, bibliography, first cells."""
    hashed = sha256()
    for module in ("merge.py", "first_cell.py", "repository.py", "times.py"):
        hashed.update(Path(run.__file__).with_name(module).read_bytes())
    for path in OUTPUTS.values():
        hashed.update(str(path).encode())
    for path in sorted(Path("book").rglob("*")):
        if path.is_file():
            hashed.update(f"{path}\n".encode() + path.read_bytes())
    for name in ("_toc.yml", "_config.yml"):
        hashed.update(Path(name).read_bytes())
    return hashed.hexdigest()[:12]


def html_digest():
    """The sources, the frame, and the library's text, which the API page quotes."""
    hashed = sha256((source_digest() + render.frame_digest(ROOT)).encode())
    for path in sorted(Path("lib/iterlin").rglob("*.py")):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:12]


rule book:
    input:
        f"_build/html/.built-{html_digest()}",


rule execute:
    output:
        "_build/executed/{page}.{digest}.ipynb",
    wildcard_constraints:
        digest="[0-9a-f]{12}",
    params:
        digest=lambda wildcards: wildcards.digest,
    shell:
        # `exec`: the job is Snakemake's own child, and ends with it.
        "exec {PYTHON:q} -m iterlin_book.execute {wildcards.page:q}"
        " --digest {params.digest} --parent"


rule merge:
    input:
        list(OUTPUTS.values()),
    output:
        "_build/source/.merged-{digest}",
    shell:
        "exec {PYTHON:q} -m iterlin_book.merge --stamp {output}"


rule html:
    input:
        f"_build/source/.merged-{source_digest()}",
    output:
        "_build/html/.built-{digest}",
    shell:
        "exec {PYTHON:q} -m iterlin_book.render --stamp {output}"
