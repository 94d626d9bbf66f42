"""A simulated fleet, steered tick by tick as the control plane steers a real one."""
