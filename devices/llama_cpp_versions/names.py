"""Names of versions: the folder is the version's number, and contains the package."""

import re
from typing import Final

PACKAGE: Final = "llama_cpp"
# Name of the shipped version in TESSERA_ENGINE_VERSION and `models`.
SHIPPED: Final = "shipped"
VERSION_NAME: Final = re.compile(r"^[0-9][0-9A-Za-z.+]{0,63}\Z")
