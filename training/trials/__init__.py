"""Candidate and champion side by side in the simulator: the evidence that the gates look at."""
