"""Whether the learned weights earn their place: policies, oracle and report, in the simulator."""
