"""api_accuracy_checker.common.config, so that `from ... import msCheckerConfig` changes by its first word only."""

from ulpscope.compat.api_accuracy_checker.config import msCheckerConfig

__all__ = ["msCheckerConfig"]
