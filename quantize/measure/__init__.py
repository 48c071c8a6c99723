"""Measures the cost of types for a model: Hessians, rounding errors, sensitivities and KL divergence."""
