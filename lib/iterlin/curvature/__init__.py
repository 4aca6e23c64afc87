"""Gauss-Newton methods: solvers, products with J^T H J, and the Laplace approximation."""
