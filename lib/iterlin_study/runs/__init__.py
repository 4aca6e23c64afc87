"""Grids of training runs, and what is measured on them."""
