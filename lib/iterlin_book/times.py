"""What each page of this build took, as the status page tells it.

No cell can know: pages run side by side. So the executed notebooks carry their times, and the
table is filled in where these are put into the pages (`iterlin_book.merge`).
"""

PLACE = "<!-- the time of each page -->"


def fill(text, about):
    """Text with the table in its place. `about`: metadata of executed notebooks by page."""
    return text.replace(PLACE, table(about)) if PLACE in text else text


def table(about):
    """A Markdown table, the pages in the order given; their sum comes first."""
    took = {page: found["iterlin_book"]["seconds"] for page, found in about.items()}
    days = {page: found["papermill"]["end_time"][:10] for page, found in about.items()}  # of UTC
    lines = ["| page | seconds | ran on |", "| --- | ---: | --- |"]
    lines.append(f"| all {len(took)} pages, one after the other | {sum(took.values()):,.0f} | |")
    lines += [f"| {{doc}}`{page} </{page}>` | {took[page]:,.1f} | {days[page]} |" for page in took]
    return "\n".join(lines)
