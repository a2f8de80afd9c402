"""Secret: a value that a profile names but never holds."""

import os
from pathlib import Path

from attrs import frozen

from tokloom.sdk.errors import ProfileError


@frozen
class Secret:
    """A value that is kept elsewhere: `{ env = "X" }` or `{ file = "/run/secrets/x" }`. Never printed.

    As the type of an option it is what a plugin needs for passwords and tokens; factories reveal it, once.
    """

    env: str = ""
    file: str = ""

    def __repr__(self) -> str:
        return f"<secret from {'environment' if self.env else 'file'}>"

    def reveal(self) -> str:
        """The value. Raises ProfileError if the variable or the file is not there."""
        if self.env:
            value = os.environ.get(self.env)
            if value is None:
                raise ProfileError(
                    f"environment variable {self.env} is not set", subject="secret", remedy=f"Set {self.env}"
                )
            return value
        try:
            return Path(self.file).read_text().strip()
        except (OSError, ValueError) as error:  # a decoding error holds the content: only its kind is told
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise ProfileError(
                f"{self.file} cannot be read: {reason}", subject="secret", remedy="Check the file"
            ) from None
