"""NVIDIA accelerators, read through NVML."""
