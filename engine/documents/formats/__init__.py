"""Readers of file formats, one family a file. Imported only by the child that reads files."""
