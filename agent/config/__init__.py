"""The configuration: settings, how they are read, and what they say of readers."""
