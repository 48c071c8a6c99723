"""What a step computes: requests, their order, sampling, constraints and text."""
