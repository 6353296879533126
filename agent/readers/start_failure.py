"""The remedy for a process that cannot be started."""

from __future__ import annotations

import errno

START_STEPS = {
    errno.EMFILE: "no descriptor is left: raise LimitNOFILE of the agent's unit, or ulimit -n of the shell",
    errno.ENFILE: "the machine has no descriptor left: raise fs.file-max, or end programs that hold many",
    errno.EAGAIN: "no further process is allowed: raise TasksMax of the agent's unit, ulimit -u or kernel.pid_max",
    errno.ENOMEM: "the machine has no memory left: see free -m and journalctl -k",
    errno.ENOENT: "its interpreter is gone: reinstall nodevet",
    errno.EACCES: "its interpreter cannot be executed: check the permissions of the installation",
    errno.ENOEXEC: "its interpreter is not a program for this machine: reinstall nodevet",
}


def start_step(error: OSError) -> str:
    """Return the remedy for *error*, with which the start of a process failed."""
    return START_STEPS.get(error.errno or 0, "see the agent's log and its limits")
