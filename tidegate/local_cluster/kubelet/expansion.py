"""$(VAR) in commands, arguments and values, with Kubernetes' rules."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replaces each $(NAME) by its value; an unknown name stays as it is, `$$` becomes `$`."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)
