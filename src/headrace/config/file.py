"""The configuration file of `--config`: a YAML mapping of option names, in dashes or underscores, to values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.config.options import Options
from headrace.config.vllm_flags import judge_vllm_option
from headrace.core.errors import ConfigError, unknown_name_message


def read_config_file(path: str) -> dict[str, Any]:
    """The mapping in `path`, keys in underscores. Raises ConfigError when it cannot be read or is no mapping."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}", param="config") from None
    except yaml.YAMLError as error:
        first = " ".join(str(error).split())
        raise ConfigError(f"the configuration file {path} is not YAML: {first}", param="config") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"the configuration file {path} must hold `name: value` lines", param="config")
    return {key.replace("-", "_"): value for key, value in content.items()}


def split_options(values: dict[str, Any], kinds: Sequence[type[Options]]) -> tuple[list[dict[str, Any]], list[str]]:
    """`values` sorted to the option classes that declare them, by field or flag name; and warnings.

    Null stands for "not given". Raises ConfigError for names that no class has and for vLLM's that are refused.
    """
    names: dict[str, str] = {}
    for kind in kinds:
        for spec in kind.specs():
            names[spec.name] = names[spec.flag[2:].replace("-", "_")] = spec.name
    warnings = []
    known: dict[str, Any] = {}
    for key, value in values.items():
        name = names.get(key)
        if name is not None:
            if value is not None:
                known[name] = value
            continue
        warning = judge_vllm_option(key, value)
        if warning is None:
            raise ConfigError(unknown_name_message("option", key, names), param=key)
        warnings.append(warning)
    return [{s.name: known[s.name] for s in kind.specs() if s.name in known} for kind in kinds], warnings
