"""The Windows installer: an NSIS script for the program's folder. It compiles, but was not run on Windows yet."""
