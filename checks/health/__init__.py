"""One file per check. A check judges the values in its view, and never reads a device."""
