"""A network's first-order expansion, products with its Jacobian, and what all else builds on."""
