import torch
from hypothesis import settings

# A busy machine is slow at times; no test is about speed.
settings.register_profile("models", deadline=None)
settings.load_profile("models")
torch.set_num_threads(1)
