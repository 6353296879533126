"""The host: processors, memory and the accelerators on the PCI bus."""
