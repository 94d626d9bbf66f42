"""Retraining by the clock: when, one at a time, and what became of each run."""
