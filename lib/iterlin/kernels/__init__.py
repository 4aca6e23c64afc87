"""The neural tangent kernel: computed layer by layer, of infinite width, and for prediction."""
