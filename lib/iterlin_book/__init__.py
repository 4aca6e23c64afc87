"""The book's machinery: which pages exist, what each depends on, running, merging, checking them.

It computes nothing; the library that the pages call is ``iterlin``. Start at ``build.py``.
"""
