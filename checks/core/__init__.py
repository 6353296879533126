"""The data model: times, devices, samples, events, findings, quantities and errors."""
