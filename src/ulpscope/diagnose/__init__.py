"""Turns judged pairs into findings and notes."""
