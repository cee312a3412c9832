"""`ulpscope report`: pages, the server behind them, exports."""
