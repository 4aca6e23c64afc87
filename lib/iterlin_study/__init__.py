"""The experiments of the paper: data, networks, grids of runs, records, claims and figures."""
