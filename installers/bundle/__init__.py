"""The program as one folder that needs no Python: built by PyInstaller, wrapped by the packages of each system."""
