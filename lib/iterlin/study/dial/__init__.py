"""The book's dial: recorded runs of several experiments along one scale of the period."""
