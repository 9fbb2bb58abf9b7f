"""Replaced when the plots are merged."""
