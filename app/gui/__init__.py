"""The desktop window. The only package that imports Qt."""
