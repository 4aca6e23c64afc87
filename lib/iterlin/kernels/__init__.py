"""Neural tangent kernels: empirical and of infinite width, and predictions from them."""
