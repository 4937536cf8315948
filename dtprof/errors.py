"""The exception tree.

    DtprofError                 anything dtprof raises on purpose
    ├── InputError      exit 3  a file, folder or option is not what it should be
    │   ├── NotATrace           the path holds nothing dtprof can read
    │   └── DamagedRun          a run directory that cannot be opened at all
    ├── MissingExtra    exit 4  a needed package or program is not installed
    └── PluginError     exit 3  a plugin broke its contract

Every error carries a one-line ``hint`` (the remedy) and the ``exit_code`` with which the command ends.
Damage that leaves something readable is never an exception: it is a row of the ``quality`` table.
"""

from __future__ import annotations


class DtprofError(Exception):
    """Base of all deliberate errors: ``message`` says what is wrong and where, ``hint`` how to mend it."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class InputError(DtprofError):
    """A path, an option or a file's content is not usable."""


class NotATrace(InputError):  # noqa: N818
    """Nothing at this path is a trace or a run that dtprof knows."""


class DamagedRun(InputError):  # noqa: N818
    """A run directory whose description cannot be read and cannot be rebuilt."""


class MissingExtra(DtprofError):  # noqa: N818
    """A package or program is missing; ``hint`` is the exact command that installs it."""

    exit_code = 4


class PluginError(DtprofError):
    """A plugin does not keep to its protocol."""
