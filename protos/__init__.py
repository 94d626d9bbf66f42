"""Trimtab's protocol buffers and their committed stubs."""
