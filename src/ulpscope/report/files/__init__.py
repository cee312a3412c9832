"""Answers as files: the tables behind them, what a served page is told of tensors, and what other viewers open."""
