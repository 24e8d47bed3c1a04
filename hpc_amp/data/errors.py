"""Errors of data. Apart from other modules because loader processes must not import torch."""


class DataError(RuntimeError):
    """The data is missing or cannot be used. The message is for the user."""


class LoaderError(RuntimeError):
    """A loader process cannot be started, or has ended. The message is for the user."""
