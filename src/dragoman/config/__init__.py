"""Configuration: what can be set, how it is read, and what follows from it. Knows nothing of torch."""

from dragoman.config.load import load_config, presets, recorded_config, to_toml
from dragoman.config.schema import Config

__all__ = ["Config", "load_config", "presets", "recorded_config", "to_toml"]
