"""The explorer: the page of `capsella.share` with a server behind it, for what needs Python."""

from capsella.explorer.subject import Subject, open_subject
