"""File-format readers, one module per family. Imported only by the process that reads documents."""
