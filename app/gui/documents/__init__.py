"""Collections of documents: the page that keeps them, and the passages below an answer."""
