"""This paper's experiments: their data, grids of runs, records, claims and figures."""
