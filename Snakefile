# Runs the pages that iterlin_book.build names: shares of a page's runs -> the page's record, and
# the executed notebook of the page.
#
# The name of every file made here has the digest of all that it depends on
# (iterlin_book.freshness), so that a file that exists is up to date. Configuration: tier; pages,
# {page: digest} in their order of priority; shares, into which the runs of a page are cut.

import sys
from pathlib import Path

from iterlin_book import execute, pages, parameters

ROOT = Path.cwd()
PYTHON = sys.executable
TIER = config.get("tier", pages.QUICK)
PAGES = config.get("pages", {})
SHARES = int(config.get("shares", 1))
NAMES = list(PAGES)
OUTPUTS = {
    page: pages.executed(ROOT, page, TIER, digest).relative_to(ROOT)
    for page, digest in PAGES.items()
}
# `exec`: the job is Snakemake's own child, and ends with it.
RUN = "exec {PYTHON:q} -m iterlin_book.execute {wildcards.page:q} --tier {wildcards.tier} "
RUN += "--digest {wildcards.digest} --parent"


wildcard_constraints:
    digest="[0-9a-f]{12}",
    tier="|".join(pages.TIERS),
    number="[0-9]+",
    shares="[0-9]+",


def needed(wildcards):
    """What the run of a page waits for if runs are shared out: its shares, or, if its runs are
    those of another page, that page."""
    page = wildcards.page
    if SHARES == 1 or not execute.keeps_runs(ROOT, page, TIER):
        return []
    other = parameters.like(ROOT, page, TIER)
    if other in PAGES:
        return OUTPUTS[other]
    shares = (f"{number}/{SHARES}" for number in range(1, SHARES + 1))
    stamps = (execute.stamp_of(ROOT, page, TIER, wildcards.digest, share) for share in shares)
    return [stamp.relative_to(ROOT) for stamp in stamps]


def rank(wildcards):
    """Snakemake's priority: pages run in the order in which they are named."""
    return len(NAMES) - NAMES.index(wildcards.page)


rule all:
    input:
        list(OUTPUTS.values()),


rule share:
    output:
        "_build/shares/{tier}/{page}.{digest}.{number}-of-{shares}",
    priority: rank
    shell:
        RUN + " --share {wildcards.number}/{wildcards.shares}"


rule page:
    input:
        needed,
    output:
        "_build/executed/{tier}/{page}.{digest}.ipynb",
    priority: rank
    shell:
        RUN
