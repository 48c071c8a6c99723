"""What every runner does around its model: requests, their queue, drafts, sampling, constraints and text."""
