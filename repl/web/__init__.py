"""The HTTP surface: requests to responses on our own types, with no web framework in sight."""
