"""How versions are named: by their folder, which is the version's number, and the package inside."""

import re
from typing import Final

PACKAGE: Final = "llama_cpp"
# What TESSERA_ENGINEVERSION_NAME and `models` call the version that came with the program.
SHIPPED: Final = "shipped"
VERSION_NAME: Final = re.compile(r"^[0-9][0-9A-Za-z.+]{0,63}$")
