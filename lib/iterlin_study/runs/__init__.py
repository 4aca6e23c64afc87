"""Grids of training runs, and the quantities that are computed from them."""
