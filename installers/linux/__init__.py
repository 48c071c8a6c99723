"""Linux packages, and the desktop integration files for them."""
