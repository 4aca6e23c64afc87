"""The book's machinery: which pages exist, what each depends on, running, merging, checking them.

None of it is numerics; the library that the pages call is ``iterlin``.
"""

import gc

# Its processes are short: to look for garbage a hundred times less often saves a tenth of them.
SELDOM = (50_000, 20, 20)
gc.set_threshold(*SELDOM)
