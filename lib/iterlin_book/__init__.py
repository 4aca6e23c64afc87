"""The book's machinery: which pages exist, what each depends on, running, merging, checking them.

None of it is numerics; the library that the pages call is ``iterlin``.
"""

import gc
import sys

# Its processes are short: to look for garbage a hundred times less often saves a tenth of them.
SELDOM = (50_000, 20, 20)
gc.set_threshold(*SELDOM)


def _except_interrupts(kind, error, traceback):
    """The traceback of a Ctrl-C would hide the line that says how to go on."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _except_interrupts
