"""The simulator: how fast it is, and how far it can be trusted beside a real engine."""
