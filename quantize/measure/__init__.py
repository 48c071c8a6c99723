"""What types cost a model: moments of its inputs, rounding errors, sensitivities, divergence."""
