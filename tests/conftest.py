"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A machine that is busy with other things is slow, and that is no fault of what is tested.
settings.register_profile("trimtab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trimtab")
