"""What schemathesis does not know by itself; schemathesis.toml names this file."""

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(_context, value):
    """A file of targets is sent as it is."""
    return value if isinstance(value, bytes) else str(value).encode()
