"""Answers as files: the tables behind them, and what a served page is told of tensors."""
