"""The page that measures this computer."""
