"""Long conversations: the older part is summarized, never cut, and every summary opens to its originals."""
