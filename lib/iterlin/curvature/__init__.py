"""The curvature of any loss: products with it, Gauss-Newton by it, what it says of errors."""
