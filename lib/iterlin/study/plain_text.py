"""Text of others that a page shows: a record's or a parameter file's.

It is data. What belongs in a record needs no markup and is refused if it could hold any
(`is_plain`); whatever is shown as Markdown is escaped, so that it reads as it was written.
"""

import re

# What begins code, HTML, a role or a directive of MyST. Not [: a note on data may list sizes.
_MARKUP = frozenset("`<{")
# What Markdown would take for its own; an underscore only where it is not within a word.
_ESCAPED = re.compile(r"[\\`*$<{\[|&~]|(?<!\w)_|_(?!\w)")


def is_plain(text: str) -> bool:
    """Whether it is one line without control characters, code, HTML, roles and directives."""
    return text.isprintable() and not _MARKUP & set(text)


def escaped(text: object) -> str:
    """Text so that Markdown, also within a table, shows it as it is."""
    return _ESCAPED.sub(r"\\\g<0>", " ".join(str(text).split()))
