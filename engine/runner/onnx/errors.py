"""What can go wrong between a folder and a runner that serves it."""


class LoadFailed(Exception):
    """The folder, its graph or the wished provider was refused; the message says why and what to do."""


class UnsupportedParameter(Exception):
    """A request asks for something this runner does not do; `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
