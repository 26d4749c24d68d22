"""Turn-level credit for multi-turn language-model agents; see `turncredit.credit`, `rollout`, `trainers` and `envs`."""

from pkgutil import extend_path

__all__ = ["__version__"]

__version__ = "0.1.0"

__path__ = extend_path([], __name__)  # a checkout that stands earlier on the path of imports comes first
