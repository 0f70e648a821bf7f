"""Extends schemathesis; schemathesis.toml names this file."""

import ast
import threading

import schemathesis

# Python 3.11 counts the depth of ast.parse in one place for all threads, and fails if
# two threads parse at once. Hypothesis parses the source of filters to describe them.
_parse, _parsing = ast.parse, threading.RLock()


def _parse_alone(*args, **kwargs):
    with _parsing:
        return _parse(*args, **kwargs)


ast.parse = _parse_alone


HIGHEST_ID = 2**63 - 1


@schemathesis.hook
def filter_case(_context, case):
    """Drops requests with IDs above the maximum, which the patterns of IDs do not have."""
    values = [*(case.path_parameters or {}).values(), *(case.query or {}).values()]
    single = [one for value in values for one in (value if isinstance(value, list) else [value])]
    ids = [str(value).split(":")[0].strip() for value in single]
    return not any(len(text) == 19 and text.isascii() and text.isdigit() and int(text) > HIGHEST_ID for text in ids)
