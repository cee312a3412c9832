"""Answers as files: JSON objects, and the tables behind them."""
