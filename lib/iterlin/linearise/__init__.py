"""First-order expansion of a network, Jacobian products, and helpers of the other packages."""
