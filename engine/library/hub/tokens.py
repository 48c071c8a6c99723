"""Access tokens for gated repositories: from the environment, else from the system's keyring. Never logged."""

import logging
import os

_log = logging.getLogger(__name__)
_SERVICE = "tessera"
_ACCOUNT = "huggingface"


def hub_token() -> str | None:
    """The token to send, or None. HF_TOKEN wins over the keyring; an empty HF_TOKEN means: none."""
    if "HF_TOKEN" in os.environ:
        return os.environ["HF_TOKEN"].strip() or None
    import keyring  # noqa: PLC0415 takes 60 ms and is needed only here
    import keyring.errors  # noqa: PLC0415 the same

    try:
        return keyring.get_password(_SERVICE, _ACCOUNT)
    except (keyring.errors.KeyringError, OSError) as error:
        _log.info("no keyring: %s", type(error).__name__)
        return None
