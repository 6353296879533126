"""From samples to a verdict: views, checks, findings, episodes and the Snapshot."""
