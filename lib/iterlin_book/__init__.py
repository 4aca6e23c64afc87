"""The book's machinery: which pages exist, what each depends on, running, merging, checking them.

None of it is numerics; the library that the pages call is ``iterlin``.
"""
