"""Errors of data. Nothing here imports torch, since loader processes do not."""


class DataError(RuntimeError):
    """The data is not there or not usable. The message is for the user."""


class LoaderError(RuntimeError):
    """A loader process cannot be started, or has died. The message is for the user."""
