"""The models on this computer: what they are, where they came from, and how to get more."""
