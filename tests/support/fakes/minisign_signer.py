"""Creates minisign signatures for tests."""

import base64
import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


class Signer:
    """Signs data in minisign's format."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.id = b"12345678"
        raw = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = base64.b64encode(b"Ed" + self.id + raw).decode()

    def sign(self, data: bytes, comment: str = "timestamp:1") -> str:
        signature = self.key.sign(hashlib.blake2b(data).digest())
        seal = self.key.sign(signature + comment.encode())
        lines = ["untrusted comment: x", base64.b64encode(b"ED" + self.id + signature).decode()]
        return "\n".join([*lines, f"trusted comment: {comment}", base64.b64encode(seal).decode()])
