"""The exception tree.

NodevetError
├── ModelError          a value that the data model forbids
├── WireError           a child sent a malformed message
│   └── Closed          the other end of a channel is gone
├── RunError            a run of a program failed (in system/process.py)
├── BackendError        a device or its library could not be read (in backends/base.py: it carries a Failure)
├── RegistryError       two checks with one name, or a check that declares nothing
├── ReferenceDataError  a data file of nodevet is malformed
├── ConfigurationError  the configuration is refused; names key path and allowed range
├── StoreError          the database cannot be used
├── BusyError           a lock, port or lease is held by another process
├── AgentAbsent, AgentSilent, AgentRefused   the agent is absent, silent or refuses (in agent/control/client.py)
├── DescriptorsClosed   other code in the process closed the descriptors of the agent
└── UsageError          the command line names something that does not exist
"""

from __future__ import annotations


class NodevetError(Exception):
    """Base of the errors that nodevet reports in one line instead of a traceback."""


class ModelError(NodevetError, ValueError):
    """A value that the data model forbids; the message names the offender."""


class WireError(NodevetError):
    """The other end sent bytes that are no frame of the protocol."""


class Closed(WireError):  # noqa: N818 (a state of the channel rather than a mistake)
    """The other end of the channel is gone."""


class DescriptorsClosed(NodevetError):  # noqa: N818 (a state of the process rather than a mistake of ours)
    """Other code in the process closed the descriptors of the agent, which cannot go on."""


class RegistryError(NodevetError):
    """Two checks with one name, or a check that declares nothing."""


class ReferenceDataError(NodevetError):
    """A data file of nodevet is malformed; the message names file, line and column."""


class ConfigurationError(NodevetError):
    """The configuration is refused; the message names the key path and the allowed values."""


class UnreadableConfigurationError(ConfigurationError):
    """The configuration file cannot be read for now: a later start may succeed, and nobody has to correct it."""


class StoreError(NodevetError):
    """The database cannot be used; the message names the file and the remedy."""


class BusyError(NodevetError):
    """A lock, port or lease is held by another process."""


class UsageError(NodevetError):
    """The command line names something that does not exist."""
