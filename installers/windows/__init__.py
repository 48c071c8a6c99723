"""The Windows installer: an NSIS script around the program's folder. Compiled here, not run on Windows yet."""
