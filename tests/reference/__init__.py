"""The reference of the HTTP surface, held against what nodes answer."""
