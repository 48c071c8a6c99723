"""The page that quantizes a model to a size."""
