"""The fleet's own classes, traffic and engines in the simulator: to learn from, to be judged on."""
