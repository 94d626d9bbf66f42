"""The `trimtab` protobuf package."""
