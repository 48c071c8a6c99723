"""Installed versions of llama-cpp-python in addition to the shipped one."""
