"""The book's machinery: which pages exist, what each depends on, running, merging, checking them.

It computes nothing; the library that the pages call is ``iterlin``. Start at ``build.py``.
"""

import gc

# Its processes are short: to look for garbage a hundred times less often saves a tenth of them.
gc.set_threshold(50_000, 20, 20)
