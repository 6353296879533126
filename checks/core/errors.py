"""The exception tree.

NodevetError
├── ModelError          a value that the vocabulary forbids
├── WireError           a child sent what is no message
│   └── Closed          the other end of a channel is gone
├── RunError            a program did not do what it was run for (in system/process.py)
├── BackendError        a device or its library could not be read (in backends/base.py: it carries a Failure)
├── RegistryError       two checks of one name, or a check that declares nothing
├── ReferenceDataError  a data file of ours is malformed
├── ConfigurationError  the configuration is refused; names key path and allowed range
├── StoreError          the database cannot be used
├── BusyError           a lock, port or lease is held by another process
├── AgentAbsent, AgentSilent, AgentRefused   no agent, none that answers, or its refusal (in agent/control/client.py)
└── UsageError          the command line asks for something that does not exist
"""

from __future__ import annotations


class NodevetError(Exception):
    """Anything that nodevet reports in one line instead of a traceback."""


class ModelError(NodevetError, ValueError):
    """A value that the vocabulary forbids, with the name of the offender in its message."""


class WireError(NodevetError):
    """The other end sent something that is no frame of the protocol."""


class Closed(WireError):  # noqa: N818 (a state of the channel rather than a mistake)
    """The other end of the channel is gone."""


class RegistryError(NodevetError):
    """Two checks of one name, or a check that declares nothing."""


class ReferenceDataError(NodevetError):
    """A data file of ours is malformed: names file, line and column."""


class ConfigurationError(NodevetError):
    """The configuration is refused: names the key path and what is allowed."""


class UnreadableConfigurationError(ConfigurationError):
    """Its file cannot be read for now: another start may read it, and nobody has to correct it."""


class StoreError(NodevetError):
    """The database cannot be used: names the file and what to do."""


class BusyError(NodevetError):
    """A lock, port or lease is held by another process."""


class UsageError(NodevetError):
    """The command line asks for something that does not exist."""
