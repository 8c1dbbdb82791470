"""What errors of damaged runs say."""

import pytest

from capsella.errors import CapsellaError


def message_of(function, *arguments, **options):
    with pytest.raises(CapsellaError) as error:
        function(*arguments, **options)
    return str(error.value)
