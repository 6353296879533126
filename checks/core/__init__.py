"""The vocabulary: times, devices, samples, events, findings, quantities and errors."""
