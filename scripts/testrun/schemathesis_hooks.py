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


@schemathesis.serializer("application/x-ndjson")
def ndjson(_context, value):
    """Sends a file of targets unchanged."""
    return value if isinstance(value, bytes) else str(value).encode()
