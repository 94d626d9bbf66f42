"""The control plane's one configuration object: a YAML file, then the environment.

Environment variables start with TRIMTAB_ and reach into sections with a double
underscore: TRIMTAB_PROMETHEUS__URL. They win over the file. Every default is
written here and nowhere else; `python -m controlplane.config.table` prints them.
"""

from controlplane.config.classes import MAX_CLASSES, MAX_RULES
from controlplane.config.options import Config
from controlplane.config.reading import load_config
from controlplane.config.steering import GuardrailsSection
from controlplane.config.surroundings import RegistrySection

__all__ = [
    "MAX_CLASSES",
    "MAX_RULES",
    "Config",
    "GuardrailsSection",
    "RegistrySection",
    "load_config",
]
