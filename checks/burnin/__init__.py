"""Active workloads: one file each, the plan, and the main of the load child. Measures, never judges."""
