"""Errors of the embedded services."""

from pathlib import Path

from sla_pipeline.errors import PermanentError

__all__ = ["ServiceError", "UnusableState"]


class ServiceError(PermanentError):
    """A service that did not start, or ended by itself; the message holds the end of its log."""


class UnusableState(ServiceError):
    """Data in ``folder`` that its server cannot use; ``cause`` is one line and names the file or folder at fault."""

    def __init__(self, folder: Path, cause: str) -> None:
        super().__init__(f"{cause}; remove {folder} to start with an empty server")
        self.cause = cause
