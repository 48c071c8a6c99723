"""The page that connects editors and coding agents."""
