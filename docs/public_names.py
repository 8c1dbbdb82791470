"""What a package of capsella offers, for the pages of its API: all that its `__init__.py` imports."""

from typing import Any

import griffe


class PublicNames(griffe.Extension):
    """A package's imports are its public names; it needs no list of them beside."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Mark them as exported, so that the site shows them."""
        if mod.is_init_module and mod.exports is None:
            mod.exports = [name for name, member in mod.members.items() if member.is_alias and not name.startswith("_")]
