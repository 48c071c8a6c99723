"""Document collections: their page, and the citations below a response."""
