"""White space that is held back until the letters behind it show what it belongs to.

One answer, one thread.
"""

from io import StringIO


class HeldSpace:
    """The white space held. Its memory is that of its letters, however short its pieces are."""

    def __init__(self) -> None:
        # None: there is none. Most pieces of an answer leave none.
        self._text: StringIO | None = None

    def add(self, text: str) -> None:
        """Hold a piece behind the others."""
        if text:
            if self._text is None:
                self._text = StringIO()
            self._text.write(text)

    def behind(self, place: int) -> str:
        """Return what is held from its letter number `place` on."""
        if self._text is None:
            return ""
        self._text.seek(place)
        return self._text.read()

    def take(self) -> str:
        """Return all that is held, and hold no more of it."""
        if self._text is None:
            return ""
        text, self._text = self._text.getvalue(), None
        return text
