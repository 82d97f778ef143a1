"""Whole directories read and judged; nothing of them is written."""
