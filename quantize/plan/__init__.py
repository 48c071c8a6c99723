"""Which precision every tensor gets. Pure: no file, no native code."""
