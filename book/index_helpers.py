"""What the book found: the sentences of a few rows of the ledger.

The landing page and the README tell the same sentences; a test compares them.
"""

from collections.abc import Iterator

from iterlin_study.report import claims

# By the row's id: how its sentence is headed, the book's own result first.
FINDINGS = {
    "place-late": "Early or not at all.",
    "long-further": "Too long, too far.",
    "C1": "Few updates.",
    "C3": "Fewer still.",
    "C1-augmented": "All images.",
    "C6-exact": "Full solves.",
    "C7-exact": "Damping.",
    "C7-worst": "Damping on a quintic.",
    "C5-XOR": "Features on XOR.",
    "C8": "One dial.",
    "stale-half": "Half a refresh is worse than none.",
    "lazy-total": "How far, not how fast.",
}


def told(link: str = "[{title}]({page}.md)") -> Iterator[str]:
    """The findings that there are records of, in Markdown, each with a link to its page.

    link: how a finding begins, with its page's path for "{page}". A row whose verdict is not the
    one that its sentence speaks of is left out.
    """
    rows = {row["id"]: row for row in claims.load_claims()}
    for name, title in FINDINGS.items():
        row = rows[name]
        if finding := claims.judge(row).finding:
            yield f"{link.format(title=title, page=row['page'])} {finding}"
