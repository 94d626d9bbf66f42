"""Learning weights from what they cost: candidates in the simulator, at states that are visited."""
