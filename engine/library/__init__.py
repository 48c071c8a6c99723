"""The models on this computer, their origins, and how to get more."""
