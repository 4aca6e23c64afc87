# The one runner: shares of a page's runs -> the page's record; and, at the quick tier,
# page -> executed notebook -> page with outputs -> HTML.
#
# `make book` and `make results` run it through iterlin_book.build, which also keeps two builds from
# meeting. Freshness is by content: every file or stamp made here has in its name the digest of all
# that it depends on (iterlin_book.freshness), so an existing file is a fresh one.
#
# Configuration: tier, pages (those to run, in their order of priority), shares, into which the runs
# of a page are cut, and the digests of pages, where they have been computed.

import sys
from hashlib import sha256
from pathlib import Path

from iterlin_book import execute as run, pages, parameters, share

ROOT = Path.cwd()
PYTHON = sys.executable
TIER = config.get("tier", pages.QUICK)
NAMES = [name for name in pages.toc(ROOT) if pages.read(ROOT, name) is not None]
ALL = len(NAMES)
NAMES = config.get("pages", NAMES)
# Of a book of which only some pages run anew, those.
CHOSEN = NAMES if len(NAMES) < ALL else []
SHARES = int(config.get("shares", 1))
DIGESTS = config.get("digests") or {page: run.prepare(ROOT, page, TIER)[2] for page in NAMES}
OUTPUTS = {
    page: pages.executed(ROOT, page, TIER, DIGESTS[page]).relative_to(ROOT) for page in NAMES
}


wildcard_constraints:
    digest="[0-9a-f]{12}",
    tier="laptop|gpu|paper",
    number="[0-9]+",
    shares="[0-9]+",


def book_digest():
    """Of all that the book is made of: outputs, pages, settings, the library that the API quotes."""
    hashed = sha256()
    for path in OUTPUTS.values():
        hashed.update(str(path).encode())
    files = [path for folder in ("book", "lib") for path in Path(folder).rglob("*")]
    machinery = [path for path in Path(run.__file__).parent.glob("*.py")]
    for path in sorted({*files, *machinery, *map(Path, ("_toc.yml", "_config.yml"))}):
        if path.is_file() and path.suffix != ".pyc":
            hashed.update(f"{path}\n".encode() + path.read_bytes())
    return hashed.hexdigest()[:12]


def first(page):
    """The page whose runs a page looks at, where that is to be run as well: it makes them."""
    other = parameters.like(ROOT, page, TIER)
    return other if other in NAMES else None


def needed(wildcards):
    """What the run of a page waits for, where runs are shared out: its own, or those it looks at."""
    page, digest = wildcards.page, wildcards.digest
    if SHARES == 1 or not share.keeps_runs(ROOT, page, TIER):
        return []
    if other := first(page):
        return OUTPUTS[other]
    shares = [(number, SHARES) for number in range(1, SHARES + 1)]
    stamps = (share.stamp_of(ROOT, page, TIER, digest, each) for each in shares)
    return [stamp.relative_to(ROOT) for stamp in stamps]


def rank(wildcards):
    """Snakemake's priority: the pages come in the order in which they are named."""
    return len(NAMES) - NAMES.index(wildcards.page)


rule book:
    input:
        f"_build/html/.built-{book_digest()}" if TIER == pages.QUICK else [],


rule results:
    input:
        list(OUTPUTS.values()),


# `exec`: the job is Snakemake's own child, and ends with it.
rule share:
    output:
        "_build/shares/{tier}/{page}.{digest}.{number}-of-{shares}",
    priority: rank
    params:
        digest=lambda wildcards: wildcards.digest,
    shell:
        "exec {PYTHON:q} -m iterlin_book.share {wildcards.page:q}"
        " {wildcards.number}/{wildcards.shares} --tier {wildcards.tier}"
        " --digest {params.digest} --parent"


rule record:
    input:
        needed,
    output:
        "_build/executed-{tier}/{page}.{digest}.ipynb",
    priority: rank
    params:
        digest=lambda wildcards: wildcards.digest,
    shell:
        "exec {PYTHON:q} -m iterlin_book.execute {wildcards.page:q} --tier {wildcards.tier}"
        " --digest {params.digest} --parent"


rule execute:
    output:
        "_build/executed/{page}.{digest}.ipynb",
    priority: rank
    params:
        digest=lambda wildcards: wildcards.digest,
    shell:
        "exec {PYTHON:q} -m iterlin_book.execute {wildcards.page:q}"
        " --digest {params.digest} --parent"


rule html:
    input:
        list(OUTPUTS.values()),
    output:
        "_build/html/.built-{digest}",
    shell:
        "exec {PYTHON:q} -m iterlin_book.render --stamp {output}"
        + "".join(f" --page {page}" for page in CHOSEN)
