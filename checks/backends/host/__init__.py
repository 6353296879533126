"""The host: processors, memory and what the PCI bus shows."""
