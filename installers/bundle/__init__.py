"""The program as one folder that needs no Python: made by PyInstaller, wrapped by the packages of each system."""
