"""Errors of loading a folder and serving requests."""


class LoadFailed(Exception):
    """The folder, its graph or the requested provider was refused; the message gives the reason and a remedy."""


class UnsupportedParameter(Exception):
    """A request needs a feature that this runner does not have; `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
