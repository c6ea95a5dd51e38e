"""Clients of the measured systems, with one interface."""
