"""The group's key and its certificates, which are exchanged under load as docs/access.md says."""
