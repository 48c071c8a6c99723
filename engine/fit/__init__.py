"""Bytes a load needs, before it happens: pure arithmetic over a header, plus a dry run where one is possible."""
